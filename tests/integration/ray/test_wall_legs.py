"""Runs under the wall clock that lose a process go on in place as a new leg; one whose driver dies, by `resume`."""

from __future__ import annotations

import dataclasses
import re
import signal
import sys

import pytest

import raydpzv
import scenarios
from raydpzv.errors import Lost
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.experiment.rebuild import rebuild
from raydpzv.experiment.reexecute import replay
from raydpzv.experiment.runner import continued
from raydpzv.records.run_folder import RunFolder
from tests.helpers import struck as struck_roles
from tests.helpers.runs import run_prepared
from tests.helpers.struck import Struck, strikes

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
    """Workers cannot import this file: send its classes along."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.cloudpickle.register_pickle_by_value(struck_roles)


@pytest.fixture
def struck(tmp_path):
    return strikes(tmp_path, client={"call": "work", "calls": 20}, server={"calls": 120})


class Listening(raydpzv.Callback):
    """Keeps the updates and the legs that it is told of."""

    def __init__(self):
        self.rounds, self.legs = set(), []

    def rows(self, rows):
        self.rounds |= set(rows["service"].column("round").to_pylist())
        self.legs += rows["leg"].to_pylist()


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


@pytest.mark.parametrize(("method", "lane"), [("dpzv", "auto"), ("vafl", "ray")])
def test_a_lost_server_begins_a_new_leg(struck, tmp_path, method, lane):
    """From a checkpoint of its own time; who watches hears of all that the new leg does."""
    folder, watch = tmp_path / "run", Listening()
    spec = spec_of(method, f"resources.lane={lane}")
    # the first one is of the run's beginning
    experiment = struck(spec, "server", after=str(folder / "checkpoint.before.state"))
    run_prepared(experiment, folder, runner="ray", callbacks=[watch])
    rows = check_whole(folder, 2)
    (fault,) = rows["fault"].to_pylist()
    assert (fault["party"], fault["kind"]) == ("server", "Lost")
    assert re.search(r"goes on from its checkpoint after update [1-9]", fault["message"])
    assert watch.rounds >= set(range(1, 241))
    assert watch.legs == rows["leg"].to_pylist()


def test_a_lost_client_of_a_method_without_a_ledger_begins_a_new_leg(struck, tmp_path):
    """Also where all clients wait for the one that is lost."""
    folder = tmp_path / "run"
    run_prepared(struck(spec_of("sgd"), "client"), folder, runner="ray")
    rows = check_whole(folder, 2)
    (fault,) = rows["fault"].to_pylist()
    assert (fault["party"], fault["kind"]) == ("client actor 1", "Lost")


def test_more_losses_than_are_allowed_end_the_run_and_it_can_be_resumed(struck, tmp_path):
    folder = tmp_path / "run"
    spec = spec_of("dpzv", "resources.restarts=1")
    with pytest.raises(Lost, match="an actor was lost"):
        run_prepared(struck(spec, "server", times=2, calls=60), folder, runner="ray")
    experiment, opened, _ = continued(folder)
    run_prepared(experiment, opened, runner="ray")
    check_whole(folder, 3)


@dataclasses.dataclass(frozen=True)
class StruckPulls(PreparedHorizontal):
    """A horizontal scenario whose server's process is killed at its n-th update, once."""

    mark: str = ""

    def server(self, ledger=None, device="cpu"):
        return Struck(super().server(ledger, device), "receive", 100, (self.mark,))


@pytest.mark.parametrize("name", ["decomfl_async", "digits_users_async"])
def test_a_lost_server_of_clients_that_pull_begins_a_new_leg(tmp_path, name):
    own = {
        "decomfl_async": ("split.clients=12", "method.batch=8", "model.hidden=[6]"),
        "digits_users_async": ("split.clients=3", "users.count=12"),
    }[name]
    small = [each for each in SMALL if not each.startswith("resources")]
    spec = scenarios.load(name, [*small, "clock.compute=0.002", "resources.hosts=2", *own])
    prepared, mark, folder = prepare_horizontal(spec), tmp_path / "mark", tmp_path / "run"
    mark.touch()
    struck = StruckPulls(
        **{f.name: getattr(prepared, f.name) for f in dataclasses.fields(prepared)}, mark=str(mark)
    )
    run_prepared(struck, folder, runner="ray")
    rows = RunFolder.open(folder).rows()
    assert sorted(rows["service"].column("round").to_pylist()) == list(range(1, 241))
    (leg,) = rows["leg"].to_pylist()
    assert leg["leg"] == 2
    assert leg["gap"] > 0
    (fault,) = rows["fault"].to_pylist()
    assert fault["party"] == "server"
    assert re.search(r"goes on from its checkpoint after update [1-9]", fault["message"])
    assert rebuild(folder).verified


def test_a_client_that_never_answers_is_given_up_and_its_share_of_the_updates_is_said(struck, tmp_path):
    folder, spec = tmp_path / "run", spec_of("dpzv", "resources.timeout=8", "evaluate.every=120")
    run_prepared(struck(spec, "client", number=signal.SIGSTOP), folder, runner="ray")
    (fault,) = check_whole(folder, 2)["fault"].to_pylist()
    assert fault["message"].startswith("waited 8 s for the held-out embeddings of client ")
    assert re.search(r"\(given up: client [13] made \d+ of \d+ updates\)", fault["message"])
    summary = RunFolder.open(folder).summary()
    (leg,) = summary["legs"]["gaps"]
    assert leg > 8, "what was not on record when the driver began to wait is no time of the run's"
    assert [client["client"] for client in summary["presence"]] == [0, 1, 2, 3]


def test_a_client_that_is_replaced_says_for_how_long_it_was_not_heard_of(struck, tmp_path):
    folder = tmp_path / "run"
    run_prepared(struck(spec_of("dpzv"), "client"), folder, runner="ray")
    (fault,) = check_whole(folder, 1)["fault"].to_pylist()
    assert re.search(
        r"; not heard of until now: client 1 for [\d.e-]+ s, client 3 for [\d.e-]+ s$", fault["message"]
    )
