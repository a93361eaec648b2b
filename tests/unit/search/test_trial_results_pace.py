"""Trials that missed their scenario's pace are told from those that chance slowed down."""

from __future__ import annotations

import math

import pytest

import scenarios
from raydpzv.keys import Key
from raydpzv.search.trial_results import missed, rate_asked


def test_rates_are_asked_of_a_machine_by_the_wall_clock_alone(small):
    rates = "arrivals.rate=[1, 2, 3, 4.5]"
    assert rate_asked(small("clock.kind=wall", rates)) == 10.5
    assert rate_asked(small("clock.kind=wall", "arrivals.rate=2")) == 8
    for free in (
        small(rates),
        small("clock.kind=wall", "arrivals.kind=immediate"),
        scenarios.load("frozen", ["clock.kind=wall", "method.name=sgd"]),  # a barrier: all wait for all
    ):
        assert math.isnan(rate_asked(free)), free.method.name


def row(asked, seconds, uploads, late=0.0):
    return {"rate_asked": asked, "throughput": uploads / seconds, "late": late, "uploads": float(uploads)}


def test_a_rate_that_is_kept_is_not_warned_of_whatever_chance_does():
    """A control: Poisson counts of the rate asked are in order nearly always, those of four fifths of it never."""
    counts = Key(5).generator().poisson(1000, 500)
    assert sum(missed(row(10.0, 100.0, int(count))) != "" for count in counts) <= 2
    slow = Key(6).generator().poisson(800, 500)
    assert all(missed(row(10.0, 100.0, int(count))) for count in slow)
    assert missed(row(10.0, 1.0, 8)) == ""  # so few say nothing


def test_what_was_missed_is_said():
    assert missed(row(10.0, 100.0, 500, late=0.34)) == (
        "34% of its activations began late and 5 uploads a second came, 10 are asked"
    )
    assert missed(row(math.nan, 100.0, 500, late=0.34)) == ""
    assert missed(row(10.0, math.nan, 0, late=math.nan)) == ""


@pytest.mark.parametrize("late", [0.0, 0.1])
def test_a_tenth_may_be_late(late):
    assert missed(row(10.0, 100.0, 1000, late=late)) == ""
