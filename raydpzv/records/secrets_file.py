"""The operator's file: secrets of a run folder or a comparison, which only its owner may read.

They appear in no row, ledger, log, summary or error text: errors name a missing secret, never a
value.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from raydpzv.errors import DataError
from raydpzv.files import PRIVATE, as_json, read_small, write_atomically

OPERATOR = "operator.json"
_KEY_BYTES = 32
_NUMBER = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True)
class OperatorSecrets:
    """The key of the data's digest, and what the coins of the batches come from (None: the run's
    seed).
    """

    key: bytes = field(repr=False)
    coins: int | None = field(default=None, repr=False)

    def write(self, folder: Path) -> None:
        """Write the operator's file of a folder."""
        content = {"key": self.key.hex()}
        content |= {} if self.coins is None else {"coins": f"{self.coins:064x}"}
        write_atomically(folder / OPERATOR, as_json(content).encode(), mode=PRIVATE)


def new_key() -> bytes:
    """Return a key from the operating system: without it nobody can test a guess against a keyed
    digest.
    """
    return secrets.token_bytes(_KEY_BYTES)


def read_key(folder: Path) -> bytes:
    """Return the key of the data's digest. Raises DataError if the operator's file is missing."""
    return _read(folder, "key", "the key by which the data are seen to be the same").to_bytes(
        _KEY_BYTES
    )


def read_coins(folder: Path) -> int:
    """Return the seed of the coins of a run's batches. Raises DataError if the operator's file is
    missing.
    """
    return _read(folder, "coins", "the run's secret coins")


def _read(folder: Path, name: str, secret: str) -> int:
    """Return a secret. No error shows its value."""
    path = folder / OPERATOR
    if not path.is_file():
        raise DataError(
            f"{folder}: has no {OPERATOR}: it holds {secret}; put the operator's file back"
        )
    wrong = (
        f'is damaged: wanted a hexadecimal number "{name}" (there is none); restore it from a copy'
    )
    try:
        content = json.loads(read_small(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); only its owner may") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: {wrong}") from None
    found = content.get(name) if isinstance(content, dict) else None
    if not (isinstance(found, str) and _NUMBER.fullmatch(found)):
        raise DataError(f"{path}: {wrong}")
    return int(found, 16)
