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
"""Schemes that pyarrow knows. An installed pyarrow may open fewer, and says so."""
_OF_URIS = "%/:?#[]@!$&'()*+,;="
"""Characters that a URI may hold. pyarrow wants all others quoted."""


def is_uri(text: str) -> bool:
    """Return whether a text names a folder in a storage, and not a path."""
    return "://" in text


class StorageFolder:
    """A folder whose files are written whole, read whole and listed.

    All names are new, but for the writer's own lease. So an interrupted write leaves a file that
    nothing refers to, and on a disk one whose name begins with a dot. Failures raise OSError.
    """

    def __init__(self, filesystem: Any, base: str, uri: str) -> None:
        self._filesystem, self._base = filesystem, base.rstrip("/")
        self._local = filesystem.type_name == "local"
        self.uri = uri

    @property
    def on_this_disk(self) -> Path | None:
        """Where it lies on this machine; None for a remote file system."""
        return Path(self._base).resolve() if self._local else None

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
            except FileNotFoundError:  # object stores need no folders
                self._make(path.rpartition("/")[0])
                self._put(path, data)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files directly in a subfolder, without those that are
        being written.
        """
        return [name for name in self._files(folder, recursive=False) if not name.startswith(".")]

    def below(self, folder: str) -> list[str]:
        """Return the sorted paths, relative to a subfolder, of all files below it."""
        return self._files(folder, recursive=True)

    def entries(self) -> list[str]:
        """Return the sorted names of all files and folders directly in it; [] where it does not
        exist.
        """
        return sorted(
            info.base_name for info in self._listed(self._base, recursive=False) if info.base_name
        )

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with _as_oserror():
            try:
                self._filesystem.delete_file(self._path(name))
            except FileNotFoundError:
                return

    def _files(self, folder: str, *, recursive: bool) -> list[str]:
        base = self._path(folder)
        return sorted(
            info.path[len(base) + 1 :]
            for info in self._listed(base, recursive=recursive)
            if info.is_file
        )

    def _listed(self, path: str, *, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(path, allow_not_found=True, recursive=recursive)
        with _as_oserror():
            try:
                found: list[Any] = self._filesystem.get_file_info(selector)
            except (
                FileNotFoundError
            ):  # created after pyarrow had missed it, before it was asked for again
                found = self._filesystem.get_file_info(selector)
            return found

    def _put(self, path: str, data: bytes) -> None:
        """Write a file whole. An object store shows no partial file; a disk needs a rename."""
        folder, _, name = path.rpartition("/")
        scratch = f"{folder}/.{name}.{os.getpid()}" if self._local else path
        with self._filesystem.open_output_stream(scratch) as file:
            file.write(data)
        if self._local:
            os.replace(scratch, path)

    def _make(self, folder: str) -> None:
        if self._local and not os.path.isdir(self._base):
            os.makedirs(os.path.dirname(self._base), exist_ok=True)
            os.mkdir(self._base, 0o700)  # it will hold secrets of the run
        self._filesystem.create_dir(folder, recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if self._base else name


def check_uri(uri: str) -> None:
    """Raise InputError for a URI that names no folder or contains a secret; opens no file
    system.
    """
    scheme = urlsplit(uri).scheme
    if not is_uri(uri) or not scheme:
        raise InputError(
            "--storage: wanted the URI of a folder, such as s3://bucket/folder or "
            f"file:///shared/folder, got {uri}"
        )
    if ":" in urlsplit(uri).netloc.rpartition("@")[0]:
        raise InputError(
            "--storage: a password or secret key does not belong in a URI, which logs and process "
            "lists show; give it as pyarrow's documentation says for the file system, as in "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def open_storage(uri: str) -> StorageFolder:
    """Return the folder that a URI names. Raises InputError for a URI that cannot be opened
    here.
    """
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
    """Raise pyarrow's own errors as OSError."""
    try:
        yield
    except pa.ArrowException as error:
        raise error if isinstance(error, OSError) else OSError(str(error)) from error


@contextmanager
def naming(uri: str) -> Iterator[None]:
    """Raise an OSError of the block as InputError that names the storage."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{uri}: cannot be read or written ({reason(error)}); see to its permissions and to "
            "the way there"
        ) from None


def reason(error: BaseException) -> str:
    """Return an error's reason in one line."""
    said = getattr(error, "strerror", None) or error
    return " ".join(str(said).split())[:200] or type(error).__name__
