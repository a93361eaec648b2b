"""What was read of a data section, kept while its files hold the same bytes.

A path is no file: a table that was written again is another one, whatever its name, size and time
of change are. So what is kept has the digest of every byte for its key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import TypeVar

from raydpzv.files import file_sha256
from raydpzv.foreign import is_foreign
from raydpzv.settings.sections_data import DataSection

Found = TypeVar("Found")
_MOST_FILES, _MOST_BYTES = 100_000, 8 * 2**30
"""Of a folder, above which nothing is kept of it: other files may lie there, and digests take
time.
"""


class ReadOnce:
    """Keeps what is read of the last few data sections. most: how many."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, dict[Hashable, object]()

    def of(self, data: DataSection, read: Callable[..., Found], *given: Hashable) -> Found:
        """Return read(*given), which depends on these and the section's files alone.

        It is called again once a file has other bytes. A user's own source may change unseen: it is
        called each time.
        """
        before = files_of(data)
        if before is None:
            return read(*given)
        if (before, given) in self._kept:
            return self._kept[before, given]  # type: ignore[return-value]
        found = read(*given)
        if files_of(data) != before:
            return found  # a file changed meanwhile: which of the two was read is not known
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        self._kept[before, given] = found
        return found


def files_of(data: DataSection) -> Hashable | None:
    """Return the digests of the files that a data section names, None where they do not tell what
    is read.
    """
    if is_foreign(data.source):
        return None
    files, room = list[Path](), _MOST_BYTES
    try:
        for named in filter(None, (data.file, data.folder)):
            for file in _files_below(Path(named)):
                files.append(file)
                room -= file.stat().st_size
                if len(files) > _MOST_FILES or room < 0:
                    return None
        return tuple((str(file), file_sha256(file)) for file in files)
    except OSError:
        return None  # who reads the file says what is wrong with it


def _files_below(path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder in order, through links."""
    if path.is_file():
        yield path
    for folder, _, names in os.walk(path, followlinks=True):
        yield from (file for name in sorted(names) if (file := Path(folder, name)).is_file())
