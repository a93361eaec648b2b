"""FedKSeed beside its algorithm in plain numpy, and what a client that was away gets."""

# n seeds in the pool, K local steps, P perturbations, d = 650 parameters

from pathlib import Path

import numpy as np
import pytest

from raydpzv.errors import InputError, RunError
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.rebuild import rebuild
from raydpzv.keys import pool_seeds
from raydpzv.ledger.entries import Slice
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.replica import SeedSums
from raydpzv.wire.seeds import PoolScalars, PoolSums
from tests.helpers.softmax_by_hand import SoftmaxByHand

RADIUS, SEEDS = 0.02, 16
SETTINGS = (
    f"method.pool={SEEDS}",
    "method.lr=0.02",
    f"method.smoothing={RADIUS}",
    "method.local_steps=3",
    "method.lr_at=[[9, 0.01]]",
    "method.weights=rows",
    "method.perturbations=1",
)


def published(
    hand: SoftmaxByHand, rounds: int, *, shared: bool = False, forget: bool = False
) -> np.ndarray:
    """Algorithm 1: the model after so many rounds, float64 [d].

    The controls: shared seeds in a round in place of each client's own; forget: no local step moves
    the client.
    """
    pool = pool_seeds(hand.key, SEEDS)
    u_nD = np.stack([hand.direction(seed) for seed in pool.tolist()]).astype(np.float64)
    sums_n = np.zeros(SEEDS)
    for round in range(1, rounds + 1):
        lr, cohort = (0.02 if round < 9 else 0.01), hand.cohort(round)
        start, added_n = hand.x0 - sums_n @ u_nD, np.zeros(SEEDS)
        for client in cohort:
            own = start.copy()
            drawn = (
                hand.key / "pool draws" / (cohort[0] if shared else client) / round
            ).generator()
            for k, j in enumerate(drawn.integers(SEEDS, size=(3, 1))[:, 0].tolist()):
                plus, minus = (
                    hand.loss(own + s * RADIUS * u_nD[j], client, round, k) for s in (1, -1)
                )
                slope = (plus - minus) / (2 * RADIUS)
                own -= 0.0 if forget else lr * slope * u_nD[j]
                added_n[j] += lr * slope * hand.rows[client] / hand.rows[cohort].sum()
        sums_n += added_n
    return hand.x0 - sums_n @ u_nD


@pytest.mark.parametrize("law", ["gaussian", "rademacher"])
def test_a_run_is_the_published_algorithm(law: str) -> None:
    hand = SoftmaxByHand("fedkseed", *SETTINGS, f"method.direction={law}")
    ours, theirs = hand.run().models[MODEL], published(hand, 20)
    moved = np.linalg.norm(theirs - hand.x0)
    assert moved > 0.5
    assert np.linalg.norm(ours - theirs) < 1e-4 * moved
    assert np.linalg.norm(ours - published(hand, 20, shared=True)) > 0.1 * moved
    assert np.linalg.norm(ours - published(hand, 20, forget=True)) > 0.02 * moved


def test_catching_up_takes_one_scalar_a_seed_however_long_a_client_was_away() -> None:
    """Of DeComFL, the control, the message grows with every round that a client missed."""
    found = {}
    for method, settings in (("fedkseed", SETTINGS), ("decomfl", ("method.perturbations=3",))):
        hand, lacked = SoftmaxByHand(method, *settings, "method.cohort=2"), dict[int, set[int]]()
        for orders, _ in hand.play(20)[1]:
            for order in orders:
                lacked.setdefault(order.sync.missed, set()).add(order.body.wire_bytes)
        found[method] = lacked
    assert max(found["fedkseed"]) > 8
    assert set().union(*found["fedkseed"].values()) == {4 * SEEDS}
    assert found["decomfl"] == {missed: {8 + (8 + 4 * 3) * missed} for missed in found["decomfl"]}


def test_the_sums_alone_make_the_bits_of_the_model() -> None:
    """x_0 less each sum along its seed, by ascending seed, one product and one sum per element."""
    hand = SoftmaxByHand("fedkseed", *SETTINGS)
    _, played = hand.play(12)
    pool, run = pool_seeds(hand.key, SEEDS), hand.run()
    assert np.array_equal(pool, np.unique(pool))
    last = SoftmaxByHand("fedkseed", *SETTINGS, "budget.updates=11").run().models[MODEL]
    (orders, uploads), x = played[11], hand.x0.copy()
    assert isinstance(orders[0].body, PoolSums)
    for seed, value in zip(pool.tolist(), orders[0].body.sums, strict=True):
        x = x - value * hand.direction(seed)
    assert np.array_equal(x, last)
    assert not np.array_equal(x, run.models[MODEL])
    for upload in uploads:
        assert isinstance(upload.body, PoolScalars)
        assert upload.body.places.shape == upload.body.values.shape == (3, 1)
        assert upload.body.wire_bytes == len(upload.body.encode()) == 6 * 3


@pytest.mark.parametrize("seeds", [SEEDS, 700, 1400])
def test_a_rebuild_from_ledger_and_snapshots_has_the_same_bits(tmp_path: Path, seeds: int) -> None:
    """Sums fill one row of a snapshot or several: a snapshot's state, and what follows it, is the
    ledger's.
    """
    hand = SoftmaxByHand("fedkseed", *SETTINGS, f"method.pool={seeds}")
    last = hand.run(out=tmp_path / "plain").models[MODEL]
    kept = SoftmaxByHand("fedkseed", *SETTINGS, f"method.pool={seeds}", "record.snapshots=7")
    assert np.array_equal(kept.run(out=tmp_path / "kept").models[MODEL], last)
    with Ledger.open(tmp_path / "kept" / "ledger") as ledger:
        found = ledger.load_snapshot(MODEL, 20)
    assert (found[0], found[1]["state"].shape) == (14, (1 + -(-seeds // 650), 650))
    for folder in ("plain", "kept"):
        assert np.array_equal(rebuild(tmp_path / folder).models[MODEL], last)
        assert np.array_equal(
            rebuild(tmp_path / folder, 17).models[MODEL],
            rebuild(tmp_path / "plain", 17).models[MODEL],
        )


def test_sums_add_in_the_ledgers_order_and_refuse_other_seeds() -> None:
    def updates(seeds: list[int], scalars: list[float]) -> Slice:
        count = len(seeds)
        same = [np.full(count, value, kind) for value, kind in ((1, "i8"), (-1, "i4"), (0, "i8"))]
        return Slice(
            0, 1, *same, np.arange(count), np.zeros(count, "i4"),
            np.array(seeds, np.uint64), np.array(scalars, np.float32), np.full(count, 1.0),
        )  # fmt: skip

    sums = SeedSums(np.array([3, 5], np.uint64))
    sums.add(updates([5, 5, 3, 5], [1e8, 1.0, 2.0, -1e8]))
    assert sums.values.tolist() == [2.0, 0.0]  # 1e8 + 1 is 1e8 in float32
    assert [list(part) for part in sums.step[:2]] == [[3], [2.0]]
    for outside in (4, 9):
        with pytest.raises(RunError, match="not of this run's pool"):
            sums.add(updates([outside], [1.0]))


def test_a_ledger_of_another_pool_is_refused(tmp_path: Path) -> None:
    hand = SoftmaxByHand("fedkseed", *SETTINGS)
    header = hand.prepared.plan.header()
    other = SoftmaxByHand("fedkseed", *SETTINGS, "method.pool=17").prepared.plan.header()
    Ledger.create(tmp_path / "ledger", header).close()
    Ledger.open(tmp_path / "ledger", expect=header).close()
    with pytest.raises(InputError, match="pool is 16, wanted 17"):
        Ledger.open(tmp_path / "ledger", expect=other)
