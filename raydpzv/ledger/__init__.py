"""The seed-replay ledger: the history of a zeroth-order model as (seed, scalar) pairs, in memory and on disk."""

from raydpzv.ledger.entries import SHARED, Slice
from raydpzv.ledger.header import Header, Model
from raydpzv.ledger.ledger import Ledger

__all__ = ["SHARED", "Header", "Ledger", "Model", "Slice"]
