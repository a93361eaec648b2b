import heapq
import math

import pytest

from raydpzv.search.asha import SHARE, Bracket, TrialLeg

NONE = math.nan
RUNGS, BUDGET = (10, 20), 100


def bracket(trials=8, *, higher=True, rungs=RUNGS, budget=BUDGET):
    return Bracket(rungs, budget, range(trials), higher=higher)


def played(found, value, workers, pace=lambda trial: 1.0):
    """Let workers make the legs they are given; value: by (trial, updates). Returns legs in order,
    and updates made.
    """
    busy, legs, made, now = [], [], {}, 0.0
    while True:
        while len(busy) < workers and (leg := found.next()):
            legs.append(leg)
            end = leg.until or BUDGET
            made[leg.trial] = end
            assert sum(made.values()) <= SHARE * BUDGET * len(made), "at any moment"
            heapq.heappush(
                busy, (now + (end - leg.since) * pace(leg.trial), leg.trial, len(legs), leg)
            )
        if not busy:
            return legs, made
        now, *_, leg = heapq.heappop(busy)
        found.arrived(leg.trial, value(leg.trial, leg.until))


def begin(found, values):
    """Let the first trials come to the first rung with these metrics, before anything else is asked
    for.
    """
    for trial, value in enumerate(values):
        found.send(trial, 0)
        found.arrived(trial, value)


def test_new_trials_begin_where_no_rung_has_one_to_give():
    found = bracket(3)
    assert [
        (leg.trial, leg.since, leg.until) for leg in (found.next(), found.next(), found.next())
    ] == [
        (0, 0, 10),
        (1, 0, 10),
        (2, 0, 10),
    ]
    assert found.next() is None, "all are on their way"


@pytest.mark.parametrize(("higher", "best"), [(True, 1), (False, 0)])
def test_the_best_of_those_that_came_continues_and_the_first_has_nobody_to_be_better_than(
    higher, best
):
    found = bracket(higher=higher)
    found.next(), found.next()
    found.arrived(0, 0.1)
    assert found.next().trial == 2, "one of one is not the better half"
    found.arrived(1, 0.2)
    assert found.next() == TrialLeg(best, 10, 20, (0.1, 0.2)[best])
    assert found.next().trial == 3, "one of two has gone on"


def test_who_stands_is_held_against_those_that_come_later():
    found = bracket()
    begin(found, [0.1, 0.9, 0.2])
    assert found.next().trial == 1
    assert found.next().trial == 3, "0.2 is second of three"
    found.arrived(3, 0.15)
    assert found.next() == TrialLeg(2, 10, 20, 0.2), "second of four"


def test_the_highest_rung_comes_first():
    found = bracket(12)
    begin(found, [0.5, 0.6, 0.7, 0.8, *[0.1] * 8])
    for trial in (3, 2):
        found.send(trial, 1)
        found.arrived(trial, trial / 10)
    assert found.next() == TrialLeg(3, 20, None, 0.3)
    assert found.next() == TrialLeg(1, 10, 20, 0.6)


def test_no_trial_continues_beyond_the_share_of_those_that_have_begun_with_the_whole_way_of_one_left():
    found = bracket(8)
    begin(found, [0.5, 0.6])
    assert found.next().trial == 2, (
        "20 and 10 more and the 90 of one: 120 of the 100 that two may make"
    )
    found.arrived(2, 0.1)
    assert found.next() == TrialLeg(1, 10, 20, 0.6), "130 of 150"
    found.arrived(1, 0.6)
    begin(found, [0.5, 0.6, 0.1, 0.4])
    for trial in (1, 0):
        found.send(trial, 1)
        found.arrived(trial, trial / 10)
    assert found.next().trial == 4, "60 and 80 more and the 90: 230 of the 200 that four may make"
    found.arrived(4, 0.05)
    assert found.next() == TrialLeg(1, 20, None, 0.1), "240 of 250"


def test_what_is_left_goes_to_the_best_as_long_as_it_suffices_for_their_whole_way():
    """The best come last here, after others have gone far."""
    found = bracket(8)
    legs, made = played(found, lambda trial, updates: trial / 10, workers=1)
    assert made[7] == made[6] == BUDGET, "the best of all"
    assert found.next() is None
    stand = {n: updates for n, updates, _ in found.paused}
    assert sorted([*stand, *(n for n in made if made[n] == BUDGET)]) == list(range(8))
    assert sum(made.values()) + BUDGET - max(stand.values()) > SHARE * 8 * BUDGET, "not one more"
    assert legs[-1].trial not in stand, "nobody is sent where it would have to stay"


def test_the_share_is_used_to_its_last_update():
    """20 of each of eight and 80 more of three are half of 800; 25 of each of four leave room for
    the way of one.
    """
    found = bracket(8, rungs=(20,))
    assert (
        sum(played(found, lambda trial, updates: trial / 10, workers=1)[1].values())
        == SHARE * 8 * BUDGET
    )
    found = bracket(8, rungs=(25, 50))
    begin(found, [0.1, 0.2, 0.3, 0.4])
    assert found.next() == TrialLeg(3, 25, 50, 0.4), "100 and 25 more and the 75: 200 of 200"


def test_nobody_is_given_what_is_left_before_all_on_the_way_to_its_rung_have_come():
    found = bracket(4)
    begin(found, [0.1, 0.2, 0.3])
    found.send(3, 0)
    found.send(2, 1)
    found.arrived(2, 0.3)
    assert found.next() is None, "trial 3 may be better"
    found.arrived(3, 0.05)
    assert found.next() == TrialLeg(1, 10, 20, 0.2)


def test_one_trial_comes_to_its_end_in_any_case():
    """Two may make 100 updates together, of which one needs 10 for its first rung."""
    legs, made = [], {}
    found = bracket(2)
    while leg := found.next():
        legs.append(leg)
        made[leg.trial] = leg.until or BUDGET
        found.arrived(leg.trial, leg.trial / 10)
    assert made == {0: 10, 1: 100}
    assert [(leg.since, leg.until) for leg in legs if leg.trial == 1] == [
        (0, 10),
        (10, 20),
        (20, None),
    ]
    alone = bracket(1)
    assert alone.next().until == 10
    alone.arrived(0, NONE)
    assert alone.next() == TrialLeg(0, 10, 20, pytest.approx(NONE, nan_ok=True)), (
        "without a metric too"
    )


def test_a_trial_without_a_metric_or_that_is_over_does_not_continue():
    found = bracket(8, higher=False)
    begin(found, [NONE, 0.4, 0.5, 0.6])
    assert [found.next().trial for _ in range(3)] == [1, 2, 4]
    over = bracket(8)
    for trial, value in enumerate((0.9, 0.4, 0.3)):
        over.send(trial, 0)
        over.arrived(trial, value, over=value == 0.9)
    assert over.next().trial == 3, "the best of three is over, and one goes on"
    assert [n for n, *_ in over.paused] == [1, 2]
    last = bracket(2)
    for trial, value in enumerate((0.9, NONE)):
        last.send(trial, 0)
        last.arrived(trial, value, over=trial == 0)
    assert last.next().trial == 1, "nobody else can come to an end"


def test_nobody_waits_for_a_trial_that_broke_off():
    found = bracket(3)
    begin(found, [0.1, 0.2])
    found.send(2, 0)
    found.send(1, 1)
    found.lost(2)
    found.arrived(1, 0.2)
    assert found.next() == TrialLeg(1, 20, None, 0.2)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_however_many_at_a_time_each_goes_from_rung_to_rung_within_the_share(workers):
    found = Bracket(RUNGS, BUDGET, range(12), higher=True)
    legs, made = played(
        found, lambda trial, updates: (trial * 5) % 12, workers, pace=lambda trial: 1 + trial % 3
    )
    for trial in range(12):
        way = [(leg.since, leg.until) for leg in legs if leg.trial == trial]
        assert way == [(0, 10), (10, 20), (20, None)][: len(way)]
    assert made[7] == BUDGET, "the best"
    assert sum(made.values()) <= SHARE * 12 * BUDGET
