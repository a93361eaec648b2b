"""TOML files as plain data: read with every fault said in one line, and free of values that nothing
here can use.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raydpzv.errors import SpecError

LARGEST = 1 << 24
"""Bytes of the largest file that is read: a scenario has a few hundred, or some for each of a
million clients.
"""
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){40}""")
"""A key of more than 40 parts."""
DEEPEST = 16
"""Tables and lists inside one another; settings need four. What walks a tree recursively stays far
below its limit.
"""


def read_tree(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file; `what` names it in complaints ("a scenario file"). Raises SpecError."""
    try:
        if path.exists() and not path.is_file():
            raise SpecError(
                f"{path}: wanted {what}, got a folder or device; give the path of a TOML file"
            )
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SpecError(f"{path}: cannot read {what} ({reason}); check its path") from None
    if len(content) > LARGEST:
        raise SpecError(
            f"{path}: wanted {what} of at most {LARGEST:,} bytes, got a larger one; check its path"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise SpecError(
            f"{path}: {what} is text in UTF-8; this one is not, save it as such"
        ) from None
    try:
        return checked(read_toml(text), path.name)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(
            f"{path.name}: not a TOML file: {_fault(error, text)}; correct it there"
        ) from None


def _fault(error: tomllib.TOMLDecodeError, text: str) -> str:
    """Return what is wrong and in which line, which the parser leaves out of what is wrong at the
    end.
    """
    last = text.rstrip().count("\n") + 1
    return str(error).replace("at end of document", f"at line {last}, the end of the document")


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises TOMLDecodeError, also for what the parser has no words for."""
    if _LONG_KEY.search(text):  # the parser takes time in the square of a key's parts
        raise tomllib.TOMLDecodeError("tables or lists are nested too deeply")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("tables or lists are nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits, a date that no calendar has
        raise tomllib.TOMLDecodeError(str(error).partition(";")[0]) from None


def checked(tree: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the tree if it nests and holds what settings can be. Raises SpecError."""
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        for value in level:
            _check_value(value, where)
        level = [inner for value in level for inner in _parts(value)]
        if not level:
            return tree
    raise SpecError(
        f"{where}: wanted at most {DEEPEST} tables and lists in one another, got more; flatten it"
    )


def _check_value(value: Any, where: str) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise SpecError(
            f"{where}: wanted whole numbers of at most 64 bits, got one of {value.bit_length()}; "
            "make it smaller"
        )
    if isinstance(value, str) and not is_text(value):
        raise SpecError(
            f"{where}: wanted UTF-8 text without control characters, got {value!a:.80}; correct it"
        )


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else ()


def is_text(text: str) -> bool:
    """Return whether a string can be written in UTF-8 and has no control characters but tabs and
    line breaks.

    A terminal would obey the others, and none of them can be in a path that a system takes.
    """
    return text.isprintable() or not any(
        c not in "\t\n" and unicodedata.category(c) in ("Cc", "Cs") for c in text
    )
