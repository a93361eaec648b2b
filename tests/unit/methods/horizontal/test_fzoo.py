"""FZOO beside its update in plain numpy."""

# K local steps, P perturbations, d parameters

from pathlib import Path

import numpy as np
import pytest

from raydpzv.errors import SpecError
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.rebuild import rebuild
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.fzoo import normalised
from raydpzv.methods.horizontal.seeded import round_seeds, settings_of
from tests.helpers.softmax_by_hand import SoftmaxByHand

RADIUS = 0.02
SETTINGS = (
    "method.lr=1e-3",
    f"method.smoothing={RADIUS}",
    "method.perturbations=4",
    "method.local_steps=2",
)


def published(
    hand: SoftmaxByHand, rounds: int, *, ddof: int = 1, together: bool = False
) -> np.ndarray:
    """The model after so many rounds, float64 [d]; together: the control's σ is that of all
    clients' losses.
    """
    x, method, settings = (
        hand.x0.astype(np.float64),
        hand.method,
        settings_of(hand.method, hand.key),
    )
    for round in range(1, rounds + 1):
        u_KPD = [
            hand.directions(seed, 4).astype(np.float64)
            for seed in round_seeds(settings, round).tolist()
        ]
        found = []
        for client in hand.cohort(round):
            own, c_KP = x.copy(), np.zeros((2, 4))
            for k, u_PD in enumerate(u_KPD):
                base = hand.loss(own, client, round, k)
                ends_P = np.array([hand.loss(own + RADIUS * u, client, round, k) for u in u_PD])
                sigma = 1.0 if together else ends_P.std(ddof=ddof)
                c_KP[k] = (ends_P - base) / (RADIUS * sigma)
                own -= method.lr / 4 * c_KP[k] @ u_PD
            found.append(c_KP)
        mean_KP = np.mean(found, axis=0)
        if together:
            mean_KP /= RADIUS * np.std(found)
        for c_P, u_PD in zip(mean_KP, u_KPD, strict=True):
            x -= method.lr / 4 * c_P @ u_PD
    return x


@pytest.mark.parametrize("law", ["rademacher", "gaussian"])
def test_a_run_is_the_published_update_averaged(law: str) -> None:
    hand = SoftmaxByHand("fzoo", *SETTINGS, f"method.direction={law}")
    ours, theirs = hand.run().models[MODEL], published(hand, 20)
    moved = np.linalg.norm(theirs - hand.x0)
    assert moved > 1
    assert np.linalg.norm(ours - theirs) < 1e-3 * moved
    # the controls: the other standard deviation, and one for all clients
    assert np.linalg.norm(ours - published(hand, 20, ddof=0)) > 0.05 * moved
    assert np.linalg.norm(ours - published(hand, 20, together=True)) > 0.05 * moved


def test_the_scale_of_the_loss_moves_nothing() -> None:
    slopes_MP = np.array([[1.0, -2.0, 0.5, 4.0], [3.0, 3.0, -1.0, 0.0]])
    assert normalised(1000 * slopes_MP, 0.1) == pytest.approx(normalised(slopes_MP, 0.1), rel=1e-12)


def test_equal_losses_move_nothing_and_no_number_stays_none() -> None:
    found = normalised(np.array([[2.0, 2.0, 2.0], [1.0, np.nan, 2.0], [1.0, 2.0, 3.0]]), 0.5)
    assert found[0].tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(found[1]).all()
    assert found[2] == pytest.approx([2.0, 4.0, 6.0])


@pytest.mark.parametrize(
    "more", [(), ("method.asynchronous=true", "method.local_steps=1", "clock.compute=0.3")]
)
def test_a_rebuild_needs_the_ledger_alone(tmp_path: Path, more: tuple[str, ...]) -> None:
    hand = SoftmaxByHand("fzoo", *SETTINGS, *more)
    run = hand.run(out=tmp_path / "run")
    assert np.array_equal(rebuild(tmp_path / "run").models[MODEL], run.models[MODEL])
    with Ledger.open(tmp_path / "run" / "ledger") as ledger:
        assert ledger.version == 20
        assert set(ledger.since(0).lr.tolist()) == {1e-3}


def test_one_direction_has_no_spread_and_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"method\.perturbations: wanted greater than or equal to 2"
    ):
        SoftmaxByHand("fzoo", "method.perturbations=1")


def test_pulling_clients_take_no_local_steps() -> None:
    with pytest.raises(
        SpecError, match=r"method\.local_steps: has no meaning with method.asynchronous"
    ):
        SoftmaxByHand("fzoo", *SETTINGS, "method.asynchronous=true")
