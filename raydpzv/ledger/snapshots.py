"""Snapshots: arrays of a model at a version, so that a rebuild need not begin at update 1.

One npz file each (any numpy reads it); the zip comment at its end is a sha256 over the ledger's
header, the snapshot's name and version and all bytes before. Without a folder they are kept in
memory.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raydpzv.errors import DataError, InputError, RunError
from raydpzv.files import write_atomically
from raydpzv.ledger.files import reported, sweep

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,99}")
_HEX = 64


class Snapshots:
    """The snapshots of one ledger, whose chain begins with `start`."""

    def __init__(self, folder: Path | None, start: bytes, fsync: bool) -> None:
        self._folder, self._start, self._fsync = folder, start, fsync
        self._in_memory: dict[tuple[str, int], bytes] = {}

    def save_snapshot(
        self, name: str, version: int, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Write arrays atomically; replace those of the same name and version."""
        if not _NAME.fullmatch(name):
            raise InputError(
                f"snapshot {name!r}: wanted a name of letters, digits, blanks, '_', '.', '-', such "
                "as 'client 3'"
            )
        data = _packed(arrays)
        data += self._sum(name, version, data)
        if self._folder is None:
            self._in_memory[name, version] = data
            return
        path = self._path(name, version)
        with reported(path, RunError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data, self._fsync)

    def load_snapshot(
        self, name: str, until: int
    ) -> tuple[int, dict[str, npt.NDArray[Any]]] | None:
        """Return the newest snapshot with version <= until, or None; DataError names a damaged
        file.
        """
        versions = [version for version in self._versions(name) if version <= until]
        return (max(versions), self._load(name, max(versions))) if versions else None

    def forget(self, name: str, before: int) -> None:
        """Delete the snapshots of a name with a version < before."""
        for version in self._versions(name):
            if version < before:
                if self._folder is None:
                    del self._in_memory[name, version]
                else:
                    self._path(name, version).unlink()
        folder = self._path(name, 0).parent
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    def drop(self, after: int) -> None:
        """Delete snapshots of versions > after, and scratch files of killed writers."""
        for key in [key for key in self._in_memory if key[1] > after]:
            del self._in_memory[key]
        for name in self._names():
            sweep(self._path(name, 0).parent)
            for version in self._versions(name):
                if version > after:
                    self._path(name, version).unlink()

    def verify(self) -> None:
        """Check every snapshot; DataError that names the first damaged one."""
        for name in self._names():
            for version in self._versions(name):
                self._load(name, version)

    def _load(self, name: str, version: int) -> dict[str, npt.NDArray[Any]]:
        path = self._path(name, version)
        with reported(path, DataError):
            data = self._in_memory[name, version] if self._folder is None else path.read_bytes()
        if data[-_HEX:] != self._sum(name, version, data[:-_HEX]):
            raise DataError(
                f"{path}: is damaged, or a snapshot of another ledger, name or version: its sha256 "
                "does not fit; delete it, and the rebuild begins at the one before"
            )
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)

    def _sum(self, name: str, version: int, data: bytes) -> bytes:
        begin = self._start + f"{len(name)} {name} {version} ".encode()
        return hashlib.sha256(begin + hashlib.sha256(data).digest()).hexdigest().encode()

    def _names(self) -> list[str]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir())

    def _versions(self, name: str) -> list[int]:
        if self._folder is None:
            return [version for each, version in self._in_memory if each == name]
        paths = sorted(self._path(name, 0).parent.glob("[!.]*"))
        if wrong := [path for path in paths if not (path.suffix == ".npz" and path.stem.isdigit())]:
            raise DataError(f"{wrong[0]}: is no snapshot (wanted VERSION.npz); move it elsewhere")
        return [int(path.stem) for path in paths]

    def _path(self, name: str, version: int) -> Path:
        return (self._folder or Path("memory")) / name / f"{version:010d}.npz"


def _packed(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return an npz file without the sha256 that its end has room for; equal arrays give equal
    bytes.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.comment = b"0" * _HEX
        for name, values in arrays.items():
            if np.asarray(values).dtype.hasobject:
                raise InputError(f"snapshot: {name!r} holds Python objects; wanted numbers")
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)
    return buffer.getvalue()[:-_HEX]
