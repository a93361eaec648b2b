"""Errors of the ledger's files, and scratch files of killed writers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raydpzv.errors import DataError, InputError, RaydpzvError


def sweep(folder: Path) -> None:
    """Delete the scratch files that killed writers left behind."""
    for scratch in folder.glob(".*.[0-9]*"):
        scratch.unlink(missing_ok=True)


@contextmanager
def reported(path: Path, kind: type[RaydpzvError] = InputError) -> Iterator[None]:
    """Raise an OSError of the block as one line that names the path."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"{path}: cannot be read or written ({error.strerror or error}); see to the disk"
        ) from None


def damaged(path: Path, damage: str, last: int) -> DataError:
    """Return the error of a damaged file; `last` is the newest round that is known to be good."""
    return DataError(
        f"{path}: {damage}; the last good round is {last}; restore the file from a copy"
    )
