"""Runs under the wall clock that lose a client which cannot be rebuilt continue in place in a new segment."""

from __future__ import annotations

import re
import signal

import pytest

import scenarios
from raydpzv.experiment.reexecute import replay
from raydpzv.records.run_folder import RunFolder
from tests.helpers import struck as struck_roles
from tests.helpers.runs import run_prepared
from tests.helpers.struck import strikes

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SMALL = (
    *("clock.kind=wall", "arrivals.rate=40", "budget.updates=240", "evaluate.every=60"),
    *(
        "data.train_rows=150",
        "data.test_rows=40",
        "resources.client_actors=2",
        "record.checkpoint_updates=20",
    ),
)
PLAIN = ("privacy.mode=none",)


@pytest.fixture(scope="session", autouse=True)
def _by_value(ray_session):
    """Workers cannot import tests: send the classes along."""
    import ray

    ray.cloudpickle.register_pickle_by_value(struck_roles)


@pytest.fixture
def struck(tmp_path):
    return strikes(tmp_path, client={"call": "work", "calls": 20}, server={"calls": 120})


def spec_of(method, *more):
    found = "digits_dpzv" if method == "dpzv" else method
    return scenarios.load(found, [*SMALL, *(() if method == "dpzv" else PLAIN), *more])


def check_whole(folder, legs):
    """Each upload is served once, each leg is on record, and a replay has every bit."""
    found = RunFolder.open(folder)
    rows, summary = found.rows(), found.summary()
    assert summary["status"] == "done"
    assert sorted(rows["service"].column("round").to_pylist()) == list(range(1, 241))
    assert [row["leg"] for row in rows["leg"].to_pylist()] == list(range(2, legs + 1))
    assert all(row["gap"] > 0 for row in rows["leg"].to_pylist())
    assert replay(folder).verified
    if "ledger" in summary:
        assert summary["ledger"]["updates"] == rows["release"].num_rows == 240
    return rows


def test_a_lost_client_of_a_method_without_a_ledger_continues_in_a_new_segment(struck, tmp_path):
    """Also where all clients wait for the one that is lost."""
    folder = tmp_path / "run"
    run_prepared(struck(spec_of("sgd"), "client"), folder, runner="ray")
    rows = check_whole(folder, 2)
    (fault,) = rows["fault"].to_pylist()
    assert (fault["party"], fault["kind"]) == ("client actor 1", "Lost")


def test_a_client_that_never_answers_is_given_up_and_its_share_of_the_updates_is_said(struck, tmp_path):
    scenarios.run(spec_of("dpzv", "budget.updates=8"), runner="ray")  # leaves processes that come up in time
    folder, spec = tmp_path / "run", spec_of("dpzv", "resources.timeout=8", "evaluate.every=120")
    run_prepared(struck(spec, "client", number=signal.SIGSTOP), folder, runner="ray")
    (fault,) = check_whole(folder, 2)["fault"].to_pylist()
    assert fault["message"].startswith("waited 8 s for the held-out embeddings of client ")
    assert re.search(r"\(given up: client [13] made \d+ of \d+ updates\)", fault["message"])
    summary = RunFolder.open(folder).summary()
    (leg,) = summary["legs"]["gaps"]
    assert leg > 8, "what was not on record when the driver began to wait is no time of the run's"
    assert [client["client"] for client in summary["presence"]] == [0, 1, 2, 3]
