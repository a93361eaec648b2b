"""What of a table depends on other records before any release: lists that are read off it, scaling,
and the split.

No ε is proved of a run in which one record moves what the others are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from raydpzv.foreign import is_foreign
from raydpzv.registry import DATA_SOURCES, LOSSES
from raydpzv.settings.sections_data import DataSection


@dataclass(frozen=True)
class ReadOff:
    """What is read off the data. setting: which decides it; how: a clause; cure: what to give."""

    setting: str
    how: str
    cure: str


Goal = tuple[str, str | None]
"""A loss by name, and what a user's own takes: "classes", "numbers", or None, as the labels' type
says.
"""
_CLASSES = ("cross_entropy", None)


def of_numbers(goal: Goal) -> bool:
    """Return whether labels are numbers, as far as settings say."""
    loss, targets = goal
    if is_foreign(loss):
        return targets == "numbers"
    return loss not in ("cross_entropy", "cox") and LOSSES[loss].labels == "numbers"


def read_off(data: DataSection, goal: Goal = _CLASSES) -> Iterator[ReadOff]:
    """Yield each list that a data section leaves to its records, and whether labels are numbers if
    these decide it.
    """
    listed = DATA_SOURCES[data.source].listed
    if is_foreign(goal[0]) and goal[1] is None and listed:
        yield ReadOff(
            "model.targets",
            "whether labels are classes or numbers is read off them",
            'say what your own loss takes, "classes" or "numbers"',
        )
    elif data.labels is None and listed and goal[0] != "cox" and not of_numbers(goal):
        yield ReadOff(
            "data.classes",
            "classes are numbered by the labels that occur",
            'list the labels that everybody knows, such as ["ill", "well"]',
        )
    if columns := [
        column for column in data.category_columns if column not in data.public_categories
    ]:
        yield ReadOff(
            "data.categories",
            "categories are read off the training rows",
            f'give a table that lists each column\'s values, such as {{"{columns[0]}" = ["a", '
            f'"b"]}}',
        )


def fitted(data: DataSection, goal: Goal = _CLASSES) -> Iterator[ReadOff]:
    """Yield each way in which one record moves what others are before any release."""
    if data.scale in ("standard", "unit"):
        yield ReadOff(
            "data.scale",
            "features are scaled by what is fitted on the training rows (data.scale = "
            f'"{data.scale}")',
            'use data.scale = "public" with data.centre and data.spread, or "none"',
        )
    if data.missing == "mean":
        how = 'gaps are filled in by the training rows (data.missing = "mean")'
        yield ReadOff("data.missing", how, "give a table of public constants by column")
    if how := DATA_SOURCES[data.source].fitted:
        yield ReadOff("data.source", how, "use data without that")
    for found in read_off(data, goal):
        yield replace(found, how=f"{found.how} (set {found.setting})")
    if data.split == "stratified":
        how = 'rows are drawn by class, which looks at all labels (data.split = "stratified")'
        yield ReadOff("data.split", how, 'use data.split = "plain"')
    if data.groups:
        how = "which rows are held out depends on a column's values (data.groups)"
        yield ReadOff("data.groups", how, "leave it out")


def stated_lists(data: DataSection, goal: Goal = _CLASSES) -> tuple[str, ...]:
    """Return what is public of labels and categories, a line each, or which setting is missing."""
    missing = {found.setting: found for found in read_off(data, goal)}
    classes = "public, from data.classes" if data.labels else "public, the data set's own"
    lines = {"data.classes": f"classes: {classes}"}
    if is_foreign(goal[0]):
        lines = {"model.targets": f"labels: {goal[1]}, from model.targets"} | lines
    if of_numbers(goal) or goal[0] == "cox" or "model.targets" in missing:
        lines.pop("data.classes")
    if columns := ", ".join(data.category_columns):
        lines["data.categories"] = f"categories of {columns}: public, from data.categories"
    return tuple(
        f"NOT public: {missing[setting].how}; {setting}: {missing[setting].cure}"
        if setting in missing
        else line
        for setting, line in lines.items()
    )
