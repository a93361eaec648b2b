"""Which labels and categories a table may have: public lists of the scenario, or what is read off its records.

A list that is read off is a function of all records, so that no ε is proved of a run that has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raydpzv.registry import DATA_SOURCES
from raydpzv.settings.sections import DataSection


@dataclass(frozen=True)
class ReadOff:
    """A list that is read off the data. setting: which gives it; how: a clause; cure: what to give."""

    setting: str
    how: str
    cure: str


def read_off(data: DataSection) -> Iterator[ReadOff]:
    """Yield each list that a data section leaves to its records."""
    if data.labels is None and DATA_SOURCES[data.source].listed:
        yield ReadOff(
            "data.classes",
            "classes are numbered by the labels that occur",
            'list the labels that everybody knows, such as ["ill", "well"]',
        )
    if columns := [column for column in data.category_columns if column not in data.public_categories]:
        yield ReadOff(
            "data.categories",
            "categories are read off the training rows",
            f'give a table that lists each column\'s values, such as {{"{columns[0]}" = ["a", "b"]}}',
        )


def stated_lists(data: DataSection) -> tuple[str, ...]:
    """Return what is public of labels and categories, a line each, or which setting is missing."""
    missing = {found.setting: found for found in read_off(data)}
    classes = "public, from data.classes" if data.labels else "public, the data set's own"
    lines = {"data.classes": f"classes: {classes}"}
    if columns := ", ".join(data.category_columns):
        lines["data.categories"] = f"categories of {columns}: public, from data.categories"
    return tuple(
        f"NOT public: {missing[setting].how}; {setting}: {missing[setting].cure}"
        if setting in missing
        else line
        for setting, line in lines.items()
    )
