"""What of a table depends on other records before any release: lists that are read off it, scaling, and the split.

No ε is proved of a run in which one record moves what the others are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from raydpzv.registry import DATA_SOURCES
from raydpzv.settings.sections import DataSection


@dataclass(frozen=True)
class ReadOff:
    """What is read off the data. setting: which decides it; how: a clause; cure: what to give."""

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


def fitted(data: DataSection) -> Iterator[ReadOff]:
    """Yield each way in which one record moves what others are before any release."""
    if data.scale in ("standard", "unit"):
        yield ReadOff(
            "data.scale",
            f'features are scaled by what is fitted on the training rows (data.scale = "{data.scale}")',
            'use data.scale = "public" with data.centre and data.spread, or "none"',
        )
    if data.missing == "mean":
        how = 'gaps are filled in by the training rows (data.missing = "mean")'
        yield ReadOff("data.missing", how, "leave it out")
    if how := DATA_SOURCES[data.source].fitted:
        yield ReadOff("data.source", how, "use data without that")
    for found in read_off(data):
        yield replace(found, how=f"{found.how} (set {found.setting})")
    if data.split == "stratified":
        how = 'rows are drawn by class, which looks at all labels (data.split = "stratified")'
        yield ReadOff("data.split", how, 'use data.split = "plain"')
    if data.groups:
        how = "which rows are held out depends on a column's values (data.groups)"
        yield ReadOff("data.groups", how, "leave it out")


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
