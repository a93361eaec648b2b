"""A ranking in lines: its two ends, or all of it."""

from __future__ import annotations

import math

from raydpzv.engine.split_model import Metrics
from raydpzv.timetravel.shown import absence_line, ranking_lines, ranking_table
from raydpzv.timetravel.what_if import Absence

RANKED = [Absence(client, Metrics(0.5, client / 10, 0.1), client / 10 - 1) for client in range(25)]


def test_a_long_ranking_shows_both_ends_and_how_many_are_between() -> None:
    lines = list(ranking_lines(RANKED, 10))
    named = [line.split(":")[0] for line in lines]
    assert named[:10] == [f"without client {k}" for k in range(10)]
    assert lines[10] == "... 5 more: --all lists them, --csv writes a table"
    assert named[11:] == [f"without client {k}" for k in range(15, 25)]


def test_a_short_ranking_and_all_of_one_leave_nothing_out() -> None:
    assert len(list(ranking_lines(RANKED, None))) == 25
    assert len(list(ranking_lines(RANKED[:20], 10))) == 20


def test_the_table_has_a_row_for_each_client() -> None:
    head, *rows = ranking_table(RANKED)
    assert head == ("place", "client", "change", "loss", "accuracy")
    assert rows[3] == (4, 3, RANKED[3].change, 0.3, 0.5)
    assert len(rows) == 25


def test_an_absence_without_a_finite_loss_is_neither_higher_nor_lower() -> None:
    line = absence_line(Absence(3, Metrics(math.nan, math.nan, 0.1), math.nan))
    assert line == "without client 3: loss nan (no finite loss to compare)"
