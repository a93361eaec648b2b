"""Labels and categories that are known without the data: a value's number is its place in a list of
the scenario.

A list that is read off a column is a function of all records: one value that nobody else has
renumbers the others'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydpzv.data.files import one_line
from raydpzv.errors import DataError

if TYPE_CHECKING:
    from raydpzv.settings.fields import Label

_LISTED = 8
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")


@dataclass(frozen=True)
class PublicList:
    """The values that a column may hold. values: all texts, all whole numbers or all booleans, each
    once.

    setting: names the list in errors; other: the one of the values that any value outside the list
    becomes, None: such a value is refused.
    """

    values: tuple[Label, ...]
    setting: str
    other: Label | None = None

    @classmethod
    def of(cls, values: tuple[Label, ...], setting: str, other: Label | None) -> PublicList:
        """Return the list of a setting; `other` counts where the list has it."""
        return cls(values, setting, other if other in values else None)

    def __len__(self) -> int:
        return len(self.values)

    def places(self, texts: Iterable[str]) -> list[int]:
        """Return each text's place in the list, that of `other` for one outside, -1 where there is
        none.

        A text's place depends on that text and the list alone.
        """
        known: dict[Label | None, int] = {value: place for place, value in enumerate(self.values)}
        outside = -1 if self.other is None else known[self.other]
        return [known.get(self._read(text), outside) for text in texts]

    def refusal(self, value: object, row: int, column: str, name: str) -> DataError:
        """The error for a value outside. column: in words; name: the file's."""
        shown = ", ".join(map(str, self.values[:_LISTED])) + (
            ", ..." if len(self) > _LISTED else ""
        )
        return DataError(
            one_line(
                f'{column} of "{name}" has "{value}" in row {row} (counted from 0), which is not '
                "in the public list "
                f"{self.setting} ({shown}): mend the cell, add the value if everybody may know "
                "that it occurs, or set data.other to the value of the list that it counts as"
            )
        )

    def _read(self, text: str) -> Label | None:
        """Return the text as a value of the list's kind, None for one that cannot be."""
        kind = type(self.values[0])
        if kind is bool:
            return {"true": True, "false": False}.get(text.strip().lower())
        if kind is int:
            return int(text) if _WHOLE.fullmatch(text) else None
        return text
