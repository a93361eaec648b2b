"""Canaries: records that are changed to see how far a run's releases move with them."""

# D training rows, C classes

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raydpzv.data.table import Table
from raydpzv.errors import SpecError, suggest
from raydpzv.experiment.prepare import load_scenario
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.keys import Key
from raydpzv.registry import DATA_SOURCES

LABEL, FEATURES, TYPE, NEW_LABEL, ABSENT = "label", "features", "type", "new_label", "absent"
KINDS = {
    "replace": (LABEL, FEATURES, TYPE, NEW_LABEL),
    "labels": (LABEL, NEW_LABEL),
    "add_remove": (ABSENT,),
}
"""Neighbouring relation to the kinds of canaries that are neighbours under it and that an audit
takes by default.
"""
_ALL = (LABEL, FEATURES, TYPE, NEW_LABEL, ABSENT)
_FACTOR = -50.0
"""What a canary's features are multiplied by, as they were read."""


@dataclass(frozen=True)
class Canary:
    """One record that a neighbouring table has otherwise.

    row: its training row in the run; number: its row in the table as it was read; kind: "label",
    another one; "features", all of them times -50 (of token ids and categories: the ids counted
    from the other end); "type", a half more for each of its whole numbers, and its fractions
    rounded; "new_label", in the file a label that no other record has; "absent", its term is zero
    in every sum.
    """

    row: int
    number: int
    kind: str

    def change(self, table: Table) -> Table:
        """Return the table as it was read, with this record changed."""
        if self.kind == LABEL and table.values is not None:
            values = table.values.copy()
            values[self.number] = self.label(values[self.number], table.width)
            return replace(table, values=values)
        if self.kind == LABEL:
            labels = table.y.copy()
            labels[self.number] = self.label(labels[self.number], table.classes)
            return replace(table, y=labels)
        if self.kind in (FEATURES, TYPE):
            features, other = table.x.copy(), _other if self.kind == FEATURES else _other_type
            features[self.number] = other(table, features[self.number])
            return replace(table, x=features)
        return table

    def label(self, known: Any, classes: int) -> Any:
        """Return the changed record's label: the next class; of numbers the other one of 0 and 1,
        else 50 more.
        """
        if self.kind != LABEL:
            return known
        if isinstance(known, np.ndarray):
            return 1 - known if np.isin(known, (0, 1)).all() else known - _FACTOR
        return (known + 1) % classes

    def without(self, prepared: PreparedVertical) -> PreparedVertical:
        """Return a neighbour in which the record's term is zero, of a run in which it is a canary
        of that kind.

        Its features are no numbers at any client, and slopes that are none count as 0 in every
        release.
        """
        if self.kind != ABSENT:
            return prepared
        clients = []
        for client in prepared.clients:
            features = client.x_train.copy()
            features[self.row] = np.nan
            clients.append(replace(client, x_train=features))
        return replace(prepared, clients=tuple(clients))


def neighbour(run: PreparedVertical, canaries: Sequence[Canary]) -> PreparedVertical:
    """Return a run's scenario with its data as if all these records had been otherwise from the
    start.
    """

    def change(table: Table) -> Table:
        for canary in canaries:
            table = canary.change(table)
        return table

    changed = prepare_vertical(run.spec, run.secret, change, strangers(canaries))
    for canary in canaries:
        changed = canary.without(changed)
    return changed


def strangers(canaries: Sequence[Canary]) -> tuple[int, ...]:
    """Return the rows of the file whose label becomes one that no other record has."""
    return tuple(canary.number for canary in canaries if canary.kind == NEW_LABEL)


def classes_with(run: PreparedVertical, canary: Canary) -> int:
    """Return how many classes the neighbour's table has. Raises InputError if such a table is
    refused.
    """
    return load_scenario(run.spec, canary.change, strangers([canary])).split.train.width


def _other(table: Table, record: np.ndarray) -> np.ndarray:
    if table.vocabulary is not None:
        return table.vocabulary - 1 - record
    levels = np.array(table.levels or [0] * len(record)).reshape(-1, *[1] * (record.ndim - 1))
    return np.where(levels > 0, levels - 1 - record, _FACTOR * record).astype(record.dtype)


def _other_type(table: Table, record: np.ndarray) -> np.ndarray:
    whole = np.rint(record)
    levels = np.array(table.levels or [0] * len(record)).reshape(-1, *[1] * (record.ndim - 1))
    return np.where(levels > 0, record, np.where(record == whole, record + 0.5, whole)).astype(
        record.dtype
    )


def chosen(
    prepared: PreparedVertical,
    relation: str,
    *,
    count: int,
    rows: Sequence[int] = (),
    kinds: Sequence[str] = (),
    refusable: bool = False,
) -> list[Canary]:
    """Return canaries at the training rows given, or at `count` rows drawn from a fixed key, their
    kinds in turn.

    relation: what the run's neighbours differ in; kinds: () for those of the relation. refusable:
    whether the audit knows what to do with a table that no reader takes. Raises SpecError.
    """
    possible = refusable and DATA_SOURCES[prepared.spec.data.source].listed
    possible = possible and prepared.server.y_train.dtype.kind != "f"
    known = len(prepared.numbers)
    for row in rows:
        if not 0 <= row < known:
            raise SpecError(f"--row: wanted a training row, 0..{known - 1}, got {row}")
    if not 1 <= count <= known:
        raise SpecError(f"--canaries: wanted 1..{known}, the training rows, got {count}")
    for kind in kinds:
        _check_kind(kind, relation, prepared)
        if kind == NEW_LABEL and not possible:
            raise SpecError(
                '--kind: "new_label" goes with --by ledger and data whose labels data.classes '
                "lists (csv, parquet, "
                "multiview, tokens); use label"
            )
    ids = any(client.x_train.dtype.kind == "i" for client in prepared.clients)
    if ids and FEATURES in kinds:
        raise SpecError(
            '--kind: "features" goes with numbers, and a party\'s rows are ids (model.integers); '
            "use label or type"
        )
    drawn = (Key(0) / "audit" / "canaries").generator().permutation(known)[:count].tolist()
    typed = refusable and not DATA_SOURCES[prepared.spec.data.source].tokens
    able = {NEW_LABEL: possible, TYPE: typed, FEATURES: not ids}
    in_turn = itertools.cycle(kinds or [kind for kind in KINDS[relation] if able.get(kind, True)])
    return [
        Canary(row, int(prepared.numbers[row]), kind)
        for row, kind in zip(rows or sorted(drawn), in_turn, strict=False)
    ]


def _check_kind(kind: str, relation: str, prepared: PreparedVertical) -> None:
    if kind not in _ALL:
        raise SpecError(
            f'--kind: wanted {", ".join(_ALL)}, got "{kind}". {suggest(kind, _ALL)}'.rstrip()
        )
    if relation != "replace" and kind not in KINDS[relation]:
        raise SpecError(
            f'--kind: "{kind}" is no neighbour under privacy.relation = "{relation}"; use '
            f"{', '.join(KINDS[relation])}"
        )
    plan = prepared.privacy.plan
    if kind == ABSENT and (plan is None or plan.on != "mean"):
        raise SpecError(
            '--kind: "absent" goes with methods that noise a mean of clipped slopes, '
            f"{prepared.spec.method.name} does "
            "not; use label or features"
        )
