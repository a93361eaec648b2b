"""Which differences of machines' clocks are warned of, and in what words."""

from __future__ import annotations

import pyarrow as pa
import pytest

import scenarios
from raydpzv.records.clock_skew import clock_warnings
from raydpzv.records.schema import SCHEMAS


def warned(offsets, settings=(), scenario="digits_dpzv", woke=()):
    """What is said of (party, node, offset, error), and of activations (client, time)."""
    keys = ("party", "node", "offset", "error")
    rows = {
        "clock": [dict(zip(keys, values, strict=True)) | {"time": 0.0} for values in offsets],
        "service": [{"client": client, "woke": time} for client, time in woke],
    }
    tables = {name: pa.Table.from_pylist(found, schema=SCHEMAS[name]) for name, found in rows.items()}
    spec = scenarios.load(scenario, ["clock.kind=wall", *settings])
    return clock_warnings(spec.arrivals, spec.split.clients, tables)


@pytest.mark.parametrize(
    ("offset", "error", "is_warned_of"),
    [
        (0.0, 0.0, False),
        (0.05, 0.001, False),
        (0.051, 0.001, True),
        (-0.051, 0.001, True),
        (0.06, 0.07, False),  # it may be none at all
    ],
)
def test_a_tenth_of_the_mean_gap_is_warned_of(offset, error, is_warned_of):
    assert bool(warned([("client 1", "b", offset, error)], ["arrivals.rate=2"])) is is_warned_of


def test_each_client_has_a_gap_of_its_own_and_each_machine_a_sentence():
    rates = ["arrivals.rate=[0.5, 1, 2, 4]"]
    apart = [(f"client {m}", "b", -0.08, 0.01) for m in (0, 1, 2)]
    (line,) = warned([*apart, ("client 2", "b", -0.09, 0.01), ("client 3", "c", 0.0, 0.0)], rates)
    assert "the clock of the machine of client 2 is 0.09 s (± 0.01 s) behind the server's" in line
    assert "a tenth of the 0.5 s between" in line
    assert len(warned([*apart, ("client 3", "c", 0.06, 0.01)], rates)) == 2


def test_without_a_rate_the_gaps_are_those_there_were():
    woke = [(m, 0.5 * n) for m in range(4) for n in range(1, 5)]
    settings = ["arrivals.kind=immediate"]
    assert not warned([("client 1", "b", 0.037, 0.001)], settings, woke=woke)
    assert warned([("client 1", "b", 0.038, 0.001)], settings, woke=woke)
    assert not warned([("client 1", "b", 5.0, 0.001)], settings)


def test_a_host_has_the_shortest_gap_of_all_clients():
    pulls = ["method.asynchronous=true", "split.clients=3", "arrivals.rate=[1, 2, 5]"]
    assert not warned([("host 0", "b", 0.019, 0.001)], pulls, "digits_decomfl")
    assert warned([("host 0", "b", 0.021, 0.001)], pulls, "digits_decomfl")
