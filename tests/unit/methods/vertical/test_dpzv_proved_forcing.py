"""Transcript forcing from the raw table: releases are given out again on two tables that differ in
one record.

If nothing but releases and a record's own features reach what persists, every sum over rows without
that record is the same before its noise, bit for bit. Controls leave one premise of the proof out,
each of which must show.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydpzv.engine.split_model import HeadSettings
from raydpzv.experiment import privacy_setting
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.privacy.integer_release import integer_sum
from tests.helpers.sound_runs import sound, table, transcript

Spoil = Callable[[Any, list[Any]], None]
LINEAR = ("model.head=linear", "method.server_lr=0.5")
ADVERSE = (  # each with several releases of every record
    pytest.param((), id="frozen"),
    pytest.param(("model.engine=torch",), id="frozen-torch"),
    pytest.param(("method.clip_over=scalar",), id="scalar"),
    pytest.param(("method.gather=2", "budget.updates=90"), id="gathered"),
    pytest.param(("method.batches=poisson",), id="poisson"),
    pytest.param((*LINEAR, "method.server=joint"), id="joint"),
    pytest.param((*LINEAR, "method.server=joint", "model.engine=torch"), id="joint-torch"),
    pytest.param((*LINEAR, "method.server=dp_sgd", "privacy.head_clip=0.5"), id="dp_sgd"),
)
CHANGED = 3


def differing(
    folder: Path, *overrides: str, spoil: Spoil = lambda server, clients: None
) -> tuple[int, int, int]:
    """Return how many sums differ over rows without and with the changed record, and how many are
    without.
    """
    one, two = table(folder / "one.csv"), table(folder / "two.csv", CHANGED)
    at = training_row(one, two)
    first = transcript(sound(one, *overrides), spoil=spoil)
    again = transcript(sound(one, *overrides), first, spoil=spoil)
    other = transcript(sound(two, *overrides), first, spoil=spoil)
    assert again.slopes.sums.keys() == other.slopes.sums.keys() == first.ids.keys()
    assert all(np.array_equal(again.slopes.sums[a], first.slopes.sums[a]) for a in first.ids), (
        "control"
    )
    assert all(np.array_equal(first.ids[a], other.ids[a]) for a in first.ids), (
        "batches hang on no values"
    )
    without = {a for a, ids in first.ids.items() if at not in ids}
    changed = {
        a for a in first.ids if not np.array_equal(first.slopes.sums[a], other.slopes.sums[a])
    }
    if first.heads and other.heads:
        order = list(first.ids)
        pairs = zip(order, first.heads.sums, other.heads.sums, strict=True)
        changed |= {a for a, x, y in pairs if not np.array_equal(x, y)}
    return len(changed & without), len(changed - without), len(without)


def test_a_gathered_release_is_the_sum_over_all_its_uploads(tmp_path):
    apart: dict[tuple[int, int], np.ndarray] = {}

    def spoil(server: Any, clients: list[Any]) -> None:
        slopes = server._slopes

        def summing(client: int, body: Any, seeds: Any) -> Any:
            found = slopes(client, body, seeds)
            how = server._release.how
            part, _ = integer_sum(found, limit=how.limit, over=how.over)
            place = (client, next(counts[client]) // 4)
            apart[place] = apart.get(place, 0) + part
            return found

        counts = [itertools.count() for _ in clients]
        server._slopes = summing

    made = transcript(
        sound(table(tmp_path / "one.csv"), "method.gather=4", "budget.updates=90"), spoil=spoil
    )
    assert len(made.slopes.sums) > 8
    for place, released in made.slopes.sums.items():
        np.testing.assert_array_equal(released, apart[place])


def test_the_server_keeps_the_mean_of_both_ends_of_all_directions(tmp_path):
    bodies: list[Any] = []
    kept: list[np.ndarray] = []

    def spoil(server: Any, clients: list[Any]) -> None:
        receive, put = server.receive, server.top.put

        def receiving(upload: Any) -> Any:
            bodies.append(upload.body)
            return receive(upload)

        def putting(client: int, ids: np.ndarray, values_BE: np.ndarray, round: int) -> None:
            kept.append(np.array(values_BE))
            put(client, ids, values_BE, round)

        server.receive, server.top.put = receiving, putting

    transcript(sound(table(tmp_path / "one.csv"), "method.perturbations=2"), spoil=spoil)
    assert len(kept) > 20
    for body, values_BE in zip(bodies, kept, strict=True):
        np.testing.assert_allclose(
            values_BE, (body.plus + body.minus).mean(0) / 2, rtol=1e-5, atol=1e-6
        )
        assert np.abs(values_BE - body.plus.mean(0)).max() > 1e-4, (
            "control: one end of each direction"
        )


def training_row(one: Path, two: Path) -> int:
    """The number that the changed record has among the training rows."""
    parts = [np.concatenate([c.x_train.reshape(len(c.x_train), -1) for c in prepare_vertical(sound(p)).clients], 1)
             for p in (one, two)]  # fmt: skip
    (found,) = np.flatnonzero((parts[0] != parts[1]).any(1))
    return int(found)


@pytest.mark.parametrize("overrides", ADVERSE)
def test_sums_without_the_record_are_bit_equal_under_forced_releases(tmp_path, overrides):
    without, within, count = differing(tmp_path, *overrides)
    assert count > 20
    assert within > 2, "the record must be seen where it takes part"
    assert without == 0


@pytest.mark.parametrize("premise", ["data.scale=standard", "data.split=stratified"])
def test_control_what_is_fitted_on_the_table_moves_sums_without_the_record(
    tmp_path, monkeypatch, premise
):
    """A mode that let these pass would be found out; the other premises are kept."""
    monkeypatch.setattr(privacy_setting, "_fitted", lambda data: ())
    key, _, value = premise.partition("=")
    name = key.partition(".")[2]

    def fitted(path: Path) -> Any:
        spec = sound(path)
        changes = {name: value} | ({"centre": None, "spread": None} if name == "scale" else {})
        return spec.model_copy(update={"data": spec.data.model_copy(update=changes)})

    one, two = table(tmp_path / "one.csv"), table(tmp_path / "two.csv", CHANGED)
    first = transcript(fitted(one))
    other = transcript(fitted(two), first)
    differ = [
        a for a, s in first.slopes.sums.items() if not np.array_equal(s, other.slopes.sums[a])
    ]
    assert len(differ) > 0.9 * len(first.ids), (
        "batches of a tenth of the rows: most are without the record"
    )


@pytest.mark.parametrize("training", ["sgd", "zo"])
def test_control_a_head_that_learns_from_labels_is_caught(tmp_path, training):
    def spoil(server: Any, clients: list[Any]) -> None:
        top = server.top
        top._settings = HeadSettings(training, 0.5, smoothing=0.1)
        receive = server.receive

        def leaking(upload: Any) -> Any:
            orders = receive(upload)
            top.train(upload.ids)
            return orders

        server.receive = leaking

    without, _, count = differing(tmp_path, spoil=spoil)
    assert without > count / 2


def test_control_a_layer_that_mixes_the_records_of_a_batch_is_caught(tmp_path):
    """What BatchNorm does, which the program refuses: subtract the batch's mean."""

    def spoil(server: Any, clients: list[Any]) -> None:
        for client in clients:
            embed = client.bottom.embed_along
            client.bottom.embed_along = lambda *args, of=embed: (
                of(*args) - of(*args).mean(2, keepdims=True)
            )

    without, _, count = differing(tmp_path, spoil=spoil)
    assert without > count / 2
