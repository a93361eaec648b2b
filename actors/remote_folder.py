"""A folder of the cluster's, brought here part by part, checked, and put in its place at once."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from actors.remote_folder_parts import BEGIN, END, LENGTH
from raydpzv.errors import InputError, RunError
from raydpzv.secure.sealed_box import Receiver

PART = 32 * 2**20
"""Bytes asked for at a time: the head holds a log in memory several times when it is asked for."""
_PERMISSIONS = 0o777
"""Those of files: none that another's process could become the user by."""
Ask = Callable[[int, int, str], str]
"""Run `actors.remote_folder_parts`: first byte, most bytes, whose public half; return what it printed."""


@dataclass(frozen=True)
class _File:
    name: str
    size: int
    mode: int
    digest: str


def check_place(place: Path) -> None:
    """Raise InputError unless a folder can be put there: nothing is written over."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        quoted = shlex.quote(str(place))
        raise InputError(
            f"{place}: is there already, and a run folder that is brought back replaces nothing; choose another --out, "
            f"or move it away and send the same line again: mv {quoted} {quoted}.before"
        )


def receive(ask: Ask, place: Path, told: Callable[[int, int], None] = lambda done, whole: None) -> bool:
    """Bring a folder here; return whether there is one. told: hears how many bytes of how many are here.

    Raises InputError if the place is taken or the disk too small, RunError if what comes is not what was promised.
    """
    receiver = Receiver()
    files, body = _part(receiver, ask(0, PART, receiver.public.hex()))
    if files is None:
        return False
    check_place(place)
    whole = sum(file.size for file in files)
    place.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place.parent).free
    if whole > free:
        raise InputError(
            f"{place}: wanted {whole} bytes of disk for the run folder, there are {free}; choose another --out"
        )
    scratch = place.with_name(f".{place.name}.{os.getpid()}")
    scratch.mkdir()
    try:
        joined = scratch / ".parts"
        with open(joined, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
            out.write(body)
            while out.tell() < whole:
                told(out.tell(), whole)
                again, body = _part(receiver, ask(out.tell(), PART, receiver.public.hex()))
                if again != files or not body:
                    raise RunError(
                        "wanted a folder that nobody writes to, got one that changed while it was brought here; wait "
                        "until its job has ended"
                    )
                out.write(body)
        _unpack(joined, files, scratch)
        joined.unlink()
        _put(scratch, place)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return True


def _put(folder: Path, place: Path) -> None:
    """Put a folder in its place, which another process may have taken meanwhile. Raises InputError."""
    try:
        os.rename(folder, place)
    except OSError:
        check_place(place)
        raise


def _part(receiver: Receiver, printed: str) -> tuple[Sequence[_File] | None, bytes]:
    """Return the listing and the bytes of a part, from what was printed there."""
    before, begun, rest = printed.partition(BEGIN)
    text, ended, _ = rest.partition(END)
    if not (begun and ended):
        raise RunError(f"no folder came from the cluster; the job there said: {before.strip()[-500:]}")
    try:
        # each line by itself, since each is padded
        box = b"".join(base64.b64decode(line, validate=True) for line in text.split())
    except binascii.Error as error:
        raise RunError(f"the log that brings the folder is damaged ({error}); ask for it again") from None
    message = receiver.read(box)
    (size,) = LENGTH.unpack_from(message)
    header = json.loads(message[LENGTH.size : LENGTH.size + size])
    files = None if header is None else [_File(*entry) for entry in header]
    for file in files or ():
        parts = PurePosixPath(file.name).parts
        if not parts or ".." in parts or PurePosixPath(file.name).is_absolute():
            raise RunError(f"wanted names within the run folder, got {file.name!r}; nothing was written")
    return files, message[LENGTH.size + size :]


def _unpack(joined: Path, files: Sequence[_File], folder: Path) -> None:
    """Write the files whose bytes stand in a row in `joined`. Raises RunError if one is not what was listed."""
    with joined.open("rb") as source:
        for file in files:
            data = source.read(file.size)
            if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.digest:
                raise RunError(
                    f"{file.name}: wanted {file.size} bytes with SHA-256 {file.digest}, got {len(data)} others; ask "
                    "for the folder again"
                )
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
                out.write(data)
            target.chmod(file.mode & _PERMISSIONS)
