from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from scipy import stats

from raydpzv.errors import DataError
from raydpzv.keys import Key
from raydpzv.sim.agenda import Agenda
from raydpzv.sim.arrivals import Constant, Delays, Poisson, Trace
from raydpzv.sim.clock import VirtualClock, WallClock


def test_poisson_gaps_are_exponential_with_the_clients_own_rate():
    poisson = Poisson([0.5, 8.0], Key(3))
    for client, rate in ((0, 0.5), (1, 8.0)):
        gaps = np.diff([0.0, *islice(poisson.epochs(client), 4000)])
        assert stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue > 0.01
        assert stats.kstest(gaps, "expon", args=(0, 0.9 / rate)).pvalue < 1e-4


def test_clients_clocks_are_independent_and_depend_on_the_key_alone():
    def first(poisson, client):
        return list(islice(poisson.epochs(client), 500))

    poisson = Poisson([1.0, 1.0], Key(3))
    assert first(poisson, 0) == first(poisson, 0)
    assert first(poisson, 0) != first(Poisson([1.0, 1.0], Key(4)), 0)
    gaps = [np.diff(first(poisson, client)) for client in (0, 1)]
    assert abs(np.corrcoef(gaps)[0, 1]) < 0.15


def test_constant_epochs_do_not_drift():
    assert list(islice(Constant([3.0]).epochs(0), 3)) == [1 / 3, 2 / 3, 3 / 3]
    assert next(islice(Constant([3.0]).epochs(0), 2_999, None)) == 1000.0


def test_a_trace_ends_and_must_be_in_order():
    trace = Trace({1: [0.5, 0.5, 2.0]})
    assert list(trace.epochs(1)) == [0.5, 0.5, 2.0]
    assert list(trace.epochs(0)) == []
    with pytest.raises(DataError, match="ascending"):
        Trace({0: [1.0, 0.5]})
    with pytest.raises(DataError, match="finite"):
        Trace({0: [float("nan")]})


def test_delays_are_addressed_by_who_and_which():
    delays = Delays([2.0, 0.0], "exponential", Key(5))
    assert delays.of(0, 7) == delays.of(0, 7) != delays.of(0, 8)
    assert delays.of(1, 7) == 0.0
    draws = np.array([delays.of(0, k) for k in range(2000)])
    assert stats.kstest(draws, "expon", args=(0, 2.0)).pvalue > 0.01
    assert stats.kstest(draws, "expon", args=(0, 1.0)).pvalue < 1e-6
    assert Delays([2.0], "constant", Key(5)).of(0, 3) == 2.0


def test_the_agenda_is_total_and_refuses_nan():
    agenda: Agenda[str] = Agenda()
    for time, event in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "d")):
        agenda.add(time, event)
    assert agenda.next_time() == 1.0
    assert [agenda.pop()[1] for _ in range(len(agenda))] == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="NaN"):
        agenda.add(float("nan"), "never")


def test_the_virtual_clock_never_goes_back():
    clock = VirtualClock()
    clock.advance(2.0)
    clock.advance(1.0)
    assert clock.now() == 2.0


def test_a_wall_clock_can_start_later():
    clock = WallClock.starting_in(60.0)
    assert -60.0 <= clock.now() < -50.0
    assert WallClock(clock.origin).now() == pytest.approx(clock.now(), abs=1.0)
