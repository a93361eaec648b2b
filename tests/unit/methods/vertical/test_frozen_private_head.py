"""Frozen clients with a head by DP-SGD: the released sum against autograd, and what reaches it of
other records.
"""

import re
from typing import Any

import numpy as np
import pytest
import torch

import raydpzv
from raydpzv.errors import SpecError
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.privacy.gdp import epsilon_of
from tests.helpers.loading import refusal
from tests.helpers.sound_runs import CLASSES, CLIENTS, WatchedGradient, sound, table

CLIP, LR = 0.4, 0.5
HEAD = (
    f"method={{name='frozen', batch=8, server='dp_sgd', server_lr={LR}, server_momentum=0.0}}",
    "model.head=linear",
    f"privacy.clip={CLIP}",
    "budget.updates=30",
)


def private_head(spec: Any, given: Any = ()) -> tuple[Any, list[Any], WatchedGradient]:
    """A server whose sums are looked at, and its clients."""
    experiment = prepare_vertical(spec)
    assert experiment.privacy.gradient is not None
    watched = WatchedGradient(experiment.privacy.gradient, given)
    server = experiment.server.make()
    server._release = watched  # type: ignore[attr-defined]
    watched.receipt = watched.how.receipt  # type: ignore[attr-defined]
    return server, [c.make() for c in experiment.clients], watched


def served(server: Any, clients: list[Any], rounds: int = 30) -> list[np.ndarray]:
    """Serve clients in turn; return the rows of each release."""
    rows = []
    for i in range(rounds):
        upload = clients[i % CLIENTS].work()
        (order,) = server.receive(upload)
        assert np.isnan(order.loss), "no training loss is computed"
        rows.append(upload.ids)
    return rows


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_the_sum_is_that_of_clipped_gradients_by_autograd_and_the_head_descends_by_its_release(
    tmp_path, engine
):
    spec = sound(table(tmp_path / "one.csv"), *HEAD, f"model.engine={engine}")
    server, clients, watched = private_head(spec)
    labels = torch.tensor(prepare_vertical(spec).server.y_train)
    width = CLASSES * CLIENTS
    sent = np.zeros((len(labels), width), np.float32)
    for i in range(4):
        before = torch.tensor(server.parameters())
        upload = clients[i % CLIENTS].work()
        server.receive(upload)
        m = upload.client
        sent[upload.ids, m * CLASSES : (m + 1) * CLASSES] = upload.body.values
        rows = torch.tensor(sent[upload.ids])
        total = torch.zeros(len(before), dtype=torch.float64)
        for row, label in zip(rows, labels[upload.ids], strict=True):
            w = before.clone().requires_grad_()
            logits = w[: CLASSES * width].reshape(CLASSES, width) @ row + w[CLASSES * width :]
            (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, label), w)
            total += gradient.double() * min(1.0, CLIP / float(gradient.double().norm()))
        np.testing.assert_allclose(watched.sums[i], total.numpy(), rtol=2e-5, atol=2e-6)
        step = before.numpy() - np.float32(LR) * watched.released[i]
        np.testing.assert_allclose(server.parameters(), step, rtol=1e-6, atol=1e-6)


def test_sums_without_the_record_are_bit_equal_under_forced_releases_and_not_if_the_head_leaks(
    tmp_path,
):
    one, two = table(tmp_path / "one.csv"), table(tmp_path / "two.csv", 3)

    def differing(leak: bool) -> tuple[int, int]:
        first = private_head(sound(one, *HEAD))
        other_spec = sound(two, *HEAD)
        if leak:
            leaky(first[0])
        rows = served(*first[:2])
        other = private_head(other_spec, first[2].released)
        if leak:
            leaky(other[0])
        assert all(np.array_equal(a, b) for a, b in zip(rows, served(*other[:2]), strict=True))
        moved = [
            not np.array_equal(x, y) for x, y in zip(first[2].sums, other[2].sums, strict=True)
        ]
        features = [
            np.concatenate(
                [c.x_train.reshape(len(c.x_train), -1) for c in prepare_vertical(sound(p)).clients],
                1,
            )
            for p in (one, two)
        ]
        (record,) = np.flatnonzero((features[0] != features[1]).any(1))
        inside = [record in ids for ids in rows]
        return (
            sum(m for m, i in zip(moved, inside, strict=True) if i),
            sum(m for m, i in zip(moved, inside, strict=True) if not i),
        )

    within, without = differing(leak=False)
    assert within > 2
    assert without == 0
    assert differing(leak=True)[1] > 5, "control: a head that also learns without noise"


def leaky(server: Any) -> None:
    """Have the head take a step without noise, too."""
    receive = server.receive

    def leaking(upload: Any) -> Any:
        orders = receive(upload)
        server.top.train(upload.ids)
        return orders

    server.receive = leaking


@pytest.mark.parametrize(("relation", "change"), [("replace", 2), ("add_remove", 1)])
def test_epsilon_is_that_of_the_releases_a_record_took_part_in(tmp_path, relation, change):
    spec = sound(table(tmp_path / "one.csv"), *HEAD, f"privacy.relation={relation}")
    run = raydpzv.run(spec)
    (claim,) = [
        c
        for c in run.summary["epsilon"]
        if c["adversary"] == "client" and c["relation"] == relation
    ]
    assert claim["holds"]
    for row in run.rows("release").to_pylist():
        assert row["sensitivity_add_remove"] == pytest.approx(CLIP / 8)
    experiment = prepare_vertical(spec)
    counts = np.zeros(len(experiment.server.y_train), int)
    clients, uploads = [c.make() for c in experiment.clients], run.rows("service").to_pylist()
    for row in uploads:
        counts[clients[row["client"]].work().ids] += 1
    z = experiment.privacy.gradient.multiplier
    expected = epsilon_of(change * np.sqrt(counts.max()) / z, claim["delta"])
    assert claim["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert "head's gradient" in claim["mechanism"]
    assert run.summary["private"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["privacy.mode=none"], ["method.server", 'privacy.mode = "proved"', '"sgd"']),
        (["privacy.head_clip=1.0"], ["privacy.head_clip", "privacy.clip"]),
        (["privacy.head_share=0.5"], ["privacy.head_share", "leave it out"]),
        (["data.split=stratified"], ['data.split = "plain"']),
    ],
)
def test_what_contradicts_it_is_refused(tmp_path, overrides, words):
    with refusal(SpecError, *map(re.escape, words)):
        sound(table(tmp_path / "one.csv"), *HEAD, *overrides)
