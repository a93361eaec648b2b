"""Canaries: records that are changed to see how far a run's releases move with them."""

# D training rows, C classes

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raydpzv.data.table import Table
from raydpzv.errors import SpecError, suggest
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.keys import Key

LABEL, FEATURES, ABSENT = "label", "features", "absent"
KINDS = {
    "replace": (LABEL, FEATURES),
    "labels": (LABEL,),
    "add_remove": (ABSENT,),
}
"""Neighbouring relation to the kinds of canaries that are neighbours under it and that an audit takes by default."""
_FACTOR = -50.0
"""What a canary's features are multiplied by, as they were read."""


@dataclass(frozen=True)
class Canary:
    """One record that a neighbouring table has otherwise.

    row: its training row in the run; number: its row in the table as it was read; kind: "label", the next class;
    "features", all of them times -50 (of token ids and categories: the ids counted from the other end); "absent", its
    term is zero in every sum.
    """

    row: int
    number: int
    kind: str

    def change(self, table: Table) -> Table:
        """Return the table as it was read, with this record changed."""
        if self.kind == LABEL:
            labels = table.y.copy()
            labels[self.number] = (labels[self.number] + 1) % table.classes
            return replace(table, y=labels)
        if self.kind == FEATURES:
            features = table.x.copy()
            features[self.number] = _other(table, features[self.number])
            return replace(table, x=features)
        return table

    def without(self, prepared: PreparedVertical) -> PreparedVertical:
        """Return a neighbour in which the record's term is zero, of a run in which it is a canary of that kind.

        Its features are no numbers at any client, and slopes that are none count as 0 in every release.
        """
        if self.kind != ABSENT:
            return prepared
        clients = []
        for client in prepared.clients:
            features = client.x_train.copy()
            features[self.row] = np.nan
            clients.append(replace(client, x_train=features))
        return replace(prepared, clients=tuple(clients))


def _other(table: Table, record: np.ndarray) -> np.ndarray:
    if table.vocabulary is not None:
        return table.vocabulary - 1 - record
    levels = np.array(table.levels or [0] * len(record)).reshape(-1, *[1] * (record.ndim - 1))
    return np.where(levels > 0, levels - 1 - record, _FACTOR * record).astype(np.float32)


def chosen(
    prepared: PreparedVertical,
    relation: str,
    *,
    count: int,
    rows: Sequence[int] = (),
    kinds: Sequence[str] = (),
) -> list[Canary]:
    """Return canaries of every kind at the training rows given, or at `count` rows drawn from a fixed key.

    relation: what the run's neighbours differ in; kinds: () for those of the relation. Raises SpecError.
    """
    known = len(prepared.numbers)
    for row in rows:
        if not 0 <= row < known:
            raise SpecError(f"--row: wanted a training row, 0..{known - 1}, got {row}")
    if not 1 <= count <= known:
        raise SpecError(f"--canaries: wanted 1..{known}, the training rows, got {count}")
    for kind in kinds:
        if kind not in (*KINDS["replace"], ABSENT):
            hint = suggest(kind, (LABEL, FEATURES, ABSENT))
            raise SpecError(f'--kind: wanted label, features or absent, got "{kind}". {hint}'.rstrip())
        if relation != "replace" and kind not in KINDS[relation]:
            raise SpecError(
                f'--kind: "{kind}" is no neighbour under the run\'s relation "{relation}": use '
                f"{', '.join(KINDS[relation])}"
            )
    drawn = (Key(0) / "audit" / "canaries").generator().permutation(known)[:count].tolist()
    return [
        Canary(row, int(prepared.numbers[row]), kind)
        for row in (dict.fromkeys(rows) or sorted(drawn))
        for kind in (dict.fromkeys(kinds) or KINDS[relation])
    ]
