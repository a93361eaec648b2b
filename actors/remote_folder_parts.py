"""`python -m actors.remote_folder_parts`: a part of a folder, printed so that whoever asked for it alone can read it.

A job on a cluster's head has nothing but its log to give an answer. What is printed is sealed, since logs are read by
others than may read the folder: a run's folder has the operator's secrets in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from raydpzv.secure.sealed_box import sealed_for

SCENARIO = "scenario.toml"
"""What makes a folder a run's: it is written last when one is made."""

BEGIN, END = "-----BEGIN FOLDER PART-----", "-----END FOLDER PART-----"
_LINE = 3 * 2**10
"""Bytes that make a line of what is printed."""
LENGTH = struct.Struct("<Q")
_PRIVATE = ".lock"


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, in order; a lock belongs to its machine."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _PRIVATE:
            yield path


def listing(folder: Path) -> list[tuple[str, int, int, str]]:
    """Return each file's name, bytes, permissions and SHA-256."""
    found = []
    for path in files_of(folder):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            status = os.fstat(file.fileno())
        found.append(
            (path.relative_to(folder).as_posix(), status.st_size, stat.S_IMODE(status.st_mode), digest)
        )
    return found


def part(folder: Path, begin: int, most: int) -> bytes:
    """Return a message: the listing (none: there is no such run folder), and bytes of the files, from `begin` on.

    A folder that is no run's is not for the one who asks, though a run that was to go there was refused for it.
    """
    if not (folder / SCENARIO).is_file():
        header = json.dumps(None).encode()
        return LENGTH.pack(len(header)) + header
    names = listing(folder)
    header, body, at = json.dumps(names).encode(), bytearray(), 0
    for name, size, _, _ in names:
        skipped = min(size, max(0, begin - at))
        with (folder / name).open("rb") as file:
            file.seek(skipped)
            body += file.read(min(size - skipped, most - len(body)))
        at += size
    return LENGTH.pack(len(header)) + header + body


def main(arguments: Sequence[str]) -> None:
    """Print a part: of which folder, from which byte, how many at most, for whose public half."""
    folder, begin, most, public = arguments
    box = sealed_for(bytes.fromhex(public), part(Path(folder), int(begin), int(most)))
    lines = [base64.b64encode(box[at : at + _LINE]).decode() for at in range(0, len(box), _LINE)]
    print(BEGIN, *lines, END, sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
