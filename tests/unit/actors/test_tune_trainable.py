"""A trial's run pauses at each evaluation until Tune lets it continue, and ends when Tune stops
it.
"""

import math
import threading

import pytest

from actors.tune_trainable import Pauses, PausingRun, measured
from raydpzv.engine.split_model import Metrics
from raydpzv.privacy.release import PrivacyLoss
from raydpzv.sim.interfaces import Status

LIMIT = 20


class Steps:
    """A run of evaluations after 0, 10, 20 and 30 updates; `made`: which it has made; ends when it
    is stopped.
    """

    def __init__(self, reason="", error=None):
        self.made, self._reason, self._error = [], reason, error

    def __call__(self, config, hooks):
        for updates in (0, 10, 20, 30):
            if hooks.stop.is_set():
                break
            self.made.append(updates)
            hooks.progress(Status(updates=updates))
            hooks.evaluated(Status(updates=updates), Metrics(config["base"] + updates, 0.5, 0.1))
        if self._error:
            raise self._error
        return self._reason


def test_a_run_waits_at_every_evaluation_and_reports_its_end():
    steps = Steps(reason="diverged")
    run = PausingRun(steps, {"base": 1}, Pauses(waits=True))
    assert run.next_report()["accuracy"] == 11
    assert steps.made == [0, 10]  # the model before its first update is no report
    assert [run.next_report()["updates"] for _ in range(2)] == [20, 30]
    assert run.next_report() == {"reason": "diverged"}


def test_a_run_that_is_stopped_makes_no_further_update():
    steps = Steps()
    run = PausingRun(steps, {"base": 1}, Pauses(waits=True))
    run.next_report()
    run.end()
    assert steps.made == [0, 10]
    assert not run.is_alive()
    PausingRun(steps, {}, Pauses(waits=True)).end()  # one that has not started


def test_a_run_of_the_wall_clock_does_not_wait():
    steps, over = Steps(), threading.Event()

    def work(config, hooks):
        steps(config, hooks)
        over.set()
        return ""

    run = PausingRun(work, {"base": 1}, Pauses(waits=False))
    run.next_report()
    assert over.wait(LIMIT)
    assert [run.next_report().get("updates") for _ in range(3)] == [20, 30, None]


def test_an_error_of_the_run_is_raised_where_it_is_asked():
    run = PausingRun(Steps(error=ValueError("no such batch")), {"base": 0}, Pauses(waits=True))
    for _ in range(3):
        run.next_report()
    with pytest.raises(ValueError, match="no such batch"):
        run.next_report()


def test_between_evaluations_a_run_reports_its_updates_and_stays_paused():
    go, came = threading.Event(), threading.Event()

    def work(config, hooks):
        hooks.progress(Status(updates=7))
        came.set()
        go.wait(LIMIT)
        return Steps()(config, hooks)

    run = PausingRun(work, {"base": 0}, Pauses(waits=True, beat=0.01))
    reports = [run.next_report()]
    assert came.wait(LIMIT)
    reports += [run.next_report(), run.next_report()]
    assert reports[-1] == {"updates": 7}
    go.set()
    while len(report := run.next_report()) == 1:
        pass
    assert report["updates"] == 10
    run.end()


def test_a_report_has_the_measured_values():
    metrics = Metrics(0.9, 0.2, 0.5, validation=Metrics(0.8, 0.3, 0.5, roc_auc=0.7, pr_auc=0.6))
    assert measured(Status(updates=3, time=1.5), metrics) == {
        "accuracy": 0.9,
        "loss": 0.2,
        "validation_accuracy": 0.8,
        "validation_loss": 0.3,
        "validation_roc_auc": 0.7,
        "validation_pr_auc": 0.6,
        "updates": 3,
        "simulated_seconds": 1.5,
    }
    spent = measured(Status(updates=3, privacy=PrivacyLoss(math.nan, 1.0, 1e-3)), metrics)
    assert "epsilon_paper" not in spent
    assert spent["epsilon_client"] > 0
