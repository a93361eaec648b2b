import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from raydpzv.config.toml import override
from raydpzv.errors import DataError, RunError
from raydpzv.experiment.finalize import RowWriter, RunFinalizer, RunOptions
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.rebuild import check_rebuilt, rebuild
from raydpzv.experiment.resuming import continued
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.callbacks import Callbacks
from raydpzv.records.publish import publish
from raydpzv.sim.executor import GroupExecutor
from raydpzv.sim.interfaces import Status
from tests.helpers.kills import Killed, kill_at
from tests.helpers.small_horizontal import OFTEN, resume, same, stopped
from tests.helpers.small_users import KINDS, SEEDED, small

each_kind = pytest.mark.parametrize("kind", KINDS)


def released(folder: Path) -> np.ndarray:
    """The scalars on the ledger, update after update."""
    with Ledger.open(folder / "ledger") as ledger:
        return ledger.since(0).scalar.copy()


@each_kind
def test_the_ledger_alone_rebuilds_the_model(tmp_path: Path, kind: str) -> None:
    spec = small(kind, SEEDED)
    whole = scenarios.run(spec, tmp_path / "run")
    end = rebuild(tmp_path / "run")
    assert end.verified
    assert end.models[MODEL].tobytes() == whole.models[MODEL].tobytes()
    early = rebuild(tmp_path / "run", at=6).models[MODEL]
    shutil.rmtree(tmp_path / "run" / "ledger" / "snapshots")  # from the first update on, the same
    assert rebuild(tmp_path / "run", at=6).models[MODEL].tobytes() == early.tobytes()
    short = scenarios.run(override(spec, ["budget.updates=6"]))
    assert short.models[MODEL].tobytes() == early.tobytes()


@each_kind
def test_a_stopped_run_continues_to_the_bits_of_a_whole_one(tmp_path: Path, kind: str) -> None:
    spec = small(kind, SEEDED, OFTEN)
    whole = scenarios.run(spec)
    stopped(spec, tmp_path / "run", 4)
    same(resume(tmp_path / "run"), whole)


@each_kind
def test_a_killed_run_releases_nothing_a_second_time(tmp_path: Path, kind: str) -> None:
    """Noise that nobody can draw again: what the ledger had at the kill stays, beyond the last
    checkpoint too.
    """
    spec, count = small(kind), 0

    def copy(status: Any) -> None:
        nonlocal count
        count += 1
        if count in (8, 14) and not status.stop_reason:
            shutil.copytree(tmp_path / "run", tmp_path / f"killed{count}")

    whole = scenarios.run(spec, tmp_path / "run", progress=copy)
    everything = released(tmp_path / "run")
    folders = sorted(tmp_path.glob("killed*"))
    assert folders
    for folder in folders:
        if folder == folders[-1]:  # killed before there was any checkpoint of all that
            for path in folder.glob("checkpoint*"):
                path.unlink()
        was = released(folder)
        assert 0 < len(was) < len(everything)
        run = resume(folder)
        assert run.summary["updates"] == 10
        now = released(folder)
        assert np.array_equal(now[: len(was)], was)
        # the control: what comes after is new, but for a value by chance, since all are multiples
        # of one step: six of 780 pairs of runs shared one and none shared two; an update has six
        assert np.isin(now[len(was) :], everything).sum() <= 1
        assert rebuild(folder).verified
        assert run.summary["bytes_up"] == whole.summary["bytes_up"]
        assert run.summary["uploads"] == whole.summary["uploads"]


def test_silos_under_the_wall_clock_release_their_sums(tmp_path: Path) -> None:
    spec = small(
        "asynchronous",
        "clock.kind=wall",
        "arrivals.rate=200",
        "clock.compute=0",
        "resources.hosts=2",
    )
    run = scenarios.run(spec, tmp_path / "run")
    assert run.summary["updates"] == 10
    assert rebuild(tmp_path / "run").verified


def test_what_is_published_of_a_private_run_is_rebuilt_from_its_ledger(tmp_path):
    run = tmp_path / "run"
    scenarios.run(small("rounds"), out=run)
    said = list[str]()
    made = publish(
        run,
        tmp_path / "public",
        lambda folder: check_rebuilt(folder, lambda what, done, total: said.append(what)),
        lambda *progress: None,
    )
    assert said == ["model rebuilt from it"]
    assert rebuild(made.path).verified


@pytest.mark.parametrize("checkpoint", [True, False])
@each_kind
def test_what_segments_that_came_no_further_may_have_released_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, checkpoint: bool
) -> None:
    """Each draws noise anew for the same sums, and is killed before ledger or checkpoint know of
    them.
    """
    kill_at(4, small(kind), tmp_path / "once")
    if not checkpoint:
        for path in tmp_path.glob("once/checkpoint*"):
            path.unlink()
    shutil.copytree(tmp_path / "once", tmp_path / "often")
    do = GroupExecutor._do

    def dying(self: GroupExecutor, orders: Any) -> None:
        do(self, orders)
        if any(upload.releases for upload in self._done.values()):
            raise Killed

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(GroupExecutor, "_do", dying)
            patch.setattr(RunFinalizer, "failed", lambda *_: None)
            with pytest.raises(Killed):
                resume(tmp_path / "often")
    once, often = (resume(tmp_path / name).summary["epsilon"] for name in ("once", "often"))
    counts = [int(claims[0]["scope"].split()[0]) for claims in (once, often)]
    assert counts[1] - counts[0] == 3 * (1 if kind == "rounds" else 3), (
        "a round, or a sum of each silo"
    )
    assert counts[0] > (10 if kind == "rounds" else 9), "and the first kill"
    assert all(more["epsilon"] >= one["epsilon"] for one, more in zip(once, often, strict=True))


@each_kind
def test_a_private_run_continues_from_its_last_checkpoint_alone(tmp_path: Path, kind: str) -> None:
    """The one before it, from which others go on, knows of fewer releases than were made."""
    kill_at(6, small(kind, "record.checkpoint_updates=2"), tmp_path / "run", checkpoints=2)
    assert (tmp_path / "run" / "checkpoint.before.state").is_file()
    (tmp_path / "run" / "checkpoint.state").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"checkpoint\.state: cannot be read"):
        resume(tmp_path / "run")


def test_a_damaged_count_of_segments_is_refused(tmp_path: Path) -> None:
    kill_at(4, small("rounds"), tmp_path / "run")
    for legs in ('"some"', "-5", "0"):
        (tmp_path / "run" / "begun_legs.json").write_text(f'{{"place": "", "legs": {legs}}}')
        with pytest.raises(DataError, match=r"begun_legs\.json: is damaged"):
            resume(tmp_path / "run")


@pytest.mark.parametrize("legs", [0, 1])
def test_the_plan_is_no_bound_for_a_run_that_continued_and_whose_account_is_lost(
    tmp_path: Path, legs: int
) -> None:
    kill_at(4, small("rounds"), tmp_path / "run")
    prepared, folder, _ = continued(tmp_path / "run")
    if not legs:
        (tmp_path / "run" / "begun_legs.json").unlink()
    with folder:
        writer = RowWriter(folder, 1.0, Callbacks([]))
        RunFinalizer(prepared, writer, RunOptions()).failed(
            RunError("the server was lost"), Status(), None
        )
        assert bool(folder.summary()["epsilon"]) == (not legs)
