"""Reading data files: what is missing, and where to get it, in one line."""

from __future__ import annotations

from pathlib import Path

from raydpzv.errors import DataError

_LISTED = 6


def one_line(text: object) -> str:
    """Return `text` with white space closed up: other libraries' messages have several lines."""
    return " ".join(str(text).split())


def contents(folder: Path) -> str:
    """Return in words what a folder holds: a few names, "nothing", or that it is not there."""
    if not folder.exists():
        return "the folder does not exist"
    if not folder.is_dir():
        return "that is a file, not a folder"
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "it holds nothing"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"it holds {', '.join(names[:_LISTED])}{more}"


def missing(wanted: str, lacking: list[str], folder: Path, home: str) -> DataError:
    """The error for absent files: which, in which folder, what is there instead, where to get
    them.
    """
    return DataError(
        one_line(
            f'{wanted} wants {", ".join(lacking)} in the folder "{folder}"; {contents(folder)}: '
            "get the data "
            f"from {home}"
        )
    )


def no_file(file: Path) -> DataError:
    """The error for one's own file that is not there: what was wanted and what the folder holds."""
    return DataError(
        one_line(
            f'there is no file "{file.name}" in the folder "{file.parent}"; '
            f"{contents(file.parent)}: correct "
            "the path"
        )
    )


def read_bytes(path: Path, home: str) -> bytes:
    """Return a file's content; DataError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error, home) from error


def unreadable(path: Path, why: object, home: str) -> DataError:
    """The error for a file that is there and cannot be used."""
    return DataError(one_line(f'"{path}" cannot be read: {why}; get it again from {home}'))
