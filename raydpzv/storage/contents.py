"""What is at the place of a storage that is to be begun: nothing, what a kill left of a beginning, or other files."""

from __future__ import annotations

import re

from raydpzv.errors import InputError
from raydpzv.storage.commits import COMMITS, OBJECTS, newest_epoch
from raydpzv.storage.lease import LEASES, last_writer
from raydpzv.storage.place import StorageFolder

_OWN = re.compile(rf"{COMMITS}|{LEASES}|{OBJECTS}\d{{8}}")
_NAMED = 3
"""Names of others' files that are said."""


def check_unused(place: StorageFolder) -> None:
    """Raise InputError for a place that holds other things, unless somebody has ever written to a storage there.

    What is laid beside a storage later does not make it another one; and of one that was begun and interrupted its
    folders alone may be there, empty.
    """
    others = [name for name in place.entries() if not _OWN.fullmatch(name)]
    others.sort(key=lambda name: name.startswith("."))
    if not others or last_writer(place)[0] or newest_epoch(place):
        return
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    raise InputError(
        f"{place.uri}: holds other things ({', '.join(others[:_NAMED])}{more}) and no storage; give the URI of a "
        "folder that is empty or not there yet"
    )
