"""Names of clients for people: the party's name, or the number. Rows, ledgers and files have the
number alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from raydpzv.errors import InputError, suggest

NAME = re.compile(r"[^\W\d_](?:[\w .-]{0,38}[\w.-])?")
"""A party's name: it begins with a letter, so that no number and no option of a command looks like
it.
"""
_NUMBERED = re.compile(r"\bclient (\d+)\b")


def label(client: int, names: Sequence[str] = ()) -> str:
    """Return the name of a client's party; "client 3" where parties have no names."""
    return names[client] if client < len(names) else f"client {client:,}"


def named(message: str, names: Sequence[str]) -> str:
    """Return a message with the party's name before each "client 3"."""
    if not names:
        return message
    return _NUMBERED.sub(
        lambda found: (
            f"{names[int(found[1])]} ({found[0]})" if int(found[1]) < len(names) else found[0]
        ),
        message,
    )


def client_number(given: str, names: Sequence[str], asked: str = "--client") -> int:
    """Return the client that a name or a number means; whether the number exists is for others to
    check.

    Raises InputError for any other text; asked: the option or argument that it names.
    """
    if given in names:
        return names.index(given)
    if re.fullmatch(r"-?\d{1,18}", given):
        return int(given)
    known = f"{', '.join(names)}, or its number" if names else "the number of a client"
    raise InputError(f'{asked}: wanted {known}, got "{given}". {suggest(given, names)}'.rstrip())
