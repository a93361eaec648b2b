import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.keys import Key
from raydpzv.records import metrics
from raydpzv.records.schema import (
    AGE_BINS,
    EVALUATION,
    MESSAGE,
    RELEASE,
    SCHEMAS,
    SERVICE,
    STALENESS,
)
from tests.helpers.cpu import cpu_seconds, row_loop_seconds

NAN = math.nan


def table(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    defaults = {pa.string(): "", pa.bool_(): False}
    blank = {f.name: defaults.get(f.type, 0) for f in schema}
    return pa.Table.from_pylist([blank | row for row in rows], schema=schema)


def service(*rows: tuple[int, float, float, float]) -> pa.Table:
    """(client, woke, served, applied), in order of service."""
    names = ("client", "woke", "served", "applied")
    return table(
        SERVICE, [dict(zip(names, r, strict=True)) | {"round": i + 1} for i, r in enumerate(rows)]
    )


def random_service(seed: int, clients: int, length: int) -> pa.Table:
    """Round trips that do not overlap within a client, some without a reply, on a coarse time
    grid.
    """
    draw = Key(seed).generator()
    free = np.zeros(clients)
    rows = []
    for _ in range(length):
        m = int(draw.integers(clients))
        woke = free[m] + draw.integers(0, 3)
        served = woke + draw.integers(0, 4)
        applied = served + draw.integers(0, 2)
        free[m] = applied
        rows.append((m, woke, served, applied if draw.random() < 0.9 else NAN))
    return service(*sorted(rows, key=lambda r: r[2]))


MESSAGES = table(
    MESSAGE,
    [
        {"round": 0, "direction": "down", "bytes": 7},
        {"round": 1, "direction": "up", "bytes": 100},
        {"round": 1, "direction": "down", "bytes": 4},
        {"round": 4, "direction": "up", "bytes": 50},
        {"round": 3, "direction": "up", "bytes": 30},
        {"round": 4, "direction": "down", "bytes": 4},
    ],
)


def test_bytes_count_each_direction_on_its_own() -> None:
    assert metrics.bytes_up(MESSAGES) == 180
    assert metrics.bytes_down(MESSAGES) == 15


def test_bytes_by_round_is_cumulative_and_sorted() -> None:
    rounds, up, down = metrics.bytes_by_round(MESSAGES)
    assert rounds.tolist() == [0, 1, 3, 4]
    assert up.tolist() == [0, 100, 130, 180]
    assert down.tolist() == [7, 11, 11, 15]


def test_staleness_divides_by_rows_that_have_an_age_and_merges_bins() -> None:
    def bins(**counts: int) -> list[int]:
        return [counts.get(f"b{k}", 0) for k in range(AGE_BINS)]

    rows = table(
        STALENESS,
        [
            {
                "client": 2,
                "rows": 10,
                "missing": 4,
                "age_sum": 12,
                "age_max": 3,
                "age_bins": bins(b0=1, b2=5),
            },
            {
                "client": 2,
                "rows": 6,
                "missing": 0,
                "age_sum": 24,
                "age_max": 9,
                "age_bins": bins(b2=4, b4=2),
            },
            {"client": 0, "rows": 5, "missing": 5, "age_sum": 0, "age_max": 0, "age_bins": bins()},
        ],
    )
    zero, one, two = metrics.staleness(rows)
    assert (two.rows, two.missing, two.mean, two.max) == (16, 4, 3.0, 9)
    assert two.bins.tolist() == bins(b0=1, b2=9, b4=2)
    assert math.isnan(zero.mean)
    assert zero.missing == 5
    assert math.isnan(one.mean)
    assert one.rows == 0
    assert [c.client for c in metrics.staleness(rows.slice(0, 1), clients=5)] == [0, 1, 2, 3, 4]


def test_staleness_reads_a_slice_of_a_table() -> None:
    rows = table(
        STALENESS,
        [
            {"client": 0, "rows": k, "age_sum": k, "age_max": 1, "age_bins": [k] * AGE_BINS}
            for k in (1, 2, 3)
        ],
    )
    assert metrics.staleness(rows.slice(1, 1))[0].bins.tolist() == [2] * AGE_BINS


def test_staleness_of_a_table_in_pieces_is_that_of_the_whole() -> None:
    ages = [(k % 3, k) for k in range(9)]
    rows = table(
        STALENESS,
        [
            {"client": m, "rows": k, "age_sum": k, "age_max": 1, "age_bins": [k] * AGE_BINS}
            for m, k in ages
        ],
    )
    pieces = pa.concat_tables([rows.slice(0, 4), rows.slice(4, 0), rows.slice(4)])
    assert pieces.column("age_bins").num_chunks > 1
    for whole, found in zip(metrics.staleness(rows), metrics.staleness(pieces), strict=True):
        assert found.bins.tolist() == whole.bins.tolist() == [whole.rows] * AGE_BINS


def test_a_delay_counts_the_others_served_between_read_and_apply() -> None:
    rows = service((0, 0.0, 2.0, 5.0), (1, 1.0, 3.0, 3.5), (1, 3.5, 5.0, 6.0), (0, 5.0, 7.0, NAN))
    # client 0: services at 3 and 5 (5 <= applied counts); client 1: 2 lies in (1, 3.5], then none
    # of others
    assert [d.tolist() for d in metrics.delays(rows)] == [[2], [1, 0]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 40))
def test_delays_gaps_and_lateness_agree_with_a_slow_count(
    seed: int, clients: int, length: int
) -> None:
    rows = random_service(seed, clients, length)
    trips = rows.to_pylist()
    slow: list[list[int]] = [[] for _ in range(clients)]
    for i, r in enumerate(trips):
        if not math.isnan(r["applied"]):
            others = (o for j, o in enumerate(trips) if j != i)
            slow[r["client"]].append(sum(r["woke"] < o["served"] <= r["applied"] for o in others))
    assert [d.tolist() for d in metrics.delays(rows, clients)] == slow
    uploads = [[r["round"] for r in trips if r["client"] == m] for m in range(clients)]
    expected = [[b - a for a, b in itertools.pairwise(u)] for u in uploads]
    assert [g.tolist() for g in metrics.gaps(rows, clients)] == expected
    assert [len(a.woke) for a in metrics.activity(rows, clients)] == [len(u) for u in uploads]


def test_late_share_is_per_client_and_nan_without_uploads() -> None:
    rows = table(
        SERVICE, [{"client": m, "late": late} for m, late in ((0, True), (0, False), (2, True))]
    )
    share = metrics.late_share(rows)
    assert share[[0, 2]].tolist() == [0.5, 1.0]
    assert math.isnan(share[1])


def test_behind_is_by_what_share_the_rate_is_short_of_the_epochs() -> None:
    """Epochs 1 s apart: client 0 takes 0.9 s for each, client 2 two seconds; rows come in any
    order.
    """
    rows = [{"client": 0, "due": float(n), "woke": n + 0.1} for n in range(1, 21)]
    rows += [{"client": 2, "due": float(n), "woke": 2.0 * n - 1} for n in range(1, 21)]
    behind = metrics.behind(table(SERVICE, rows[::-1]), 4)
    assert behind[[0, 2]] == pytest.approx([0.1 / 20.1, 19 / 39])
    assert np.isnan(behind[[1, 3]]).all()
    assert metrics.behind(table(SERVICE, [{"client": 0, "due": 3.0, "woke": 3.0}]), 1)[0] == 0.0


def test_throughput_is_uploads_over_the_time_of_the_last() -> None:
    assert metrics.throughput(service((0, 0, 2.0, 3), (1, 0, 4.0, 9))) == 0.5
    assert math.isnan(metrics.throughput(service((0, 0, 0.0, 0))))


def test_epsilon_is_the_last_release_of_each_round() -> None:
    names = ("round", "perturbation", "epsilon_paper", "epsilon_client")
    values = [(1, 0, 0.1, 1.0), (1, 1, 0.2, 2.0), (3, 0, NAN, math.inf)]
    series = metrics.epsilon_series(
        table(RELEASE, [dict(zip(names, v, strict=True)) for v in values])
    )
    assert series.round.tolist() == [1, 3]
    assert series.client.tolist() == [2.0, math.inf]
    np.testing.assert_array_equal(series.paper, [0.2, NAN])


def test_accuracy_is_joined_with_the_bytes_sent_by_its_round() -> None:
    rows = table(
        EVALUATION,
        [
            {"round": r, "time": r / 2, "part": part, "accuracy": a}
            for r, part, a in (
                (0, "test", 0.1),
                (2, "test", 0.6),
                (2, "train", 0.9),
                (9, "test", 0.5),
            )
        ],
    )
    series = metrics.accuracy_series(rows, MESSAGES)
    assert series.bytes.tolist() == [7, 111, 195]
    assert series.time.tolist() == [0.0, 1.0, 4.5]
    assert series.accuracy.tolist() == [0.1, 0.6, 0.5]
    assert metrics.accuracy_series(rows, MESSAGE.empty_table()).bytes.tolist() == [0, 0, 0]
    assert metrics.peak_accuracy(rows) == 0.6


def test_the_best_model_is_the_first_that_validates_best_whatever_it_scores_on_test_rows() -> None:
    scored = [(0, 0.9, 0.1), (3, 0.2, 0.8), (6, 0.7, 0.8), (9, 0.6, NAN)]
    rows = [
        {"round": at, "part": part, "accuracy": accuracy}
        for at, *both in scored
        for part, accuracy in zip(("test", "validation"), both, strict=True)
    ]
    best = metrics.best_by_validation(table(EVALUATION, rows))
    assert best == metrics.BestModel(update=3, accuracy=0.2, validation_accuracy=0.8)
    assert metrics.peak_accuracy(table(EVALUATION, rows)) == 0.9
    assert metrics.best_by_validation(table(EVALUATION, rows[::2])) is None


def test_loss_leaves_out_what_was_not_computed() -> None:
    rows = table(
        SERVICE, [{"round": 1, "loss": 2.0}, {"round": 2, "loss": NAN}, {"round": 3, "loss": 1.0}]
    )
    rounds, loss = metrics.loss_series(rows)
    assert (rounds.tolist(), loss.tolist()) == ([1, 3], [2.0, 1.0])


def test_activity_is_in_order_of_waking() -> None:
    rows = service((1, 4.0, 5.0, 6.0), (1, 1.0, 5.5, NAN), (0, 2.0, 6.0, 7.0))
    zero, one = metrics.activity(rows)
    assert one.woke.tolist() == [1.0, 4.0]
    np.testing.assert_array_equal(one.applied, [NAN, 6.0])
    assert zero.served.tolist() == [6.0]


def test_the_summary_block_is_the_folds_in_plain_numbers() -> None:
    ages = table(
        STALENESS,
        [
            {
                "client": m,
                "rows": 4,
                "missing": m,
                "age_sum": 8,
                "age_max": 5,
                "age_bins": [0] * AGE_BINS,
            }
            for m in (0, 2)
        ],
    )
    trips = service((0, 0.0, 2.0, 5.0), (1, 1.0, 3.0, 3.5), (1, 3.5, 5.0, 6.0))
    block = metrics.staleness_summary(ages, trips, clients=3)
    assert (block["mean"], block["max"]) == (16 / 6, 5)
    assert block["clients"][0] == {
        "client": 0, "mean": 2.0, "max": 5, "delay_mean": 2.0, "delay_max": 2, "late_share": 0.0,
    }  # fmt: skip
    assert block["clients"][1]["mean"] is None
    assert block["clients"][1]["delay_mean"] == 0.5
    assert block["clients"][2]["late_share"] is None


def test_empty_tables_give_nothing_and_never_fail() -> None:
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    assert metrics.bytes_up(empty["message"]) == metrics.bytes_down(empty["message"]) == 0
    assert [len(a) for a in metrics.bytes_by_round(empty["message"])] == [0, 0, 0]
    assert metrics.staleness(empty["staleness"]) == metrics.delays(empty["service"]) == []
    assert metrics.gaps(empty["service"]) == metrics.activity(empty["service"]) == []
    assert [len(d) for d in metrics.delays(empty["service"], clients=2)] == [0, 0]
    assert [s.rows for s in metrics.staleness(empty["staleness"], clients=2)] == [0, 0]
    assert np.isnan(metrics.late_share(empty["service"], clients=2)).all()
    assert math.isnan(metrics.throughput(empty["service"]))
    assert math.isnan(metrics.peak_accuracy(empty["evaluation"]))
    assert len(metrics.epsilon_series(empty["release"]).round) == 0
    assert len(metrics.accuracy_series(empty["evaluation"], MESSAGES).round) == 0
    assert len(metrics.loss_series(empty["service"])[0]) == 0
    block = metrics.staleness_summary(empty["staleness"], empty["service"], 1)
    assert (block["mean"], block["max"], block["clients"][0]["mean"]) == (None, None, None)
    assert metrics.staleness_summary(empty["staleness"], empty["service"], 0)["clients"] == []


def test_a_million_rows_are_not_folded_one_by_one() -> None:
    count = 1_000_000
    draw = Key(3).generator()
    client = draw.integers(0, 20, count).astype(np.int32)
    served = np.arange(count, dtype=float)
    columns = {f.name: np.zeros(count) for f in SERVICE} | {
        "round": np.arange(count) + 1,
        "client": client,
    }
    columns |= {"woke": served - draw.random(count) * 50, "served": served, "applied": served + 0.5}
    rows = pa.table(
        {f.name: pa.array(columns[f.name]).cast(f.type) for f in SERVICE}, schema=SERVICE
    )
    lags, steps, share = metrics.delays(rows), metrics.gaps(rows), metrics.late_share(rows)
    folds = cpu_seconds(
        lambda: (metrics.delays(rows), metrics.gaps(rows), metrics.late_share(rows))
    )
    assert folds < row_loop_seconds([rows])  # measured: a fifth
    assert sum(map(len, lags)) == count
    assert len(share) == 20
    assert Counter(map(len, steps)) == Counter(np.bincount(client) - 1)


@pytest.mark.parametrize("name", ["due", "woke", "served", "applied", "late"])
def test_activity_carries_every_column_unmixed(name: str) -> None:
    row = {"due": 1.0, "woke": 2.0, "served": 3.0, "applied": 4.0, "late": True}
    assert getattr(metrics.activity(table(SERVICE, [row]))[0], name).tolist() == [row[name]]
