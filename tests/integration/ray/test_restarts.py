"""Runs under the virtual clock that lose a process resume from their checkpoint to the bits of whole runs."""

from __future__ import annotations

import re
import signal
import threading

import pytest

import raydpzv
import scenarios
from raydpzv.errors import Lost
from raydpzv.experiment.runner import continued
from raydpzv.records.checkpoint import CHECKPOINT, before
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.store import digest
from tests.helpers import struck as struck_roles
from tests.helpers.contradictions import change, contradictions, forget_waiting
from tests.helpers.kills import kill_at
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import small as small_rounds
from tests.helpers.struck import strikes

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SMALL = (
    *("budget.updates=240", "evaluate.every=60", "data.train_rows=150", "data.test_rows=40"),
    *("resources.client_actors=2", "privacy.noise=seeded", "record.checkpoint_updates=20"),
)


@pytest.fixture(scope="session", autouse=True)
def _by_value(ray_session):
    """Workers cannot import tests: send the classes along."""
    import ray

    ray.cloudpickle.register_pickle_by_value(struck_roles)


@pytest.fixture
def struck(tmp_path):
    return strikes(tmp_path)


def spec_of(method, *more):
    return scenarios.load("digits_dpzv" if method == "dpzv" else method, [*SMALL, *more])


def check_same(found, whole):
    assert digest({**found.tables, "fault": whole.rows("fault")}) == whole.summary["digest"]
    assert found.summary["model_digest"] == whole.summary["model_digest"]
    assert found.summary.get("ledger", {}).get("digest") == whole.summary.get("ledger", {}).get("digest")


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


@pytest.mark.parametrize(("method", "engine"), [("vafl", "compiled"), ("sgd", "torch")])
def test_losing_a_client_of_a_method_without_a_ledger_leaves_no_trace(struck, tmp_path, method, engine):
    spec = spec_of(method, f"model.engine={engine}")
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


def test_a_server_that_does_not_answer_is_given_up_after_the_timeout(struck, tmp_path):
    spec = spec_of("vafl", "resources.timeout=8")
    found = run_prepared(struck(spec, "server", number=signal.SIGSTOP), tmp_path / "run", runner="ray")
    check_same(found, scenarios.run(spec))
    (fault,) = found.rows("fault").to_pylist()
    assert re.match("waited 8 s for the server's status;", fault["message"])


def test_more_losses_than_are_allowed_end_the_run_and_it_can_be_resumed(struck, tmp_path):
    spec, path = spec_of("dpzv", "resources.restarts=1"), tmp_path / "run"
    with pytest.raises(Lost, match="an actor was lost"):
        run_prepared(struck(spec, "server", times=2, calls=60), path, runner="ray")
    experiment, folder, _ = continued(path)
    check_same(run_prepared(experiment, folder, runner="ray"), scenarios.run(spec))
    assert folder.read_ledger is None, "the server's actor has it"


def test_a_run_whose_noise_was_not_kept_ends_with_the_loss(struck, tmp_path):
    noise = (
        *("privacy.mode=paper", "privacy.epsilon=1.0", "privacy.delta=1e-5", "privacy.clip=1.0"),
        "privacy.noise=system",
    )
    with pytest.raises(Lost, match=r"an actor was lost.*noise on every embedding row") as caught:
        run_prepared(struck(spec_of("vafl", *noise), "client"), tmp_path / "run", runner="ray")
    assert "\n" not in str(caught.value)
    assert RunFolder.open(tmp_path / "run").summary()["status"] == "failed"


def test_rounds_of_a_private_run_wait_until_their_checkpoint_is_written(tmp_path, monkeypatch):
    """A round that no checkpoint knew of would be a release that no account knows of, once the server is lost."""
    written, ahead = [0], []
    write = RunWriter.write_checkpoint

    def slowly(self, checkpoint):
        threading.Event().wait(0.1)
        written.append(checkpoint.round)
        return write(self, checkpoint)

    monkeypatch.setattr(RunWriter, "write_checkpoint", slowly)
    spec = scenarios.load("digits_users", ["budget.updates=4", "evaluate.every=4", "resources.hosts=1"])
    run = scenarios.run(
        spec,
        tmp_path / "run",
        runner="ray",
        progress=lambda status: ahead.append(status.updates - written[-1]),
    )
    assert run.summary["updates"] == 4
    assert written == list(range(4))
    assert max(ahead) <= 1


def test_a_run_whose_checkpoints_contradict_its_ledger_resumes_from_the_ledger(tmp_path):
    """The epochs that waited are not those of the checkpoint's moment."""
    spec = small_rounds("asynchronous", "arrivals.rate=9", "record.checkpoint_updates=4", "record.flush=1000")
    whole, folder = scenarios.run(spec), tmp_path / "run"
    kill_at(14, spec, folder)
    for path in (folder / CHECKPOINT, before(folder / CHECKPOINT)):
        change(path, forget_waiting)
    prepared, opened, _ = continued(folder)
    heard = Listening()
    found = run_prepared(prepared, opened, runner="ray", callbacks=[heard])
    check_same(found, whole)
    first, second = contradictions(found)
    assert first.endswith("the run resumes from its checkpoint after update 8")
    assert second.endswith("the run resumes from its start")
    assert [(fault.party, fault.message) for fault in heard.faults] == [
        ("checkpoint", first),
        ("checkpoint", second),
    ]
