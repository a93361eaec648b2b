"""The text of a scenario for one's own table, as `raydpzv new` proposes it; it is
`templates/own_table.toml.jinja`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from raydpzv.data.column_facts import EPOCH, RARE, ColumnFacts, round_range
from raydpzv.data.files import one_line
from raydpzv.data.table_files import CsvForm

_NO_VALUE = "none"
"""The category of an empty cell."""
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Proposal:
    """The content of a scenario."""

    file: Path
    form: CsvForm
    """How the file is written."""
    facts: Mapping[str, ColumnFacts]
    """Of every column."""
    target: str
    parties: Mapping[str, Sequence[str]]
    """Columns by party."""
    private: bool
    """With a proved ε?"""
    command: str
    """What was typed, without the options that are no more than yes or no."""

    @property
    def of_numbers(self) -> bool:
        """Whether what is predicted is a number, rather than a class."""
        return self.facts[self.target].values is None

    @property
    def features(self) -> list[ColumnFacts]:
        """The columns that parties hold."""
        return [self.facts[column] for columns in self.parties.values() for column in columns]

    @property
    def dates(self) -> dict[str, str]:
        """The columns of dates that parties hold, and since when their days count."""
        return {column.name: EPOCH for column in self.features if column.dates}

    @property
    def unused(self) -> list[ColumnFacts]:
        """The columns that nobody holds."""
        held = {self.target, *(column.name for column in self.features)}
        return [column for name, column in self.facts.items() if name not in held]


def scenario_text(proposal: Proposal, path: Path, *, active: bool) -> str:
    """Return the scenario file. active: public constants that were read from the data are in force,
    no comments.
    """
    text = _template().render(
        proposal=proposal,
        place=shlex.quote(one_line(path)),
        title=_title(proposal),
        source="parquet" if proposal.file.suffix == ".parquet" else "csv",
        file=_beside(proposal.file, path),
        hidden="" if active or not proposal.private else "# ",
        active=active,
        rare=list(rare(proposal)),
        constants=public_constants(proposal) if proposal.private else _lists(proposal),
        label_constants=label_constants(proposal),
        confirmed=confirmed(proposal),
        lr=_step_size(proposal),
    )
    # names in comments may have control characters, which TOML forbids; its strings escape them
    # already
    return _FORBIDDEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


@cache
def _template() -> jinja2.Template:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("scenarios"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"toml": _toml, "key": _key, "one_line": one_line}
    return made.get_template("own_table.toml.jinja")


def _step_size(proposal: Proposal) -> float:
    """Return a step size; of squared errors one that many features alike do not make too large."""
    if not proposal.of_numbers:
        return 1.0
    return float(f"{min(0.1 if proposal.private else 0.03, 1 / len(proposal.features)):.1g}")


def label_constants(proposal: Proposal) -> dict[str, float]:
    """Return the settings in units of the predicted number, read from its range; {} of classes."""
    if not proposal.of_numbers:
        return {}
    low, high = round_range(
        proposal.facts[proposal.target].low, proposal.facts[proposal.target].high
    )
    found = {"smoothing": 1e-3, "clip": 0.1} if proposal.private else {"smoothing": 1e-3}
    return {name: float(f"{share * (high - low) / 2:.4g}") for name, share in found.items()}


def rare(proposal: Proposal) -> Iterator[str]:
    """Yield a line for each class and category that few records have, if the scenario is to be
    private.

    Of a column of numbers the scenario lists no values.
    """
    listed = (proposal.facts[proposal.target], *(c for c in proposal.features if not c.numeric))
    for column in listed if proposal.private else ():
        for value in column.rare:
            which = f'"{one_line(value)}" of column "{one_line(column.name)}"'
            yield f"rare: {which} is in fewer than {RARE} rows; is it public knowledge?"


def _lists(proposal: Proposal) -> dict[str, Any]:
    categories = {c.name: _values(proposal, c) for c in proposal.features if not c.numeric}
    values = proposal.facts[proposal.target].values
    classes = {"classes": list(values)} if values is not None else {}
    return classes | ({"categories": categories} if categories else {})


def public_constants(proposal: Proposal) -> dict[str, Any]:
    """Return the settings that were read from the data, though a proof wants them known without."""
    fillers = _fillers(proposal)
    return _lists(proposal) | _scaling(proposal) | ({"missing": fillers} if fillers else {})


def _fillers(proposal: Proposal) -> dict[str, Any]:
    """Return what empty cells count as: of numbers the middle of the range, of names a value of
    their own.
    """
    return {c.name: _middle(c) if c.numeric else _NO_VALUE for c in proposal.features if c.missing}


def _values(proposal: Proposal, column: ColumnFacts) -> list[Any]:
    """Return a category's values: if gaps are to be public, a word such as NA is one, and so is
    none.
    """
    added = [column.gap_word, _NO_VALUE] if column.missing and proposal.private else []
    return list(dict.fromkeys([*(column.values or ()), *filter(None, added)]))


def _middle(column: ColumnFacts) -> float:
    return sum(round_range(column.low, column.high)) / 2


def confirmed(proposal: Proposal) -> list[str]:
    """Return the settings that are public by the user's word alone."""
    return [*public_constants(proposal), *label_constants(proposal)]


def _scaling(proposal: Proposal) -> dict[str, Any]:
    """Return centre and spread that scale each column of numbers into -1 to 1."""
    ends = {c.name: round_range(c.low, c.high) for c in proposal.features if c.numeric}
    if not ends:
        return {"centre": 0.0, "spread": 1.0}
    return {
        "centre": {name: (low + high) / 2 for name, (low, high) in ends.items()},
        "spread": {name: (high - low) / 2 for name, (low, high) in ends.items()},
    }


def _title(proposal: Proposal) -> str:
    how = "with a proved ε" if proposal.private else "without noise"
    return f"Own table at {', '.join(proposal.parties)}, DPZV {how}"


def _beside(file: Path, scenario: Path) -> str:
    """Return the file's path from the scenario's folder if it lies below that, else the whole
    path.
    """
    folder = scenario.parent.absolute()
    whole = Path(os.path.normpath(file.absolute()))
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _toml(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_key(name)} = {_toml(part)}" for name, part in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n").replace("\t", "\\t")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
