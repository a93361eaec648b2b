import dataclasses
import json
import re
import signal
import threading
from pathlib import Path

import pytest
import ray

import raydpzv
import scenarios
from actors.driver import Driver
from actors.vertical.driver import _Driver
from raydpzv.errors import Lost, RunError, Stalled
from raydpzv.experiment.finalize import RunFinalizer
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.rebuild import rebuild, replay
from raydpzv.experiment.resuming import continued, resuming
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.records.checkpoint import CHECKPOINT
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.store import digest
from tests.helpers import struck_hosts
from tests.helpers.contradictions import change, contradictions, forget_waiting
from tests.helpers.kills import kill_at
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import small as small_rounds
from tests.helpers.struck import StruckClient, strikes

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SMALL = (
    "budget.updates=240",
    "evaluate.every=60",
    "data.train_rows=150",
    "data.test_rows=40",
    "resources.client_actors=2",
    "privacy.noise=seeded",
    "record.checkpoint_updates=20",
)
WALL = ("clock.kind=wall", "arrivals.rate=40")
ROUNDS = ("budget.updates=12", "evaluate.every=6")


@pytest.fixture
def struck(tmp_path):
    """Make a vertical experiment in which client 1's process, or the server's, gets a signal."""
    return strikes(tmp_path)


@pytest.fixture
def killing(tmp_path):
    """Make an experiment in which clients' processes are killed `times` times, at calls of the
    methods given.
    """

    def make(spec, methods, calls=20, times=1):
        experiment, clients = prepare_vertical(spec), []
        for client in experiment.clients:
            marks = tuple(str(tmp_path / f"mark {client.client} {n}") for n in range(times))
            if client.client in methods:
                for mark in marks:
                    Path(mark).touch()
                client = StruckClient(
                    **vars(client), call=methods[client.client], calls=calls, marks=marks
                )
            clients.append(client)
        return dataclasses.replace(experiment, clients=tuple(clients))

    return make


@pytest.fixture
def mortal(tmp_path):
    """Make a prepared horizontal scenario whose host dies; without arguments once."""
    return lambda *overrides, **how: struck_hosts.mortal(
        prepare_horizontal(rounds(*overrides)), tmp_path, **how
    )


def spec_of(method, *more):
    return scenarios.load("digits_dpzv" if method == "dpzv" else method, [*SMALL, *more])


def rounds(*overrides):
    return scenarios.load("digits_decomfl", [*ROUNDS, *overrides])


def check_same(found, whole):
    assert digest({**found.tables, "fault": whole.rows("fault")}) == whole.summary["digest"]
    assert found.summary["model_digest"] == whole.summary["model_digest"]
    assert found.summary.get("ledger", {}).get("digest") == whole.summary.get("ledger", {}).get(
        "digest"
    )


class Listening(raydpzv.Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.tables, self.evaluations, self.faults, self.ends = [], [], [], 0

    def rows(self, rows):
        self.tables.append(rows)

    def evaluation(self, evaluation):
        self.evaluations.append((evaluation.update, evaluation.part))

    def fault(self, fault):
        self.faults.append(fault)

    def end(self, summary):
        self.ends += 1


def test_a_lost_client_of_a_method_without_a_ledger_leaves_no_trace(struck, tmp_path):
    spec = spec_of("vafl")
    found = run_prepared(struck(spec, "client"), tmp_path / "run", runner="ray")
    check_same(found, scenarios.run(spec))
    (fault,) = found.rows("fault").to_pylist()
    assert (fault["party"], fault["kind"]) == ("client actor 1", "Lost")
    assert "all actors are made again (1 of 3)" in fault["message"]
    assert found.summary["faults"] == [fault]


def test_a_callback_gets_every_row_once_though_the_server_is_lost(struck, tmp_path):
    spec, watch, evaluated = spec_of("dpzv"), Listening(), []
    found = run_prepared(
        struck(spec, "server"),
        tmp_path / "run",
        runner="ray",
        callbacks=[watch],
        evaluated=lambda status, metrics: evaluated.append(status.updates),
    )
    check_same(found, scenarios.run(spec))
    (fault,) = watch.faults
    assert fault.party == "server"
    assert "continues from its checkpoint after update" in fault.message
    assert evaluated == [0, 60, 120, 180, 240]
    assert [update for update, part in watch.evaluations if part == "test"] == evaluated
    for name, table in found.tables.items():
        told = [row for rows in watch.tables for row in rows[name].to_pylist()]
        assert [str(row) for row in told] == [str(row) for row in table.to_pylist()], name
    assert watch.ends == 1
    assert not (tmp_path / "run" / "checkpoint.state").exists()


def test_a_run_whose_noise_was_not_kept_ends_with_the_loss(struck, tmp_path):
    noise = (
        "privacy.mode=paper",
        "privacy.epsilon=1.0",
        "privacy.delta=1e-5",
        "privacy.clip=1.0",
        "privacy.noise=system",
    )
    with pytest.raises(Lost, match=r"an actor was lost.*noise on every embedding row") as caught:
        run_prepared(struck(spec_of("vafl", *noise), "client"), tmp_path / "run", runner="ray")
    assert "\n" not in str(caught.value)
    assert RunFolder.open(tmp_path / "run").summary()["status"] == "failed"


def test_rounds_of_a_private_run_wait_until_their_checkpoint_is_written(tmp_path, monkeypatch):
    """A round that no checkpoint knew of would be a release that no account knows of, once the
    server is lost.
    """
    written, ahead = [0], []
    write = RunWriter.write_checkpoint

    def slowly(self, checkpoint):
        threading.Event().wait(0.1)
        written.append(checkpoint.round)
        return write(self, checkpoint)

    monkeypatch.setattr(RunWriter, "write_checkpoint", slowly)
    spec = scenarios.load(
        "digits_users", ["budget.updates=4", "evaluate.every=4", "resources.hosts=1"]
    )
    run = scenarios.run(
        spec,
        tmp_path / "run",
        runner="ray",
        progress=lambda status: ahead.append(status.updates - written[-1]),
    )
    assert run.summary["updates"] == 4
    assert written == list(range(4))
    assert max(ahead) <= 1


def test_a_run_whose_checkpoint_contradicts_its_ledger_resumes_before_it(tmp_path):
    """The epochs that waited are not those of the checkpoint's moment."""
    spec = small_rounds(
        "asynchronous", "arrivals.rate=9", "record.checkpoint_updates=4", "record.flush=1000"
    )
    whole, folder = scenarios.run(spec), tmp_path / "run"
    kill_at(14, spec, folder)
    change(folder / CHECKPOINT, forget_waiting)
    prepared, opened, _ = continued(folder)
    heard = Listening()
    found = run_prepared(prepared, opened, runner="ray", callbacks=[heard])
    check_same(found, whole)
    (said,) = contradictions(found)
    assert said.endswith("the run resumes from its checkpoint after update 8")
    assert [(fault.party, fault.message) for fault in heard.faults] == [("checkpoint", said)]


def test_losses_beyond_the_limit_end_the_run(small, killing, tmp_path, monkeypatch):
    """Here the server's machine is not that of the run folder, where the ledger is kept."""
    monkeypatch.setattr("actors.vertical.driver._here", lambda: "another machine")
    spec = small("resources.client_actors=1", "resources.restarts=1")
    with pytest.raises(RunError, match="an actor was lost"):
        run_prepared(
            killing(spec, {2: "process"}, calls=16, times=2), tmp_path / "run", runner="ray"
        )
    summary = RunFolder.open(tmp_path / "run").summary()
    faults = RunFolder.open(tmp_path / "run").rows()["fault"].column("kind").to_pylist()
    assert (summary["status"], faults) == ("failed", ["Lost", "Lost"])
    assert summary["ledger"]["updates"] == summary["updates"] > 10
    assert summary["ledger"]["bytes"] > 0
    # the ledger is free, and what was released is sent again
    experiment, folder, _ = resuming(tmp_path / "run")
    found = run_prepared(experiment, folder, runner="local").summary["ledger"]
    assert found["digest"] == scenarios.run(small()).summary["ledger"]["digest"]


def lost_rows(run):
    return [row for row in run.rows("fault").to_pylist() if row["kind"] == "Lost"]


def test_under_the_wall_clock_a_lost_answer_is_applied_and_no_release_is_drawn_twice(
    small, killing, tmp_path, monkeypatch
):
    """Client 0 is killed with an answer in its hands, client 1 in the midst of its work."""
    accounts, done = [], RunFinalizer.done
    monkeypatch.setattr(
        RunFinalizer, "done", lambda self, *a: accounts.append(a[2]) or done(self, *a)
    )
    spec = small(
        "clock.kind=wall", "privacy.noise=system", "budget.updates=150", "arrivals.rate=12",
        "resources.client_actors=2", "evaluate.every=100",
    )  # fmt: skip
    run = run_prepared(
        killing(spec, {0: "apply", 1: "work"}, calls=6), tmp_path / "run", runner="ray"
    )
    assert (run.summary["status"], run.summary["updates"]) == ("done", 150)
    faults = {row["party"]: row["message"] for row in lost_rows(run)}
    assert faults.keys() == {"client actor 0", "client actor 1"}
    silent = r"; not heard of until now: client 1 for [\d.e-]+ s, client 3 for [\d.e-]+ s$"
    assert re.search(silent, faults["client actor 1"])
    rows = run.rows("release").to_pylist()
    addresses = {(row["client"], row["step"], row["perturbation"]) for row in rows}
    assert (
        len(addresses) == len(rows) == accounts[0].releases == run.summary["ledger"]["pairs"] == 150
    )
    for client in range(4):
        assert rebuild(tmp_path / "run", client=client).verified
        due = [row["due"] for row in run.rows("service").to_pylist() if row["client"] == client]
        assert due == sorted(due)
        assert len(set(due)) == len(due)
    assert replay(tmp_path / "run").verified


def test_a_client_that_is_killed_when_all_are_to_stop_is_replaced_too(small, tmp_path, monkeypatch):
    stop = _Driver._stop_loops

    def kill_and_stop(self, timeout):
        ray.kill(self._actor_set.actors[1])
        stop(self, timeout)

    monkeypatch.setattr(_Driver, "_stop_loops", kill_and_stop)
    spec = small(*WALL, "resources.client_actors=2")
    run = scenarios.run(spec, tmp_path / "run", runner="ray")
    assert (run.summary["status"], run.summary["updates"]) == ("done", 120)
    assert [row["party"] for row in lost_rows(run)] == ["client actor 1"]
    assert replay(tmp_path / "run").verified


def check_segments(folder):
    """Each upload is served once, the second segment is on record, and a replay has every bit."""
    found = RunFolder.open(folder)
    rows, summary = found.rows(), found.summary()
    assert summary["status"] == "done"
    assert sorted(rows["service"].column("round").to_pylist()) == list(range(1, 241))
    (segment,) = rows["leg"].to_pylist()
    assert segment["leg"] == 2
    assert segment["gap"] > 0
    assert replay(folder).verified
    if "ledger" in summary:
        assert summary["ledger"]["updates"] == rows["release"].num_rows == 240
    return rows


def test_a_lost_client_of_a_method_without_a_ledger_continues_in_a_new_segment(struck, tmp_path):
    """Also where all clients wait for the one that is lost."""
    lost = struck(spec_of("sgd", *WALL, "privacy.mode=none"), "client", call="work", calls=20)
    run_prepared(lost, tmp_path / "run", runner="ray")
    (fault,) = check_segments(tmp_path / "run")["fault"].to_pylist()
    assert (fault["party"], fault["kind"]) == ("client actor 1", "Lost")


def test_a_client_that_never_answers_is_given_up_and_its_share_of_the_updates_is_said(
    struck, tmp_path, monkeypatch
):
    ask = _Driver._ask

    def ask_in_haste(self, *what):
        if (
            not (tmp_path / "mark 0").exists() and self._segment.number == 1
        ):  # not where processes are to start
            self._timeout = 5.0
        return ask(self, *what)

    monkeypatch.setattr(_Driver, "_ask", ask_in_haste)
    folder, spec = tmp_path / "run", spec_of("dpzv", *WALL, "evaluate.every=120")
    silent = struck(spec, "client", number=signal.SIGSTOP, call="work", calls=20)
    run_prepared(silent, folder, runner="ray")
    (fault,) = check_segments(folder)["fault"].to_pylist()
    assert fault["message"].startswith("waited 5 s for the held-out embeddings of client ")
    assert re.search(r"\(given up: client [13] made \d+ of \d+ updates\)", fault["message"])
    summary = RunFolder.open(folder).summary()
    (gap,) = summary["legs"]["gaps"]
    assert gap > 5, "what was not on record when the driver began to wait is no time of the run's"
    assert [client["client"] for client in summary["presence"]] == [0, 1, 2, 3]


def check_failed(path):
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["updates"] >= 7


def test_a_host_lost_beyond_the_limit_fails_the_run_with_a_readable_folder(mortal, tmp_path):
    prepared = mortal("resources.hosts=1", "resources.restarts=0")
    with pytest.raises(RunError, match=r"host 0 was lost and resources.restarts = 0") as caught:
        run_prepared(prepared, tmp_path / "run", runner="ray")
    assert "\n" not in str(caught.value)
    check_failed(tmp_path / "run")
    assert rebuild(tmp_path / "run").updates >= 7


@pytest.mark.parametrize("victim", ["ledger", "host"])
def test_a_lost_ledger_actor_or_the_only_copy_of_models_restarts_all_actors(
    mortal, tmp_path, victim
):
    """Models of clients that are no function of the ledger are the host's alone."""
    copies = ("method.replicas=per_client", "method.revert=add_back", "method.momentum=0")
    more = (
        (*copies, "method.local_steps=2", "record.checkpoint_updates=3") if victim == "host" else ()
    )
    whole = scenarios.run(rounds(*more)).summary
    found = run_prepared(
        mortal(*more, "resources.hosts=1", victim=victim), tmp_path / "run", runner="ray"
    )
    assert digest({**found.tables, "fault": found.rows("fault").slice(0, 0)}) == whole["digest"]
    for name in ("model_digest", "drift"):  # of separate models alone
        assert found.summary.get(name) == whole.get(name), name
    assert found.summary["ledger"]["digest"] == whole["ledger"]["digest"]
    (fault,) = found.summary["faults"]
    assert fault["party"] == ("ledger" if victim == "ledger" else "host 0")
    assert "all actors are made again (1 of 3), and the run continues from its" in fault["message"]


def test_the_wall_clock_is_real_and_continues_without_a_client_group(mortal, tmp_path):
    prepared = mortal(
        "method.asynchronous=true",
        "clock.kind=wall",
        "clock.compute=0.05",
        "budget.updates=100000",
        "budget.seconds=600",
        "arrivals.rate=0.3",
        "evaluate.every=25",
        "resources.hosts=2",
        deaths=1,
        after=12,
    )
    stop, marks, complete = threading.Event(), Path(prepared.marks), list[int]()

    def look(status):
        """Host by host: one dies at its 12th piece of work; when the new one has worked with the
        other, it is over.
        """
        if len(list(marks.iterdir())) == 3:
            complete.append(status.updates)
            if status.updates >= complete[0] + 40:
                stop.set()

    run = run_prepared(prepared, tmp_path / "run", runner="ray", stop=stop, progress=look)
    assert run.summary["stopped_by"] == "stopped by the user"
    (fault,) = run.rows("fault").to_pylist()
    assert fault["kind"] == "host lost"
    assert "epochs that passed meanwhile are not made up" in fault["message"]
    lost = int(fault["party"].split()[1])
    service, sync = run.rows("service").to_pylist(), run.rows("sync").to_pylist()
    assert [row["round"] for row in service] == list(range(1, len(service) + 1))
    served = [row for row in service if row["client"] % 2 == lost]
    assert min(row["due"] for row in served[12:]) > fault["time"]
    assert len(served) > 15
    assert all(row["read"] + row["lag"] + 1 == row["round"] for row in sync)
    assert max(row["lag"] for row in sync) >= 1
    assert run.rows("evaluation").num_rows >= 3
    rebuilt = rebuild(tmp_path / "run")
    assert rebuilt.verified
    assert rebuilt.updates == len(service)


def test_a_client_group_that_never_answers_stalls_the_run_and_the_error_names_it(
    mortal, tmp_path, monkeypatch
):
    """Under the wall clock nobody waits for it but the driver that ends the run; no loss is allowed
    here.
    """
    stop = Driver._stop_loops
    monkeypatch.setattr(Driver, "_stop_loops", lambda self, timeout: stop(self, 3.0))
    pulls = (
        "method.asynchronous=true",
        "clock.kind=wall",
        "arrivals.rate=1",
        "evaluate.every=1000",
    )
    prepared = mortal(
        *pulls,
        "resources.hosts=2",
        "budget.updates=30",
        "resources.restarts=0",
        number=signal.SIGSTOP,
        after=6,
    )
    with pytest.raises(Stalled, match="waited 3 s for the hosts to stop"):
        run_prepared(prepared, tmp_path / "run", runner="ray")
    check_failed(tmp_path / "run")
