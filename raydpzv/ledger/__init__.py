"""The seed-replay ledger: the history of a zeroth-order model as (seed, scalar) pairs, in memory
and on disk.
"""
