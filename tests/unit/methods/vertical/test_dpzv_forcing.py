"""Transcript forcing: the recorded releases are given out again on two data sets that differ in one
record.

If everything that persists at the server is a function of the releases, every query on a batch
without that record is the same before its noise, bit for bit. This is the one test that sees hidden
state.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from raydpzv.engine.split_model import HeadTraining
from raydpzv.methods.schedule import Schedule
from raydpzv.methods.vertical.dpzv import ZerothOrder
from raydpzv.privacy.mechanisms import Address, Noise, SeededNoise
from raydpzv.wire.messages import PerturbedEmbeddings
from tests.helpers.vertical_parties import (
    KEY,
    Data,
    dpzv_clients,
    dpzv_server,
    make_data,
    make_head,
    wakes,
)

SETTINGS = ZerothOrder(0.05, Schedule(0.05), 0.9, perturbations=2)
CHANGED = 7


class Forced:
    """Gives out recorded values and keeps what was asked, before any noise."""

    source = "recorded"

    def __init__(self, values: Mapping[Address, float]) -> None:
        self.values, self.queries = values, dict[Address, float]()

    def release(self, mean: float, sigma: float, address: Address) -> float:
        self.queries[address] = mean
        return self.values[address]


def neighbour(data: Data) -> Data:
    """The same data but for one record: its features at every client and its label."""
    x, y = data.x.clone(), data.y.clone()
    x[:, CHANGED] = -3 * x[:, CHANGED] + 1
    y[CHANGED] = (y[CHANGED] + 1) % 3
    assert ((x != data.x).any(2).any(0)).nonzero().flatten().tolist() == [CHANGED]
    return Data(x, y, data.x_test, data.y_test)


def transcript(
    data: Data, training: HeadTraining, noise: Noise
) -> dict[Address, tuple[float, np.ndarray]]:
    """Run 60 rounds; return every release with its batch."""
    clients = dpzv_clients(data, SETTINGS)
    head = make_head(training, smoothing=0.05)
    server = dpzv_server(data, SETTINGS, head, clip=0.5, sigma=0.05, noise=noise)
    released = {}
    for m in wakes(60):
        upload = clients[m].work()
        (order,) = server.receive(upload)
        clients[m].apply(order)
        assert isinstance(upload.body, PerturbedEmbeddings)
        for r in order.releases:
            released[m, upload.step, r.perturbation] = (r.value, upload.body.ids)
    return released


def differing_queries(training: HeadTraining) -> tuple[int, int, int]:
    """Return how many queries differ on batches without and with the changed record, and how many
    are without.
    """
    data = make_data()
    recorded = transcript(data, training, SeededNoise(KEY))
    values = {address: value for address, (value, _) in recorded.items()}
    one, two = Forced(values), Forced(values)
    transcript(data, training, one)
    other = transcript(neighbour(data), training, two)
    assert one.queries.keys() == two.queries.keys() == values.keys()
    assert all(np.array_equal(ids, other[a][1]) for a, (_, ids) in recorded.items()), (
        "the batches are public"
    )
    without = {a for a, (_, ids) in recorded.items() if CHANGED not in ids}
    differ = {a for a in values if one.queries[a] != two.queries[a]}
    return len(differ & without), len(differ - without), len(without)


def test_a_frozen_head_keeps_no_hidden_state() -> None:
    without, within, count = differing_queries("frozen")
    assert count > 60
    assert within > 10, "the changed record must be seen where it takes part"
    assert without == 0


@pytest.mark.slow
@pytest.mark.parametrize("training", ["sgd", "zo"])
def test_control_an_unnoised_head_is_caught(training: HeadTraining) -> None:
    without, _, count = differing_queries(training)
    assert without > count / 2
