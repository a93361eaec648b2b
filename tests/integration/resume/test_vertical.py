import json
import shutil
from contextlib import contextmanager

import pytest

import scenarios
from raydpzv.errors import DataError, StoppedEarly
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import resuming
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.run_folder import RunFolder, drop_checkpoints
from raydpzv.records.store import read_rows
from tests.helpers.kills import kill_at
from tests.helpers.programs import Kill, killed
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after


def test_a_killed_run_continues_to_the_same_bits(small, tmp_path):
    """kill -9 at some moment; nothing but what was flushed survives."""
    settings = (
        "budget.updates=600",
        "record.flush=0.05",
        "privacy.noise=seeded",
        "evaluate.every=40",
    )
    spec = small(*settings)
    whole = scenarios.run(spec).summary
    folder = tmp_path / "run"
    command = ["-m", "scenarios", "run", "digits_dpzv", "--out", str(folder)]
    command += [part for item in settings for part in ("--set", item)]
    killed(command, Kill(folder, "rows/release/part-*.parquet", count=2, after=100))
    assert 0 < read_rows(folder, "release").num_rows < 600
    assert not (folder / "summary.json").exists()
    experiment, resumed, _ = resuming(folder)
    end = run_prepared(experiment, resumed, runner="local").summary
    assert end["digest"] == whole["digest"]
    assert json.loads((folder / "summary.json").read_text())["digest"] == whole["digest"]


def test_what_only_the_ledger_knows_is_sent_again_too(small, tmp_path):
    """A kill loses the rows since the last flush; the ledger has every release that left the
    server.
    """
    spec = small("privacy.noise=system", "record.flush=1000")
    folder = tmp_path / "run"
    kill_at(60, spec, folder)
    with Ledger.open(folder / "ledger") as ledger:
        kept = ledger.since(0)
    assert read_rows(folder, "release").num_rows == 0
    assert ledger.version == 60
    experiment, continued, _ = resuming(folder)
    end = run_prepared(experiment, continued, runner="local").summary
    after = read_rows(folder, "release").column("value").to_pylist()
    assert after[:60] == kept.scalar.tolist()
    assert len(after) == end["ledger"]["pairs"] == end["ledger"]["updates"] == 120
    assert replay(folder).ledger == end["ledger"]["digest"]


def test_a_continuation_that_did_not_reach_the_ledgers_end_claims_nothing(small, tmp_path):
    """Its rows would tell of fewer releases than were made."""
    spec = small("privacy.noise=system", "record.flush=1000")
    folder = tmp_path / "run"
    kill_at(60, spec, folder)
    experiment, continued, _ = resuming(folder)
    with pytest.raises(StoppedEarly, match="before it had made again all releases of its ledger"):
        run_prepared(experiment, continued, runner="local", **stop_after(40))
    assert not (folder / "summary.json").exists()
    assert len(releases(folder)) == 60


def releases(folder):
    """Return what the ledger holds: every release that left the server."""
    with Ledger.open(folder / "ledger") as ledger:
        found = ledger.since(0)
    address = zip(
        found.party.tolist(), found.step.tolist(), found.perturbation.tolist(), strict=True
    )
    return dict(zip(address, found.scalar.tolist(), strict=True))


def test_a_continuation_that_is_stopped_early_loses_no_release(small, tmp_path):
    """System noise: a release that is lost would be drawn a second time, with another value."""
    spec = small("privacy.noise=system")
    scenarios.run(spec, tmp_path / "run", **stop_after(80))
    before = releases(tmp_path / "run")
    drop_checkpoints(tmp_path / "run")
    experiment, folder, _ = resuming(tmp_path / "run")
    with pytest.raises(StoppedEarly, match="before it had made again all releases of its ledger"):
        run_prepared(experiment, folder, runner="local", **stop_after(30))
    assert releases(tmp_path / "run") == before
    with pytest.raises(DataError, match="continue it first"):
        RunFolder.open(tmp_path / "run").summary()
    experiment, folder, _ = resuming(tmp_path / "run")
    run_prepared(experiment, folder, runner="local")
    after = releases(tmp_path / "run")
    assert len(after) == 120
    assert {address: after[address] for address in before} == before
    assert read_rows(tmp_path / "run", "release")["value"].to_pylist() == list(after.values())


def test_a_run_without_its_ledger_does_not_draw_its_releases_again(small, tmp_path):
    """Seeded noise, the control, comes again to the same bits."""
    for noise in ("system", "seeded"):
        folder = tmp_path / noise
        scenarios.run(small(f"privacy.noise={noise}"), folder, **stop_after(40))
        before = releases(folder)
        drop_checkpoints(folder)
        shutil.rmtree(folder / "ledger")
        if noise == "system":
            with pytest.raises(DataError, match="wanted the run's ledger"):
                resuming(folder)
            assert len(before) == read_rows(folder, "release").num_rows == 40
    run_prepared(*resuming(folder)[:2], runner="local")
    after = releases(folder)
    assert {address: after[address] for address in before} == before


def test_a_killed_continuation_loses_no_release(small, tmp_path):
    spec = small("privacy.noise=system", "record.flush=0.001")
    scenarios.run(spec, tmp_path / "run", **stop_after(50))
    first = releases(tmp_path / "run")
    drop_checkpoints(tmp_path / "run")

    class Killed(BaseException):
        pass

    def die(status):
        if status.updates == 90:
            raise Killed

    experiment, folder, _ = resuming(tmp_path / "run")
    with pytest.raises(Killed), unclosed():
        run_prepared(experiment, folder, runner="local", progress=die)
    longer = releases(tmp_path / "run")
    experiment, folder, _ = resuming(tmp_path / "run")
    assert len(longer) >= 89
    assert {address: longer[address] for address in first} == first
    run_prepared(experiment, folder, runner="local")
    after = releases(tmp_path / "run")
    assert {address: after[address] for address in longer} == longer


@contextmanager
def unclosed():
    """A process that is killed settles nothing and writes no summary."""
    patch = pytest.MonkeyPatch()
    patch.setattr("raydpzv.experiment.finalize.RunFinalizer.failed", lambda *_: None)
    try:
        yield
    finally:
        patch.undo()
