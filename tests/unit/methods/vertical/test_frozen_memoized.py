"""Frozen clients against the server: every row noised once and repeated, and no more than that
leaves a client.
"""

# D rows, N held-out rows, E embedding width

import functools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import raydpzv
from raydpzv.errors import RunError, SpecError
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.keys import Key
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.vertical.row_release import MemoizedRelease
from raydpzv.privacy import integer_release
from raydpzv.privacy.integer_release import (
    GRID,
    IntegerRelease,
    release_integers,
    release_rows_once,
)
from raydpzv.sim.privacy_filter import privacy_filter
from raydpzv.wire.messages import Start

RUN = (
    "data={source='digits', scale='public', centre=0.35, spread=0.2, split='plain'}",
    "model={bottom='linear', embedding=16, initial='orthogonal_last', head='linear'}",
    "method.server=discriminant",
    "method.batch=all",
    "privacy={mode='proved', adversary='server', epsilon=8.0, clip=1.0}",
    "budget.updates=40",
    "evaluate.every=40",
)
ROWS = (Key(2) / "rows").generator().standard_normal((4000, 3)).astype(np.float32)


def source(name: str) -> Callable[[int], bytes]:
    return (Key(9) / name).generator().bytes


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise from a seed in place of the system's, so that a test's verdict is always the same."""
    monkeypatch.setattr(
        integer_release,
        "release_integers",
        functools.partial(release_integers, source=source("frozen")),
    )


def uploads(prepared: PreparedVertical, client: int, count: int) -> list[Upload]:
    role = prepared.clients[client].make()
    return [role.process(Order(client, Start())) for _ in range(count)]


def test_a_row_is_noised_once_and_repeated_for_ever(seeded: None) -> None:
    release = MemoizedRelease(IntegerRelease(1.0, 1, 2.0, 1), len(ROWS))
    first, receipts = release.release(np.arange(10), ROWS[:10])
    assert [r.ids.tolist() for r in receipts] == [list(range(10))]
    assert receipts[0].receipt.batch == 10
    again, none = release.release(np.array([3, 9]), ROWS[[3, 9]])
    assert np.array_equal(again, first[[3, 9]])
    assert none == ()
    mixed, some = release.release(np.array([12, 3, 11]), ROWS[[12, 3, 11]])
    assert np.array_equal(mixed[1], first[3])
    assert [r.ids.tolist() for r in some] == [[12, 11]]
    other = MemoizedRelease(IntegerRelease(1.0, 1, 2.0, 1), len(ROWS)).release(
        np.arange(10), ROWS[:10]
    )[0]
    assert not np.any(first == other), "control: another client's noise is another"


def test_what_is_sent_is_the_clipped_row_and_noise_of_the_law(seeded: None) -> None:
    limit, z = 0.5, 3.0
    sent, receipt = release_rows_once(ROWS, IntegerRelease(limit, 1, z, 1))
    clipped = ROWS * np.minimum(1, limit / np.linalg.norm(ROWS, axis=1, keepdims=True))
    noise = ((sent - clipped) / (z * limit)).ravel()
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    for wrong in (0.9, 1.1):
        assert stats.kstest(noise, stats.norm(0, wrong).cdf).pvalue < 1e-6
    assert np.array_equal(
        np.rint(sent / (limit / GRID)).astype(np.float32) * np.float32(limit / GRID), sent
    )
    assert (receipt.mechanism, receipt.sigma) == ("rounded gaussian", z * GRID)
    assert (receipt.sensitivity_replace, receipt.sensitivity_add_remove) == (2 * GRID, GRID)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30])
def test_no_row_is_longer_than_the_sensitivity_says(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes into the noise: whole numbers of norm at most G, whatever was rounded; not a number
    counts as zero.
    """
    seen: list[np.ndarray] = []

    def spy(sums_P: np.ndarray, how: IntegerRelease, **of: Any) -> tuple[np.ndarray, Any]:
        seen.append(sums_P)
        return release_integers(sums_P, how, **of)

    monkeypatch.setattr(integer_release, "release_integers", spy)
    rows = ROWS * np.float32(scale)
    rows[7, 1] = np.nan
    _, receipt = release_rows_once(rows, IntegerRelease(0.7, 1, 1.0, 1))
    whole = seen[0].reshape(rows.shape)
    assert whole.dtype == np.int64
    assert (whole**2).sum(1).max() <= GRID**2
    assert not whole[7].any()
    assert receipt.nonfinite == 1
    if scale >= 1:
        assert (whole**2).sum(1).max() > 0.99 * GRID**2, "control: rows reach the limit"


def neighbours() -> tuple[PreparedVertical, PreparedVertical, int]:
    """A run and the same with one record's features at client 0 replaced; the record's row."""
    prepared, other = (prepare_vertical(raydpzv.load("frozen", RUN)) for _ in range(2))
    row = 17
    other.clients[0].x_train[row] = -40.0
    return prepared, other, row


def test_a_replaced_record_moves_its_own_row_alone(
    seeded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, other, row = neighbours()
    sent = []
    for run in (prepared, other):
        monkeypatch.setattr(
            integer_release,
            "release_integers",
            functools.partial(release_integers, source=source("twice")),
        )
        sent.append(uploads(run, 0, 1)[0])
    here, there = sent
    differ = here.body.ids[np.any(here.body.values != there.body.values, axis=1)]
    assert differ.tolist() == [row]
    moved = np.linalg.norm((here.body.values - there.body.values).astype(np.float64))
    assert moved <= 2.0 + 1e-5
    assert moved > 0.5, "control: the record did change"


def test_held_out_embeddings_depend_on_no_record() -> None:
    """VAFL's do (test_vafl_held_out.py): its models are trained on raw features."""
    prepared, other, _ = neighbours()
    roles = [run.clients[0].make() for run in (prepared, other)]
    before = [role.evaluate().body.values for role in roles]
    for role in roles:
        role.process(Order(0, Start()))
    after = [role.evaluate().body.values for role in roles]
    assert np.array_equal(before[0], before[1])
    assert np.array_equal(after[0], after[1])
    assert np.array_equal(before[0], after[0])


@pytest.mark.slow
def test_accuracy_at_epsilon_8_on_digits(seeded: None) -> None:
    """Median of 5 seeds."""

    def median(epsilon: float) -> float:
        runs = [
            raydpzv.run(
                raydpzv.load("frozen", [*RUN, f"privacy.epsilon={epsilon}", f"seed={seed}"])
            )
            for seed in range(5)
        ]
        assert all(
            c["epsilon"] == pytest.approx(epsilon) for run in runs for c in run.summary["epsilon"]
        )
        return statistics.median(run.summary["accuracy"] for run in runs)

    assert median(8.0) >= 0.82
    assert median(3.0) < 0.8, "control: noise costs"


def test_both_engines_fit_the_same_head(seeded: None) -> None:
    heads = []
    for engine in ("torch", "compiled"):
        prepared = prepare_vertical(raydpzv.load("frozen", [*RUN, f"model.engine={engine}"]))
        server = prepared.server.make()
        generator = (Key(5) / "head").generator()
        for client in range(4):
            ids = np.arange(1437, dtype=np.int32)
            values = generator.standard_normal((1437, 16)).astype(np.float32)
            server.top.put(
                client, ids if client else ids[5:], values if client else values[5:], client + 1
            )
        before = server.top.parameters()
        server.top.fit(0.25)
        heads.append(server.top.parameters())
        assert not np.array_equal(before, heads[-1])
    assert np.array_equal(*heads)


def test_its_account_is_one_release_a_record_however_long_it_runs() -> None:
    short, long = (
        raydpzv.run(
            raydpzv.load("frozen", [*RUN, "method.batch=64", f"budget.updates={n}"])
        ).summary
        for n in (30, 300)
    )
    assert [c["epsilon"] for c in short["epsilon"]] == [c["epsilon"] for c in long["epsilon"]]
    assert long["private"] is False
    assert "labels" in long["private_reason"]


def test_a_row_that_is_noised_twice_ends_the_run() -> None:
    prepared = prepare_vertical(raydpzv.load("frozen", RUN))
    account = privacy_filter(prepared.privacy.claims)
    loss = account.charge(0, np.array([1, 2]), 1)
    assert loss.client == pytest.approx(prepared.privacy.claims.mu)
    account.charge(1, np.array([2]), 1)
    with pytest.raises(RunError, match="a second time"):
        account.charge(0, np.array([2]), 1)


@pytest.mark.parametrize(
    ("scenario", "change", "said"),
    [
        (
            "digits_private",
            "privacy.adversary=server",
            "frozen clients, whose rows are noised once",
        ),
        (
            "digits_dpzv",
            "privacy={mode='proved', adversary='server', epsilon=1.0, clip=1.0}",
            "frozen clients",
        ),
        ("frozen", "method.server=sgd", "frozen clients"),
        ("frozen", "privacy.adversary=client", 'wanted "server"'),
        ("frozen", "privacy.relation=labels", "labels are the server's"),
        ("frozen", "privacy.noise=seeded", "seeded"),
        ("frozen", "privacy.noise_multiplier=2.0", "exactly one"),
        ("frozen", "budget.epsilon=3.0", "noised once"),
        ("frozen", "privacy.head_share=0.2", "dp_sgd"),
        ("frozen", "model.head=mlp", 'wanted "linear"'),
        ("frozen", "data.scale=standard", "public"),
        ("frozen", "data.split=stratified", "plain"),
        ("frozen", "privacy.delta=0.01", "1/D"),
        ("frozen", "privacy.mode=paper", "adds no noise"),
    ],
)
def test_what_does_not_go_together_is_refused(scenario: str, change: str, said: str) -> None:
    given = RUN if scenario == "frozen" else ()
    if change == "privacy.mode=paper":
        change = "privacy={mode='paper', sigma=1.0, delta=1e-5, clip=1.0}"
    if change.startswith("data."):
        given = (
            *given[1:],
            "data={source='digits', centre=0.35, spread=0.2, scale='public', split='plain'}",
        )
        change = {
            "data.scale=standard": "data={source='digits', scale='standard', split='plain'}",
            "data.split=stratified": "data.split=stratified",
        }[change]
    with pytest.raises(SpecError, match=said):
        prepare_vertical(raydpzv.load(scenario, [*given, change]))
