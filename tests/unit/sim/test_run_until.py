"""How far a run may go for now."""

from __future__ import annotations

import threading

import pytest

from raydpzv.errors import RunError
from raydpzv.sim.run_until import RunUntil


def test_without_a_limit_nothing_is_asked_for():
    asked = []
    horizon = RunUntil(lambda: asked.append(1))
    for update in (1, 10**9):
        horizon.reach(update)
    assert (asked, horizon.made) == ([], 10**9 - 1)


def test_more_is_asked_for_half_way_and_the_run_stands_still_at_the_limit():
    asked = []
    horizon = RunUntil(lambda: asked.append(horizon.made))
    horizon.allow(10)
    for update in range(1, 11):
        horizon.reach(update)
    assert asked[0] == 5
    passed = threading.Event()
    thread = threading.Thread(target=lambda: (horizon.reach(11), passed.set()))
    thread.start()
    while horizon.made < 10:
        pass
    assert not passed.is_set()
    horizon.allow(11)
    thread.join()
    assert passed.is_set()


@pytest.mark.parametrize("let", [lambda horizon: horizon.deny("full"), lambda horizon: horizon.allow(None)])
def test_who_stands_still_is_woken_whatever_comes(let):
    """By another thread, after it has begun to wait."""
    ended, waits = [], threading.Event()
    horizon = RunUntil(waits.set)
    horizon.allow(0)

    def run():
        try:
            horizon.reach(1)
            ended.append("on")
        except RunError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    waits.wait()
    while not horizon._changed._waiters:
        pass
    let(horizon)
    thread.join(60)
    assert ended in (["full"], ["on"])


def test_a_limit_of_one_update_is_asked_for_at_each():
    asked = []
    horizon = RunUntil(lambda: asked.append(horizon.made))
    for made in range(3):
        horizon.allow(made + 1)
        horizon.reach(made + 1)
    assert asked == [0, 1, 2]


def test_who_waits_is_told_that_no_more_is_to_come():
    horizon = RunUntil(lambda: horizon.deny("the storage is full"))
    horizon.allow(0)
    for _ in range(2):
        with pytest.raises(RunError, match="the storage is full"):
            horizon.reach(1)
    horizon.deny("and then more went wrong")
    with pytest.raises(RunError, match="full"):
        horizon.note(0)
