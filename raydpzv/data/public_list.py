"""Labels and categories that are known without the data: a value's number is its place in a list of
the scenario.

A list that is read off a column is a function of all records: one value that nobody else has
renumbers the others'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydpzv.data.files import one_line
from raydpzv.data.spelling import likeness, shown, whole
from raydpzv.errors import DataError

if TYPE_CHECKING:
    from raydpzv.settings.fields import Label

_LISTED = 8
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")


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

    def refusal(self, value: object, row: int, where: str) -> DataError:
        """The error for a value outside. where: the column and its file, in words."""
        listed = ", ".join(map(str, self.values[:_LISTED])) + (
            ", ..." if len(self) > _LISTED else ""
        )
        alike = _alike(str(value), self._alikes())
        but = "" if alike is None else f" but for how it is written: it has {_named(alike)}"
        return DataError(
            f"{where} has {_named(value)} in row {row} (counted from 0), which is not in the public "
            f"list {self.setting} ({one_line(listed)}){but}: mend the cell, add the value if "
            "everybody may know that it occurs, or set data.other to the value of the list that it "
            "counts as"
        )

    def remark(self, texts: Iterable[str], where: str) -> str:
        """Return a sentence on a text that counts as `other` and is nearly a value of the list; ""
        for none.
        """
        alikes = self._alikes()
        for text in (text for text in texts if self._read(text) not in self.values):
            if (alike := _alike(text, alikes)) is not None and alike != self.other:
                return (
                    f"{where} has {_named(text)}, which counts as {_named(self.other)} "
                    f"(data.other) and is {_named(alike)} of {self.setting} but for how it is written"
                )
        return ""

    def _alikes(self) -> dict[str, Label]:
        return {likeness(str(value)): value for value in self.values}

    def _read(self, text: str) -> Label | None:
        """Return the text as a value of the list's kind, None for one that cannot be.

        Of whole numbers it is written as they are: "007" is no other way to write 7.
        """
        kind, bare = type(self.values[0]), text.strip()
        if kind is bool:
            return {"true": True, "false": False}.get(bare.lower())
        if kind is int:
            return int(bare) if whole([bare]) else None
        return text


def _alike(text: str, alikes: Mapping[str, Label]) -> Label | None:
    """Return the value that the text is but for blanks, case, and how a number is written."""
    digits = str(int(text)) if _WHOLE.fullmatch(text) else text
    return alikes.get(likeness(text), alikes.get(digits))


def _named(value: object) -> str:
    return shown(str(value))
