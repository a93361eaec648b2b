"""ASHA that promotes, on Ray Tune: one at a time as without Ray, side by side within its share,
stopped and gone on.
"""

import threading

import pytest

from actors.tune_search import TuneSearch, tune_cluster
from raydpzv.compare.run_comparison import run_planned
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.asha import SHARE, Promotion
from raydpzv.search.search_folder import decisions, search_begun
from raydpzv.search.search_plan import read_search
from raydpzv.search.trial_results import search_results
from tests.helpers.searches import FREE, SPACE, UPDATES, searched, table

pytestmark = pytest.mark.ray

TRIALS = 5
RUNGS = (5, 10, 20)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The search without Ray."""
    folder = tmp_path_factory.mktemp("promotion") / "alone"
    searched(folder, "digits_dpzv", SPACE, FREE, TRIALS, "--scheduler", "asha", "--runner", "local")
    return folder


def test_one_trial_at_a_time_gives_the_search_without_ray(ray_session, alone, tmp_path):
    folder = tmp_path / "one"
    searched(folder, "digits_dpzv", SPACE, FREE, TRIALS, "--scheduler", "asha", "--jobs", 1)
    assert table(folder) == table(alone)
    assert decisions(folder) == decisions(alone)
    assert not (folder / "tune").exists()


class Watched:
    """Keeps who was sent on; `after`: called with each trial that is over."""

    def __init__(self, after=lambda trial: None):
        self.legs, self._after = [], after

    def sent(self, leg):
        self.legs.append(leg)

    def began(self, trial):
        pass

    def reported(self, trial, report):
        pass

    def ended(self, trial, reason):
        assert reason == ""
        self._after(trial)


def test_stopped_by_the_user_and_gone_on_with_two_at_a_time(ray_session, alone, tmp_path):
    plan, stop = read_search(alone / "search.toml"), threading.Event()
    over = []

    def stop_at_the_second(trial):
        over.append(trial)
        if len(over) == 2:
            stop.set()

    for watch in (Watched(stop_at_the_second), Watched()):
        with tune_cluster(None, verbose=False), search_begun(tmp_path, plan):
            todo = Promotion(tmp_path, plan)
            TuneSearch(plan, tmp_path, watch, stop, 2).promote(todo)
            if not stop.is_set():
                todo.close()
        if stop.is_set():
            assert not any(d.stop for d in decisions(tmp_path))
            assert len({leg.trial for leg in watch.legs}) < TRIALS
            stop.clear()
    results = search_results(tmp_path, plan)
    assert {row["status"] for row in results.rows} == {"done", "stopped early"}
    assert sum(row["updates"] for row in results.rows) <= SHARE * UPDATES * TRIALS
    for row in results.rows:
        way = [d.updates for d in decisions(tmp_path) if d.trial == row["trial"]]
        assert way == [*RUNGS][: len(way)]
        assert row["updates"] == (UPDATES if row["status"] == "done" else way[-1])
    best = results.best
    assert run_planned(best.planned(), tmp_path / "best") == ""
    assert RunFolder(tmp_path / "best").summary()["digest"] == results.rows[best.number]["digest"]
