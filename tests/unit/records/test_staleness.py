from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raydpzv.keys import Key
from raydpzv.records import staleness
from raydpzv.records.schema import SERVICE, SYNC


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
            rows.append(row | {"missed": missed, "pairs": 0 if pulled else 5 * missed, "pulled": pulled})
    return rows


def sync_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SYNC)


def service_table(late: list[bool]) -> pa.Table:
    blank = dict.fromkeys((f.name for f in SERVICE), 0)
    return pa.Table.from_pylist([blank | {"late": x} for x in late], schema=SERVICE)


def test_the_summary_is_what_a_slow_count_says() -> None:
    rows = random_sync(3, updates=80, clients=17)
    found = staleness.lag_summary(sync_table(rows), service_table([True, False, False, True, False]))
    assert found["mean"] == pytest.approx(sum(r["lag"] for r in rows) / len(rows))
    assert found["max"] == max(r["lag"] for r in rows)
    assert found["missed_mean"] == pytest.approx(sum(r["missed"] for r in rows) / len(rows))
    assert found["missed_max"] == max(r["missed"] for r in rows)
    assert found["pairs_mean"] == pytest.approx(sum(r["pairs"] for r in rows) / len(rows))
    assert found["pulled_share"] == pytest.approx(len([r for r in rows if r["pulled"]]) / len(rows))
    assert found["clients"] == len({r["client"] for r in rows})
    assert found["late_share"] == pytest.approx(2 / 5)


def test_what_does_not_exist_is_none() -> None:
    assert staleness.lag_summary(sync_table([]), service_table([])) == {
        "mean": None,
        "max": None,
        "late_share": None,
    }
    weights = staleness.lag_summary(sync_table([]), service_table([False]))
    assert weights == {"mean": None, "max": None, "late_share": 0.0}


@pytest.mark.parametrize("updates", [1, 7, 60, 61, 500])
def test_catching_up_is_averaged_in_windows_of_equally_many_updates(updates: int) -> None:
    last = {"round": updates, "client": 0, "read": 0, "lag": 0, "missed": 4, "pairs": 20, "pulled": False}
    rows = [*random_sync(updates, updates, clients=9), last]
    shuffled = [rows[i] for i in Key(1).generator().permutation(len(rows))]
    caught = staleness.catch_up(sync_table(shuffled), windows=20)
    width = math.ceil(updates / 20)
    windows: dict[int, list[int]] = {}
    for row in rows:
        windows.setdefault(math.ceil(row["round"] / width), []).append(row["missed"])
    assert len(caught.round) <= 20
    assert caught.round.tolist() == [min(w * width, updates) for w in sorted(windows)]
    np.testing.assert_allclose(caught.mean, [np.mean(windows[w]) for w in sorted(windows)])
    np.testing.assert_allclose(caught.high, [np.percentile(windows[w], 90) for w in sorted(windows)])


def test_lags_are_counted() -> None:
    rows = random_sync(5, updates=90, clients=4)
    counts = staleness.lag_counts(sync_table(rows))
    assert counts.tolist() == [
        sum(r["lag"] == k for r in rows) for k in range(max(r["lag"] for r in rows) + 1)
    ]


def test_without_rows_there_is_nothing() -> None:
    empty = SYNC.empty_table()
    assert (
        len(staleness.catch_up(empty).round)
        == len(staleness.catch_up(empty).mean)
        == len(staleness.lag_counts(empty))
        == 0
    )
