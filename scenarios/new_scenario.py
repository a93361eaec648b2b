"""The text of a scenario for one's own table, as `raydpzv new` proposes it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from raydpzv.data.column_facts import RARE, ColumnFacts, round_range
from raydpzv.data.files import one_line

_PUBLIC = "  # PUBLIC?"
"""Ends each line that was read from the data, though a proof wants it known without them."""


@dataclass(frozen=True)
class Proposal:
    """The content of a scenario. facts: of every column; parties: columns by party; private: with a proved ε.

    command: what was typed, without the options that are no more than yes or no.
    """

    file: Path
    facts: Mapping[str, ColumnFacts]
    target: str
    parties: Mapping[str, Sequence[str]]
    private: bool
    command: str

    @property
    def of_numbers(self) -> bool:
        """Whether what is predicted is a number, rather than a class."""
        return self.facts[self.target].values is None

    @property
    def features(self) -> list[ColumnFacts]:
        """The columns that parties hold."""
        return [self.facts[column] for columns in self.parties.values() for column in columns]

    @property
    def unused(self) -> list[ColumnFacts]:
        """The columns that nobody holds."""
        held = {self.target, *(column.name for column in self.features)}
        return [column for name, column in self.facts.items() if name not in held]


def scenario_text(proposal: Proposal, path: Path, *, active: bool) -> str:
    """Return the scenario file. active: public constants that were read from the data are in force, no comments."""
    lines = [
        f"# Made by: {proposal.command}{' --private' if proposal.private else ''}",
        f"# Run it:  raydpzv run {shlex.quote(one_line(path))}      (every setting: raydpzv list --settings)",
        f"title = {_toml(_title(proposal))}  # in lists and reports",
        "",
        *_data(proposal, path, active),
        "",
        "[split.parties]  # each party's columns; its name is shown in place of a client's number",
        *(f"{_key(party)} = {_toml(list(columns))}" for party, columns in proposal.parties.items()),
        "",
        "[model]",
        *_model(proposal),
        'head = "sum"  # the server adds the scores up and has nothing to train',
        'initial = "zero_last"  # every score is 0 before the first update',
        "",
        "[method]",
        'name = "dpzv"  # parties learn from scalars: how the loss changes along random directions',
        'batch = "all"  # every row in every release',
        f"lr = {_step_size(proposal)}  # step size",
        "momentum = 0.9  # share of a step that the next one keeps",
        _of_label(proposal, "smoothing", "1e-3", "length of a trial step along a direction", active),
        "perturbations = 40  # directions a release; fewer are faster",
        'server = "frozen"  # the sum is never trained',
        "",
        *(_privacy(proposal, active) if proposal.private else _no_privacy(proposal)),
        "",
        "[budget]",
        f"updates = 400  # {'ε is divided among them' if proposal.private else 'releases in all'}",
    ]
    return "\n".join(lines) + "\n"


def _model(proposal: Proposal) -> Iterator[str]:
    if proposal.of_numbers:
        yield 'loss = "squared_error"  # of the number that is predicted'
        yield 'bottom = "linear"  # each party sends its part of the number'
        yield "embedding = 1  # one number a row, which a sum as the head wants"
        return
    classes = proposal.facts[proposal.target].values or ()
    yield 'bottom = "linear"  # each party sends one score a class'
    yield f"embedding = {len(classes)}  # the number of classes, which a sum as the head wants"


def _step_size(proposal: Proposal) -> float:
    """Return a step size; of squared errors one that many features alike do not make too large."""
    if not proposal.of_numbers:
        return 1.0
    return float(f"{min(0.1 if proposal.private else 0.03, 1 / len(proposal.features)):.1g}")


def label_constants(proposal: Proposal) -> dict[str, float]:
    """Return the settings in units of the predicted number, read from its range; {} of classes."""
    if not proposal.of_numbers:
        return {}
    low, high = round_range(proposal.facts[proposal.target].low, proposal.facts[proposal.target].high)
    found = {"smoothing": 1e-3, "clip": 0.1} if proposal.private else {"smoothing": 1e-3}
    return {name: float(f"{share * (high - low) / 2:.4g}") for name, share in found.items()}


def _of_label(proposal: Proposal, name: str, usual: str, why: str, active: bool) -> str:
    """Return the line of a setting that is in units of the predicted number, where a number is predicted."""
    found = label_constants(proposal).get(name)
    if found is None:
        return f"{name} = {usual}  # {why}"
    if not proposal.private:
        return (
            f"{name} = {_toml(found)}  # {why}: a thousandth of half the range of {one_line(proposal.target)}"
        )
    return f"{'' if active else '# '}{name} = {_toml(found)}{_PUBLIC}"


def _data(proposal: Proposal, path: Path, active: bool) -> Iterator[str]:
    yield "[data]"
    yield f"source = {_toml('parquet' if proposal.file.suffix == '.parquet' else 'csv')}  # the form of the file"
    yield f"file = {_toml(_beside(proposal.file, path))}  # counts from this file's folder"
    yield f"target = {_toml(proposal.target)}  # the column to predict"
    if any(column.missing for column in proposal.features):
        yield 'missing = "mean"  # an empty cell becomes the mean of the training rows'
    if not proposal.private:
        yield from (
            f"{name} = {_toml(value)}  # read from the data" for name, value in _lists(proposal).items()
        )
        yield 'scale = "standard"  # to mean 0 and deviation 1 of the training rows'
        return
    yield 'split = "plain"  # test rows are drawn by their number, without a look at labels'
    yield 'scale = "public"  # (x - centre) / spread, by constants that are known without the data'
    yield from _warning(proposal, active)
    yield from (
        f"{'' if active else '# '}{name} = {_toml(value)}{_PUBLIC}"
        for name, value in public_constants(proposal).items()
    )


def _warning(proposal: Proposal, active: bool) -> Iterator[str]:
    file = one_line(proposal.file.name)
    yield f"# The lines marked PUBLIC? were READ FROM THE DATA ({file}). The proof of ε speaks of constants that are"
    yield "# known without the data: a class, a category or a range that one person's record has added reveals that"
    yield "# record, whatever ε says."
    yield from (f"# {line}" for line in rare(proposal))
    if active:
        yield "# --public-from-data confirmed that all of them are public knowledge. Replace each that is not."
    else:
        yield "# Replace each by what is public, then delete the # before it. Until then the scenario does not run."


def rare(proposal: Proposal) -> Iterator[str]:
    """Yield a line for each class and category that few records have, if the scenario is to be private.

    Of a column of numbers the scenario lists no values.
    """
    listed = (proposal.facts[proposal.target], *(c for c in proposal.features if not c.numeric))
    for column in listed if proposal.private else ():
        for value in column.rare:
            which = f'"{one_line(value)}" of column "{one_line(column.name)}"'
            yield f"rare: {which} is in fewer than {RARE} rows; is it public knowledge?"


def _lists(proposal: Proposal) -> dict[str, Any]:
    categories = {c.name: list(c.values or ()) for c in proposal.features if not c.numeric}
    values = proposal.facts[proposal.target].values
    classes = {"classes": list(values)} if values is not None else {}
    return classes | ({"categories": categories} if categories else {})


def public_constants(proposal: Proposal) -> dict[str, Any]:
    """Return the settings that were read from the data, though a proof wants them known without."""
    return _lists(proposal) | _scaling(proposal)


def _scaling(proposal: Proposal) -> dict[str, Any]:
    """Return centre and spread that scale each column of numbers into -1 to 1."""
    ends = {c.name: round_range(c.low, c.high) for c in proposal.features if c.numeric}
    if not ends:
        return {"centre": 0.0, "spread": 1.0}
    return {
        "centre": {name: (low + high) / 2 for name, (low, high) in ends.items()},
        "spread": {name: (high - low) / 2 for name, (low, high) in ends.items()},
    }


def _privacy(proposal: Proposal, active: bool) -> Iterator[str]:
    yield "[privacy]"
    yield 'mode = "proved"  # whole numbers with noise on their exact sum: the ε is proved'
    yield "epsilon = 1.0  # δ is 1/(10 D) for D training rows"
    yield 'relation = "replace"  # protected is one record, its label and all its features'
    why = "a record counts for at most this along a direction; noise is in proportion"
    yield _of_label(proposal, "clip", "0.1", why, active)


def _no_privacy(proposal: Proposal) -> Iterator[str]:
    yield f"# NOT PRIVATE: no noise is added. For a proved ε: {proposal.command} --private --force"


def _title(proposal: Proposal) -> str:
    how = "with a proved ε=1" if proposal.private else "without noise"
    return f"Own table at {', '.join(proposal.parties)}, DPZV {how}"


def _beside(file: Path, scenario: Path) -> str:
    """Return the file's path from the scenario's folder if it lies below that, else the whole path."""
    folder = scenario.parent.absolute()
    whole = Path(os.path.normpath(file.absolute()))
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _toml(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_toml(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
