"""A folder on a file system of pyarrow's, named by a URI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from raydpzv.errors import InputError
from raydpzv.files import write_atomically

SCHEMES = ("file", "s3", "gs", "abfs", "hdfs")
"""Schemes that pyarrow knows. An installed pyarrow may open fewer, and says so."""
_OF_URIS = "%/:?#[]@!$&'()*+,;="
"""Characters that a URI may hold. pyarrow wants all others quoted."""


def is_uri(text: str) -> bool:
    """Return whether a text names a folder in a storage, and not a path."""
    return "://" in text


class StorageFolder:
    """A folder whose files are read whole, written whole and listed. Failures raise OSError."""

    def __init__(self, filesystem: Any, base: str, uri: str) -> None:
        self._filesystem, self._base, self.uri = filesystem, base.rstrip("/"), uri

    @property
    def on_this_disk(self) -> Path | None:
        """Where it lies on this machine; None for a remote file system."""
        return Path(self._base).resolve() if self._filesystem.type_name == "local" else None

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""
        with _as_oserror():
            try:
                with self._filesystem.open_input_stream(f"{self._base}/{name}") as file:
                    return cast(bytes, file.readall())
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file; on a disk with this mode, and so that it survives a power loss.

        On a disk a reader sees the whole file or none. Elsewhere an interrupted write may leave a
        part of it.
        """
        path = f"{self._base}/{name}"
        if here := self.on_this_disk:
            here.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold the run's secrets
            (here / name).parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(here / name, data, fsync=True, mode=mode)
            return
        with _as_oserror():
            try:
                stream = self._filesystem.open_output_stream(path)
            except FileNotFoundError:  # object stores need no folders
                self._filesystem.create_dir(path.rpartition("/")[0])
                stream = self._filesystem.open_output_stream(path)
            with stream as file:
                file.write(data)

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of what lies directly in it or in a subfolder; [] if there is no
        such folder.
        """
        from pyarrow.fs import FileSelector

        selector = FileSelector(f"{self._base}/{folder}".rstrip("/"), allow_not_found=True)
        with _as_oserror():
            found = self._filesystem.get_file_info(selector)
        return sorted(info.base_name for info in found if info.base_name)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with _as_oserror():
            try:
                self._filesystem.delete_file(f"{self._base}/{name}")
            except FileNotFoundError:
                return


def check_uri(uri: str) -> None:
    """Raise InputError for a URI that names no folder or contains a secret; opens no file
    system.
    """
    parts = urlsplit(uri)
    if not is_uri(uri) or not parts.scheme or ".." in unquote(parts.path).split("/"):
        raise InputError(
            "--storage: wanted the URI of a folder, without .., such as s3://bucket/folder or "
            f"file:///shared/folder, got {uri}"
        )
    if ":" in parts.netloc.rpartition("@")[0]:
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
        why = known if "nrecognized" in str(error) else reason(error)
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
