import math
from typing import Any

import pyarrow as pa
import pytest

import scenarios
from raydpzv.keys import Key
from raydpzv.records import lateness
from raydpzv.records.lateness import clock_warnings, leg_begins, leg_summary, presence
from raydpzv.records.schema import LEG, SCHEMAS, SERVICE, SYNC
from raydpzv.records.summary_fields import faults


def random_sync(seed: int, updates: int, clients: int) -> list[dict[str, Any]]:
    """One to three uploads for most updates, in the order in which they were served."""
    draw = Key(seed).generator()
    rows = []
    for update in range(1, updates + 1):
        for _ in range(int(draw.integers(0, 4))):
            missed, pulled = int(draw.integers(0, 30)), bool(draw.random() < 0.1)
            lag = int(draw.integers(0, min(update, 12)))
            row = {
                "round": update,
                "client": int(draw.integers(clients)),
                "read": update - 1 - lag,
                "lag": lag,
            }
            rows.append(
                row | {"missed": missed, "pairs": 0 if pulled else 5 * missed, "pulled": pulled}
            )
    return rows


def sync_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SYNC)


def service_table(late: list[bool]) -> pa.Table:
    blank = dict.fromkeys((f.name for f in SERVICE), 0)
    return pa.Table.from_pylist([blank | {"late": x} for x in late], schema=SERVICE)


def test_the_summary_is_what_a_slow_count_says() -> None:
    rows = random_sync(3, updates=80, clients=17)
    found = lateness.lag_summary(sync_table(rows), service_table([True, False, False, True, False]))
    assert found["mean"] == pytest.approx(sum(r["lag"] for r in rows) / len(rows))
    assert found["max"] == max(r["lag"] for r in rows)
    assert found["missed_mean"] == pytest.approx(sum(r["missed"] for r in rows) / len(rows))
    assert found["missed_max"] == max(r["missed"] for r in rows)
    assert found["pairs_mean"] == pytest.approx(sum(r["pairs"] for r in rows) / len(rows))
    assert found["pulled_share"] == pytest.approx(len([r for r in rows if r["pulled"]]) / len(rows))
    assert found["clients"] == len({r["client"] for r in rows})
    assert found["late_share"] == pytest.approx(2 / 5)


def test_what_does_not_exist_is_none() -> None:
    assert lateness.lag_summary(sync_table([]), service_table([])) == {
        "mean": None,
        "max": None,
        "late_share": None,
    }
    weights = lateness.lag_summary(sync_table([]), service_table([False]))
    assert weights == {"mean": None, "max": None, "late_share": 0.0}


def test_lags_are_counted() -> None:
    rows = random_sync(5, updates=90, clients=4)
    counts = lateness.lag_counts(sync_table(rows))
    assert counts.tolist() == [
        sum(r["lag"] == k for r in rows) for k in range(max(r["lag"] for r in rows) + 1)
    ]


def test_without_rows_there_is_nothing() -> None:
    empty = SYNC.empty_table()
    assert len(lateness.lag_counts(empty)) == 0


def legs(*rows):
    names = ("leg", "round", "time", "gap", "recovered")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=LEG)


def services(*pairs):
    rows = [dict.fromkeys(SERVICE.names) | {"client": client, "served": at} for client, at in pairs]
    return pa.Table.from_pylist(rows, schema=SERVICE)


def test_a_run_without_interruption_has_no_block_of_segments():
    assert leg_summary(legs()) == {}


def test_segments_are_counted_with_the_first_and_gaps_are_given_as_they_are():
    table = legs((2, 40, 1.5, 12.0, 3), (3, 90, 4.0, math.nan, 0))
    assert leg_summary(table) == {"legs": {"count": 3, "gaps": [12.0, None], "recovered": 3}}
    assert leg_begins(table).tolist() == [1.5, 4.0]
    assert list(faults(leg_summary(table))) == []


@pytest.mark.parametrize(
    "damaged",
    [{"count": "3", "gaps": [], "recovered": 0}, {"count": 3, "gaps": [{}], "recovered": 0}, []],
)
def test_damaged_blocks_are_named(damaged):
    assert [fault.partition(":")[0] for fault in faults({"legs": damaged})] == ["legs"]
    assert [fault.partition(":")[0] for fault in faults({"presence": {"client": 0}})] == [
        "presence"
    ]


def test_a_client_is_silent_from_the_start_between_two_uploads_and_to_the_end():
    found = presence(services((0, 1.0), (1, 7.0), (0, 2.0), (0, 10.0)), 3)
    assert [one["longest_silence"] for one in found] == [8.0, 7.0, 10.0]
    assert [one["share"] for one in found] == [0.75, 0.25, 0.0]
    assert presence(services(), 1) == [{"client": 0, "share": 0.0, "longest_silence": 0.0}]
    assert list(faults({"presence": found})) == []


def warned(offsets, settings=(), scenario="digits_dpzv", woke=()):
    """What is said of (party, node, offset, error), and of activations (client, time)."""
    keys = ("party", "node", "offset", "error")
    rows = {
        "clock": [dict(zip(keys, values, strict=True)) | {"time": 0.0} for values in offsets],
        "service": [{"client": client, "woke": time} for client, time in woke],
    }
    tables = {
        name: pa.Table.from_pylist(found, schema=SCHEMAS[name]) for name, found in rows.items()
    }
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
