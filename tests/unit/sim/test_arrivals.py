from itertools import islice

import numpy as np
import pytest
from scipy import stats

from raydpzv.errors import DataError
from raydpzv.keys import Key
from raydpzv.sim.arrivals import Constant, Poisson, Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.event_queue import EventQueue


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


def test_merged_poisson_clocks_have_each_clients_own_rate():
    """Gaps of the whole, shares of the clients, and gaps of one client; controls with the wrong
    rates.
    """
    rates = [0.5, 2.0, 0.0, 4.0, 1.5]
    drawn = list(islice(Poisson(rates, Key(47)).merged(), 8000))
    times = np.array([time for time, _ in drawn])
    clients = np.array([client for _, client in drawn])
    assert stats.kstest(np.diff(times, prepend=0), "expon", args=(0, 1 / 8)).pvalue > 0.01
    assert stats.kstest(np.diff(times, prepend=0), "expon", args=(0, 0.9 / 8)).pvalue < 1e-4
    counts = np.bincount(clients, minlength=5)
    assert counts[2] == 0
    some = [0, 1, 3, 4]
    shares = np.array(rates)[some] / 8
    assert stats.chisquare(counts[some], 8000 * shares).pvalue > 0.01
    assert stats.chisquare(counts[some], [2000] * 4).pvalue < 1e-6
    for client in some:
        gaps = np.diff(times[clients == client], prepend=0)
        assert stats.kstest(gaps, "expon", args=(0, 1 / rates[client])).pvalue > 0.01
        assert stats.kstest(gaps, "expon", args=(0, 0.6 / rates[client])).pvalue < 1e-3
    # who comes next depends neither on who came last nor on how long that took
    pairs = np.zeros((5, 5))
    np.add.at(pairs, (clients[:-1], clients[1:]), 1)
    assert stats.chi2_contingency(pairs[np.ix_(some, some)]).pvalue > 0.01
    assert abs(np.corrcoef(np.diff(times), clients[1:] == 3)[0, 1]) < 4 / np.sqrt(8000)


def test_parts_of_merged_poisson_clocks_share_the_clients_out_and_are_independent():
    rates = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    poisson = Poisson(rates, Key(3))
    whole = list(islice(poisson.merged(), 50))
    assert whole == list(islice(poisson.merged(0, 1), 50))
    assert whole != list(islice(Poisson(rates, Key(4)).merged(), 50))
    parts = [list(islice(poisson.merged(part, 3), 3000)) for part in range(3)]
    for part, found in enumerate(parts):
        assert {client for _, client in found} == {part, part + 3}
        times = [time for time, _ in found]
        assert times == sorted(times)
        rate = rates[part] + rates[part + 3]
        assert stats.kstest(np.diff(times, prepend=0), "expon", args=(0, 1 / rate)).pvalue > 0.01
        counts = np.bincount([client for _, client in found], minlength=6)[[part, part + 3]]
        expected = 3000 * np.array([rates[part], rates[part + 3]]) / rate
        assert stats.chisquare(counts, expected).pvalue > 0.01
    gaps = [np.diff([time for time, _ in found]) for found in parts]
    assert np.abs(np.corrcoef(gaps) - np.eye(3)).max() < 4 / np.sqrt(3000)
    assert list(poisson.merged(6, 7)) == []


@pytest.mark.parametrize(("part", "parts"), [(0, 1), (0, 2), (1, 2), (2, 3)])
def test_merged_constant_clocks_are_the_sorted_epochs(part, parts):
    constant = Constant([1.0, 2.0, 0.5, 2.0, 3.0])
    mine = range(part, 5, parts)
    every = sorted((t, m) for m in mine for t in islice(constant.epochs(m), 300))
    assert list(islice(constant.merged(part, parts), 100)) == every[:100]
    if parts == 1:
        assert (0.5, 1) in every
        assert every.index((0.5, 3)) == every.index((0.5, 1)) + 1


def test_a_merged_trace_is_the_sorted_trace_and_ends():
    trace = Trace({2: [0.5, 0.5, 2.0], 0: [0.5, 1.0], 5: [0.1]})
    assert list(trace.merged()) == [(0.1, 5), (0.5, 0), (0.5, 2), (0.5, 2), (1.0, 0), (2.0, 2)]
    assert list(trace.merged(0, 2)) == [(0.5, 0), (0.5, 2), (0.5, 2), (1.0, 0), (2.0, 2)]
    assert list(trace.merged(1, 2)) == [(0.1, 5)]
    assert list(trace.merged(1, 3)) == []


def test_delays_are_addressed_by_who_and_which():
    delays = DelayModel([2.0, 0.0], "exponential", Key(5))
    assert delays.of(0, 7) == delays.of(0, 7) != delays.of(0, 8)
    assert delays.of(1, 7) == 0.0
    draws = np.array([delays.of(0, k) for k in range(2000)])
    assert stats.kstest(draws, "expon", args=(0, 2.0)).pvalue > 0.01
    assert stats.kstest(draws, "expon", args=(0, 1.0)).pvalue < 1e-6
    assert DelayModel([2.0], "constant", Key(5)).of(0, 3) == 2.0


def test_the_event_queue_is_total_and_refuses_nan():
    events: EventQueue[str] = EventQueue()
    for time, event in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "d")):
        events.add(time, event)
    assert events.next_time() == 1.0
    assert [events.pop()[1] for _ in range(len(events))] == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="NaN"):
        events.add(float("nan"), "never")


def test_a_wall_clock_can_start_later():
    clock = WallClock.starting_in(60.0)
    assert -60.0 <= clock.now() < -50.0
    assert WallClock(clock.origin).now() == pytest.approx(clock.now(), abs=1.0)
