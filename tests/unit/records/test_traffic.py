import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raydpzv.keys import Key
from raydpzv.records import metrics, traffic
from raydpzv.records.schema import EVALUATION, MESSAGE, SCHEMAS
from raydpzv.records.traffic import PHASES, Phase, phases
from raydpzv.wire import secure_sums
from raydpzv.wire.messages import Body
from tests.helpers.cpu import cpu_seconds, row_loop_seconds


def message_table(rows: list[tuple[int, int, str, int]]) -> pa.Table:
    """(round, client, direction, bytes)."""
    names = ("round", "client", "direction", "bytes")
    blank = {"kind": "", "sent": 0.0, "arrived": 0.0}
    return pa.Table.from_pylist(
        [blank | dict(zip(names, r, strict=True)) for r in rows], schema=MESSAGE
    )


def evaluation_table(*rows: tuple[int, float, float]) -> pa.Table:
    """(round, time, accuracy)."""
    names = ("round", "time", "accuracy")
    blank: dict[str, Any] = {"part": "test", "loss": 0.0, "top_share": 0.1}
    return pa.Table.from_pylist(
        [blank | dict(zip(names, r, strict=True)) for r in rows], schema=EVALUATION
    )


def random_messages(seed: int, length: int) -> list[tuple[int, int, str, int]]:
    draw = Key(seed).generator()
    return [
        (
            int(draw.integers(0, 20)),
            int(draw.integers(0, 7)),
            str(draw.choice(["up", "down"])),
            int(draw.integers(0, 10**9)),
        )
        for _ in range(length)
    ]


@pytest.mark.parametrize("length", [0, 1, 300])
def test_bytes_per_client_are_what_a_slow_count_says(length: int) -> None:
    rows = random_messages(length, length)
    table = message_table(rows)
    up, down = traffic.bytes_by_client(table)
    for found, direction in ((up, "up"), (down, "down")):
        assert found.tolist() == [
            sum(r[3] for r in rows if r[1] == client and r[2] == direction)
            for client in range(max((r[1] for r in rows), default=-1) + 1)
        ]
    assert (up.sum(), down.sum()) == (metrics.bytes_up(table), metrics.bytes_down(table))


def test_bytes_of_those_who_took_part_are_theirs_however_large_their_numbers() -> None:
    rows = random_messages(5, 40)
    few = [(r, 3 * c, d, b) for r, c, d, b in rows]
    up, down = traffic.bytes_by_client(message_table(few))
    took_part = sorted({r[1] for r in few})
    many = [(r, c + 2**30, d, b) for r, c, d, b in few]
    found = traffic.bytes_of_participants(message_table(many))
    assert [x.tolist() for x in found] == [up[took_part].tolist(), down[took_part].tolist()]
    assert [len(x) for x in traffic.bytes_of_participants(MESSAGE.empty_table())] == [0, 0]


def test_clients_without_a_message_sent_nothing() -> None:
    up, down = traffic.bytes_by_client(message_table([(1, 2, "up", 5)]), clients=4)
    assert (up.tolist(), down.tolist()) == ([0, 0, 5, 0], [0, 0, 0, 0])


def test_the_target_is_reached_at_the_first_evaluation_that_is_not_below_it() -> None:
    messages = message_table(
        [
            (1, 0, "down", 100),
            (1, 0, "up", 4),
            (2, 0, "down", 300),
            (2, 0, "up", 8),
            (5, 1, "up", 16),
        ]
    )
    # not in order, and the accuracy falls again afterwards
    scores = evaluation_table((4, 2.5, 0.8), (0, 0.0, 0.1), (2, 1.5, 0.75), (6, 3.5, 0.6))
    for target, reached in (
        (0.8, (4, 2.5, 12, 400)),
        (0.5, (2, 1.5, 12, 400)),
        (0.1, (0, 0.0, 0, 0)),
    ):
        assert traffic.to_target(scores, messages, target) == traffic.Reached(*reached)
    never = traffic.to_target(scores, messages, 0.81)
    assert not never
    assert all(math.isnan(x) for x in (never.round, never.time, never.up, never.down))
    assert traffic.to_target(scores, messages, 0.1)


def test_a_score_that_is_no_number_reaches_nothing() -> None:
    assert not traffic.to_target(evaluation_table((0, 0.0, math.nan)), MESSAGE.empty_table(), 0.0)
    assert not traffic.to_target(EVALUATION.empty_table(), MESSAGE.empty_table(), 0.5)


def test_a_million_messages_of_many_clients_are_not_gone_through_one_by_one() -> None:
    count, draw = 10**6, Key(0).generator()
    columns = {
        "round": np.arange(count) // 20,
        "client": draw.integers(0, 100_000, count).astype(np.int32),
        "direction": pa.array(np.where(np.arange(count) % 2, "up", "down")),
        "kind": pa.array(["x"] * count),
        "sent": np.zeros(count),
        "arrived": np.zeros(count),
        "bytes": np.full(count, 100),
    }
    table = pa.table(columns, schema=MESSAGE)
    up, _ = traffic.bytes_by_client(table, 100_000)
    assert len(up) == 100_000
    folds = cpu_seconds(lambda: traffic.bytes_by_client(table, 100_000))
    assert folds < row_loop_seconds([table]) / 2  # measured: a twentieth


def table(name: str, *rows: tuple[Any, ...]) -> pa.Table:
    schema = SCHEMAS[name]
    return pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
    )


def test_bytes_and_seconds_are_summed_by_phase() -> None:
    message = table(
        "message",
        *[(1, silo, "down", "Modulus", 0.0, 0.0, 10) for silo in range(2)],
        *[(1, silo, "up", "AgreementKey", 0.0, 0.0, 3) for silo in range(2)],
        *[(round, 0, "down", "Weights", 0.0, 0.0, 100) for round in (1, 2)],
        *[(round, 0, "up", "MaskedSum", 0.0, 0.0, 40) for round in (1, 2)],
        (2, 1, "up", "DroppedOut", 0.0, 0.0, 0),
    )
    work = table(
        "work",
        *[(1, silo, "AgreementKey", 0.25) for silo in (0, 1, -1)],
        *[(round, 0, "MaskedSum", 2.0) for round in (1, 2)],
        *[(round, -1, "MaskedSum", 0.5) for round in (1, 2)],
    )
    assert phases(message, work) == [
        Phase("key agreement", 4, 6, 20, 0.5, 0.25),
        Phase("failed silos", 1, 0, 0, 0.0, 0.0),
        Phase("rounds", 4, 80, 200, 4.0, 1.0),
    ]
    assert phases(table("message"), table("work")) == []


def test_every_message_of_the_set_up_has_a_phase() -> None:
    named = {kind for kinds in PHASES.values() for kind in kinds}
    made = {
        name
        for name, found in vars(secure_sums).items()
        if isinstance(found, type) and issubclass(found, Body)
    }
    assert named - made == {"Acknowledged"}
    of_rounds = {name for name in made if name.endswith(("Sum", "Model", "CatchUp"))}
    assert made - named == of_rounds | {"Body", "CatchUp", "Weights", "SampledWeights"}
