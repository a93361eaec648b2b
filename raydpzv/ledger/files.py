"""Files of the ledger: atomic writes, and the one line that says what is wrong with a file."""

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
    """Turn an OSError into one line that names the path."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"{path}: cannot be read or written ({error.strerror or error}); see to the disk"
        ) from None


def damaged(path: Path, what: str, last: int) -> DataError:
    """Return the error of a damaged file; `last` is the newest round that is known to be good."""
    return DataError(f"{path}: {what}; the last good round is {last}; bring the file back from a copy")
