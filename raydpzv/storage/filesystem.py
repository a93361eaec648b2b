"""A folder on a file system of pyarrow's, named by a URI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from raydpzv.errors import InputError

SCHEMES = ("file", "s3", "gs", "abfs", "hdfs")
"""Schemes that pyarrow knows; which of them a build of it opens, it says itself."""
_OF_URIS = "%/:?#[]@!$&'()*+,;="
"""What a URI may hold; blanks and others, which pyarrow refuses, are written as it wants them."""


def is_uri(text: str) -> bool:
    """Tell whether a text names a folder in a storage, and not a path."""
    return "://" in text


class StorageFolder:
    """A folder: named files in it are written whole, read whole and listed.

    Files are written under names that are new, but for the writer's own lease: an interrupted write leaves a file that
    nothing refers to, on whatever file system, and on a disk one whose name begins with a dot. What fails raises
    OSError.
    """

    def __init__(self, filesystem: Any, base: str, uri: str) -> None:
        self._filesystem, self._base = filesystem, base.rstrip("/")
        self.uri = uri

    @property
    def on_this_disk(self) -> Path | None:
        """Where on this machine it lies, if it does."""
        return Path(self._base).resolve() if self._filesystem.type_name == "local" else None

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""
        with _as_oserror():
            try:
                with self._filesystem.open_input_stream(self._path(name)) as file:
                    data: bytes = file.readall()
                    return data
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        path = self._path(name)
        with _as_oserror():
            try:
                self._put(path, data)
            except FileNotFoundError:  # of file systems whose folders are made, and not meant by a name
                self._make(path.rpartition("/")[0])
                self._put(path, data)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files right in a folder of it, sorted; none that is still being written to a disk."""
        found = self._below(folder, recursive=False)
        return sorted(name for name in found if "/" not in name and not name.startswith("."))

    def below(self, folder: str) -> list[str]:
        """Return the names of all files below a folder of it, as paths from there."""
        return sorted(self._below(folder, recursive=True))

    def entries(self) -> list[str]:
        """Return the names of all that is right in it, folders among them, sorted; none where it is not there."""
        return sorted(info.base_name for info in self._listed(self._base, recursive=False) if info.base_name)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with _as_oserror():
            try:
                self._filesystem.delete_file(self._path(name))
            except FileNotFoundError:
                return

    def _below(self, folder: str, *, recursive: bool) -> Iterator[str]:
        from pyarrow.fs import FileType

        base = self._path(folder)
        for info in self._listed(base, recursive=recursive):
            if info.type == FileType.File:
                yield info.path[len(base) + 1 :]

    def _listed(self, path: str, *, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        wanted = FileSelector(path, allow_not_found=True, recursive=recursive)
        with _as_oserror():
            try:
                found: list[Any] = self._filesystem.get_file_info(wanted)
            except FileNotFoundError:  # it came after pyarrow had missed it, before it was asked for again
                found = self._filesystem.get_file_info(wanted)
            return found

    def _put(self, path: str, data: bytes) -> None:
        """Write a file whole: object stores show none before that, disks must be kept from it."""
        folder, _, name = path.rpartition("/")
        local = self._filesystem.type_name == "local"
        scratch = f"{folder}/.{name}.{os.getpid()}" if local else path
        with self._filesystem.open_output_stream(scratch) as file:
            file.write(data)
        if local:
            os.replace(scratch, path)

    def _make(self, folder: str) -> None:
        if self._filesystem.type_name == "local" and not os.path.isdir(self._base):
            os.makedirs(os.path.dirname(self._base), exist_ok=True)
            os.mkdir(self._base, 0o700)  # it will hold secrets of the run
        self._filesystem.create_dir(folder, recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if self._base else name


def check_uri(uri: str) -> None:
    """Raise InputError for a URI that names no folder, or has a secret in it; asks no file system."""
    scheme = urlsplit(uri).scheme
    if not is_uri(uri) or not scheme:
        raise InputError(
            f"--storage: wanted the URI of a folder, such as s3://bucket/folder or file:///shared/folder, got {uri}"
        )
    if ":" in urlsplit(uri).netloc.rpartition("@")[0]:
        raise InputError(
            "--storage: a password or secret key does not belong in a URI, which logs and process lists show; give it "
            "as pyarrow's documentation says for the file system, as in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def open_place(uri: str) -> StorageFolder:
    """Return the folder that a URI names. Raises InputError for one that names none that can be had here."""
    check_uri(uri)
    from pyarrow.fs import FileSystem

    try:
        filesystem, base = FileSystem.from_uri(quote(uri, safe=_OF_URIS))
    except (OSError, ValueError, NotImplementedError) as error:
        known = f'pyarrow knows no "{urlsplit(uri).scheme}"; known: {", ".join(SCHEMES)}'
        why = known if "nrecognized" in str(error) else " ".join(str(error).split())[:200]
        raise InputError(f"--storage {uri}: cannot be opened: {why}") from None
    if not base.strip("/"):
        raise InputError(f"--storage {uri}: is the root of its file system; name a folder there")
    return StorageFolder(filesystem, base, uri.rstrip("/"))


@contextmanager
def _as_oserror() -> Iterator[None]:
    """Raise what pyarrow raises of its own as what the others raise."""
    try:
        yield
    except pa.ArrowException as error:
        raise error if isinstance(error, OSError) else OSError(str(error)) from error


def reason(error: BaseException) -> str:
    """Return what went wrong in one line."""
    said = getattr(error, "strerror", None) or error
    return " ".join(str(said).split())[:200] or type(error).__name__
