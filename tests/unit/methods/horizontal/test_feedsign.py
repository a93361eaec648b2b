"""FeedSign beside its algorithm in plain numpy, and its bits on the wire."""

# K local steps, P perturbations, d parameters

import numpy as np
import pytest

from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.errors import RunError
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.rebuild import rebuild
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.feedsign import feedsign_settings, packed, unpacked
from raydpzv.methods.horizontal.seeded import round_seeds
from raydpzv.wire.seeds import MissedSigns, Signs
from tests.helpers.softmax_by_hand import SoftmaxByHand

SETTINGS = (
    "method.lr=0.02",
    "method.lr_at=[[9, 0.01]]",
    "method.perturbations=3",
    "method.local_steps=2",
)


def published(hand: SoftmaxByHand, rounds: int, *, tie: int = 1, mean: bool = False) -> np.ndarray:
    """Algorithm 1: the model after so many rounds, float32 [d]. mean: the controls' server averages
    the slopes.
    """
    method, settings = hand.method, feedsign_settings(hand.method, hand.key)
    x, count = hand.x0.copy(), method.perturbations
    weights = hand.rows if method.weights == "rows" else np.ones(len(hand.rows))
    for round in range(1, rounds + 1):
        lr = 0.02 if round < 9 else 0.01
        u_KPD = [hand.directions(seed, count) for seed in round_seeds(settings, round).tolist()]
        votes_KP = np.zeros((method.local_steps, count))
        for client in hand.cohort(round):
            own = x.copy()
            for k, u_PD in enumerate(u_KPD):
                ends = [
                    [hand.loss(own + s * np.float32(1e-3) * u, client, round, k) for s in (1, -1)]
                    for u in u_PD
                ]
                slopes_P = np.array([plus - minus for plus, minus in ends])
                signs_P = np.where(slopes_P >= 0, 1, -1)
                votes_KP[k] += weights[client] * (slopes_P if mean else signs_P)
                own = moved(own, signs_P, u_PD, lr)
        for k, u_PD in enumerate(u_KPD):
            x = moved(x, np.where(votes_KP[k] == 0, tie, np.sign(votes_KP[k])), u_PD, lr)
    return x


def moved(x: np.ndarray, signs_P: np.ndarray, u_PD: np.ndarray, lr: float) -> np.ndarray:
    """Return x - (η/P) Σ ±u, one product and one sum at a time."""
    for sign, u in zip(signs_P.tolist(), u_PD, strict=True):
        x = x - np.float32(lr * sign / len(u_PD)) * u
    return x


@pytest.mark.parametrize("more", [(), ("method.weights=rows",), ("method.direction=rademacher",)])
def test_a_run_has_the_bits_of_the_published_algorithm(more: tuple[str, ...]) -> None:
    hand = SoftmaxByHand("feedsign", *SETTINGS, *more)
    ours = hand.run().models[MODEL]
    assert np.array_equal(ours, published(hand, 20))
    # the controls: a vote is not the sign of the mean, and half of four votes is a tie
    assert not np.array_equal(ours, published(hand, 20, mean=True))
    if "method.weights=rows" not in more:
        assert not np.array_equal(ours, published(hand, 20, tie=-1))


def test_bits_travel_and_nothing_else() -> None:
    """⌈KP/8⌉ bytes up, one bit for each missed sign down, rounded up to whole bytes; no seed
    travels.
    """
    hand = SoftmaxByHand("feedsign", *SETTINGS)
    _, played = hand.play(20)
    taken_part: dict[int, int] = {}
    for round, (orders, uploads) in enumerate(played, 1):
        for order, upload in zip(orders, uploads, strict=True):
            missed = round - 1 - taken_part.get(order.client, 0)
            assert isinstance(order.body, MissedSigns)
            assert isinstance(upload.body, Signs)
            assert order.body.wire_bytes == len(order.body.encode()) == -(-6 * missed // 8)
            assert upload.body.wire_bytes == len(upload.body.encode()) == 1 == order.upload_bytes
            taken_part[order.client] = round - 1
    one = SoftmaxByHand("feedsign", "method.perturbations=1").play(3)[1]
    assert {upload.body.wire_bytes for _, uploads in one for upload in uploads} == {1}, (
        "a bit fills a byte"
    )


def test_a_client_has_the_model_from_its_own_messages_alone() -> None:
    hand = SoftmaxByHand("feedsign", *SETTINGS, "split.clients=5")
    settings = feedsign_settings(hand.method, hand.key)
    _, played = hand.play(20)
    followed = max(range(5), key=lambda client: sum(client in hand.cohort(r) for r in range(1, 21)))
    x, version = hand.x0.copy(), 0
    for round, (orders, _) in enumerate(played, 1):
        for order in orders:
            if order.client == followed:
                signs_sKP = unpacked(order.body.signs, (round - 1 - version, 2, 3))
                for past, signs_KP in enumerate(signs_sKP, version + 1):
                    for seed, signs_P in zip(
                        round_seeds(settings, past).tolist(), signs_KP, strict=True
                    ):
                        x = moved(x, signs_P, hand.directions(seed, 3), settings.lr.at(past))
                version = round - 1
    assert version > 10
    assert np.array_equal(x, published(hand, version))


def test_the_ledger_holds_signs_and_rebuilds_the_model(tmp_path) -> None:
    hand = SoftmaxByHand("feedsign", *SETTINGS)
    run = hand.run(out=tmp_path / "run")
    with Ledger.open(tmp_path / "run" / "ledger") as ledger:
        assert set(ledger.since(0).scalar.tolist()) == {1.0, -1.0}
    assert np.array_equal(rebuild(tmp_path / "run").models[MODEL], run.models[MODEL])
    assert np.array_equal(rebuild(tmp_path / "run", 11).models[MODEL], published(hand, 11))


def test_packed_signs_are_read_back_in_their_order() -> None:
    signs = np.array([[1, -1, -1, 1, 1], [-1, -1, 1, -1, 1]], np.float32)
    assert packed(signs).tolist() == [0b10011001, 0b01000000]
    assert np.array_equal(unpacked(packed(signs), (2, 5)), signs)


def test_a_loss_that_is_not_finite_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit cannot say that there is no sign: the client says so itself."""
    losses = CompiledObjective.central_losses
    monkeypatch.setattr(
        CompiledObjective,
        "central_losses",
        lambda *given: tuple(side * np.nan for side in losses(*given)),
    )
    with pytest.raises(RunError, match=r"client \d sent a scalar that is not finite for update 1"):
        SoftmaxByHand("feedsign").run()
