"""Sums that reach the server masked, or by weights nobody learns, move the model as sums in the
open do.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raydpzv.data.users import UserParts
from raydpzv.errors import RunError, SpecError
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod, HorizontalServerParts
from raydpzv.methods.horizontal.aggregation import of_aggregation
from raydpzv.methods.horizontal.uldp_avg import ULDP_AVG
from raydpzv.methods.horizontal.uldp_sgd import ULDP_SGD, UldpSgdConfig
from raydpzv.methods.roles import Order, Upload
from raydpzv.secure.masked import MaskedSilo
from raydpzv.wire.secure_sums import KeysLost, MaskedSum, PackedSum, UserSum
from tests.helpers.user_parties import KEY, SILOS, SIZE, START, USERS, noise, objective, parts

SETTINGS: dict[str, Any] = {"weights": "records", "count_cap": 4, "key_bits": 512, "server_lr": 2.0}
UNIT = 0.5 / (2**16 - 1)
"""What one unit of the grid is worth in a sum."""


class Running:
    """A run of a method in one process."""

    def __init__(
        self, aggregation: str, method: HorizontalMethod[Any] = ULDP_SGD, **settings: Any
    ) -> None:
        given = {**SETTINGS, "aggregation": aggregation, **settings}
        self.noise = noise(given["weights"], given.pop("multiplier", 1.0))
        self.config, self.method = method.config(**given), method
        self.server, self.group = self._server(), self._group()
        self.uploads: list[Upload] = []

    def _server(self) -> Any:
        held = HorizontalServerParts(
            parts().sizes, KEY, lambda: START, lambda: None, users=self.noise
        )  # type: ignore[arg-type, return-value]
        return self.method.server(held, self.config)

    def _group(self) -> Any:
        return self.method.clients(
            ClientGroupParts([objective()], parts(), KEY, users=self.noise), self.config
        )

    def until(self, rounds: int, orders: Sequence[Order] = ()) -> np.ndarray:
        """Go on to the end of so many rounds; return the model."""
        orders = orders or self.server.first_orders()
        while self.server.updates < rounds:
            uploads = self.group.process(orders)
            self.uploads += uploads
            orders = [order for upload in uploads for order in self.server.receive(upload)]
        self.orders = orders
        return self.server.parameters()

    def bodies(self, kind: type) -> list[Any]:
        return [upload.body for upload in self.uploads if isinstance(upload.body, kind)]


@pytest.mark.parametrize("method", [ULDP_SGD, ULDP_AVG], ids=["sgd", "avg"])
@pytest.mark.parametrize("settings", [{"weights": "uniform", "count_cap": None}, {"sampling": 0.6}])
def test_masked_sums_move_the_model_by_the_same_bits(
    method: HorizontalMethod[Any], settings: dict[str, Any]
) -> None:
    plain, masked = Running("plain", method, **settings), Running("masked", method, **settings)
    assert plain.until(3).tobytes() == masked.until(3).tobytes()
    hidden, shown = masked.bodies(MaskedSum), plain.bodies(UserSum)
    assert len(hidden) == len(shown) == 3 * SILOS
    sums = [np.stack([body.values for body in bodies[:SILOS]]) for bodies in (hidden, shown)]
    assert np.array_equal(sums[0].sum(0).astype(np.int64), sums[1].sum(0))
    assert not (sums[0] == sums[1].astype(np.uint64)).any()


@pytest.mark.parametrize("sampling", [1.0, 0.6])
def test_private_weights_move_it_as_weights_known_to_all_but_for_rounding(sampling: float) -> None:
    plain = Running("plain", multiplier=0.0, sampling=sampling)
    private = Running("private_weights", multiplier=0.0, sampling=sampling)
    start, ours, theirs = START, private.until(1), plain.until(1)
    # each pair's weighed integers are cut to whole ones where weights are known, dithers are within
    # half a unit each
    rounding = 2.0 * UNIT * (USERS * SILOS + SILOS) / (sampling * USERS)
    assert np.abs(ours - theirs).max() < rounding < 0.01 * np.abs(theirs - start).max()
    (first, *_) = private.bodies(PackedSum)
    assert (
        first.wire_bytes == 2 * 128
    )  # 21 numbers, 14 to a ciphertext of 512 bits: 15 + 1 + 20 of each
    assert not private.bodies(UserSum)


def test_a_silo_weighs_without_looking_at_other_silos_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    pairs = UserParts.pairs
    monkeypatch.setattr(
        UserParts, "pairs", lambda held, silo: asked.append(silo) or pairs(held, silo)
    )
    monkeypatch.delattr(UserParts, "counts")
    running = Running("private_weights")
    orders = running.server.first_orders()
    while running.server.updates < 1:
        uploads = []
        for order in orders:
            asked.clear()
            uploads += running.group.process([order])
            assert set(asked) <= {order.client}
        orders = [order for upload in uploads for order in running.server.receive(upload)]


def test_seeded_runs_with_private_weights_repeat_to_the_bit_and_others_do_not() -> None:
    one, other = Running("private_weights"), Running("private_weights")
    assert one.until(2).tobytes() == other.until(2).tobytes()
    assert one.bodies(PackedSum)[0].values.tobytes() != other.bodies(PackedSum)[0].values.tobytes()


@pytest.mark.parametrize("aggregation", ["masked", "private_weights"])
def test_a_silo_that_lost_its_keys_gets_new_ones_and_the_model_is_the_same(
    aggregation: str,
) -> None:
    whole, lossy = Running(aggregation), Running(aggregation)
    lossy.until(1)
    del lossy.group._sums.secure._roles[1]
    model = lossy.until(3, lossy.orders)
    assert len(lossy.bodies(KeysLost)) == 1
    assert all(not u.releases for u in lossy.uploads if isinstance(u.body, KeysLost))
    assert model.tobytes() == whole.until(3).tobytes()


@pytest.mark.parametrize("aggregation", ["masked", "private_weights"])
def test_a_run_that_continues_sets_the_protocol_up_again(aggregation: str) -> None:
    whole, broken = Running(aggregation), Running(aggregation)
    broken.until(1)
    state = broken.server.state()
    broken.server, broken.group = broken._server(), broken._group()
    broken.server.restore(1, state)
    assert broken.until(2).tobytes() == whole.until(2).tobytes()


def test_receipts_say_what_a_user_moves_and_the_share_of_the_noise() -> None:
    running = Running("private_weights", multiplier=1.5)
    running.until(1)
    receipts = [release.receipt for upload in running.uploads for release in upload.releases]
    assert len(receipts) == SILOS
    moved = 2**16 - 1 + np.sqrt(SIZE)
    for receipt in receipts:
        assert receipt.sensitivity_add_remove == pytest.approx(moved)
        assert receipt.sigma == pytest.approx(1.5 * moved / np.sqrt(SILOS))


def complaints(clients: int = 3, **settings: Any) -> str:
    sections: Any = SimpleNamespace(split=SimpleNamespace(clients=clients))
    return "; ".join(of_aggregation(UldpSgdConfig(**settings), sections))


def test_what_does_not_go_together_is_refused() -> None:
    assert complaints(aggregation="private_weights", count_cap=8) == ""
    assert complaints(clients=1) == ""
    assert 'method.weights: wanted "records"' in complaints(
        aggregation="private_weights", weights="uniform"
    )
    assert "split.clients: wanted at least 2" in complaints(clients=1, aggregation="masked")
    for aggregation, settings, said in (
        (
            "private_weights",
            {"count_cap": None},
            r"method\.count_cap: wanted .* the largest that fits is \d+$",
        ),
        (
            "private_weights",
            {"count_cap": 500},
            r"method\.count_cap = 500 does not fit a key of 512 bits",
        ),
        ("masked", {"value_bits": 60}, "masked sums are taken in 64 bits"),
    ):
        with pytest.raises(SpecError, match=said):
            Running(aggregation, **settings)


def test_keys_that_are_lost_again_and_again_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running("masked")
    monkeypatch.setattr(
        running.group._sums.secure, "role", lambda silo, size: MaskedSilo(silo, b"another process")
    )
    with pytest.raises(RunError, match="silos lost theirs in 10 set-ups in a row"):
        running.until(1)
