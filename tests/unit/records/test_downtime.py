"""Legs and silences as folds over rows."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from raydpzv.records.downtime import leg_begins, leg_summary, presence
from raydpzv.records.schema import LEG, SERVICE
from raydpzv.records.summary_fields import faults


def legs(*rows):
    names = ("leg", "round", "time", "gap", "recovered")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=LEG)


def services(*pairs):
    rows = [dict.fromkeys(SERVICE.names) | {"client": client, "served": at} for client, at in pairs]
    return pa.Table.from_pylist(rows, schema=SERVICE)


def test_a_run_without_interruption_has_no_block_of_legs():
    assert leg_summary(legs()) == {}


def test_legs_are_counted_with_the_first_and_gaps_are_given_as_they_are():
    table = legs((2, 40, 1.5, 12.0, 3), (3, 90, 4.0, math.nan, 0))
    assert leg_summary(table) == {"legs": {"count": 3, "gaps": [12.0, None], "recovered": 3}}
    assert leg_begins(table).tolist() == [1.5, 4.0]
    assert list(faults(leg_summary(table))) == []


@pytest.mark.parametrize(
    "damaged", [{"count": "3", "gaps": [], "recovered": 0}, {"count": 3, "gaps": [{}], "recovered": 0}, []]
)
def test_damaged_blocks_are_named(damaged):
    assert [fault.partition(":")[0] for fault in faults({"legs": damaged})] == ["legs"]
    assert [fault.partition(":")[0] for fault in faults({"presence": {"client": 0}})] == ["presence"]


def test_a_client_is_silent_from_the_start_between_two_uploads_and_to_the_end():
    found = presence(services((0, 1.0), (1, 7.0), (0, 2.0), (0, 10.0)), 3)
    assert [one["longest_silence"] for one in found] == [8.0, 7.0, 10.0]
    assert [one["share"] for one in found] == [0.75, 0.25, 0.0]
    assert presence(services(), 1) == [{"client": 0, "share": 0.0, "longest_silence": 0.0}]
    assert list(faults({"presence": found})) == []
