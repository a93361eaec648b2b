"""Runs whose folder is in a storage: begun there, lost with their machine, gone on with on another."""

from __future__ import annotations

import shutil
import signal
import time

import pytest

import raydpzv
import scenarios
from raydpzv.errors import DataError, InputError, NotRecomputable
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.reexecute import replay
from raydpzv.experiment.runner import bring_rest, continued, continued_at, run_local
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.run_folder import RunFolder
from raydpzv.storage import download
from raydpzv.storage.commits import ANNOUNCED, Commit, content, latest
from raydpzv.storage.filesystem import open_place
from raydpzv.storage.lost_updates import missing_updates
from tests.helpers.kills import Killed
from tests.helpers.programs import Forked
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import small as small_horizontal
from tests.helpers.small_horizontal import stop_after
from tests.helpers.storages import QUICK, KeptPlace, leave_as_killed, left_after

OFTEN = ("record.checkpoint_updates=10", "record.flush=0.01")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "PACE", QUICK)


def go_on(uri, folder, **options):
    with continued_at(uri, folder) as ((prepared, opened, _), mirror):
        return run_prepared(prepared, opened, storage=mirror, **options)


@pytest.mark.parametrize(("kind", "every"), [("dpzv", 9), ("fedavg", 11)])
def test_whatever_act_a_kill_interrupts_another_machine_goes_on_to_the_same_bits(
    small, tmp_path, monkeypatch, kind, every
):
    spec = small(*OFTEN, "budget.updates=40") if kind == "dpzv" else small_horizontal(kind, *OFTEN)
    whole = scenarios.run(spec).summary
    place = KeptPlace(tmp_path / "storage")
    with monkeypatch.context() as patch:
        patch.setattr(download, "open_place", lambda uri: place)
        patch.setattr("raydpzv.storage.uploader.FolderUploader._start", lambda self, *loops: None)
        with download.begun(place.uri, "run") as mirror:

            def brought(status):
                if status.updates % every == 0:
                    mirror.flush()

            options = RunOptions(tmp_path / "run", storage=mirror, progress=brought)
            assert run_local(prepare(spec), options).summary["digest"] == whole["digest"]
    seen, left = set(), left_after([], tmp_path / "left")
    for act in place.acts:
        left = left_after([], tmp_path / "left", torn=act)
        commit = latest(left) if left.names("commits") and seen | set(left.names("commits")[1:]) else None
        if commit and commit.name not in seen:
            seen.add(commit.name)
            other = shutil.copytree(tmp_path / "left", tmp_path / "other")
            if commit.over:
                download.fetch(other.as_uri(), tmp_path / "here")
                assert RunFolder.open(tmp_path / "here").summary()["digest"] == whole["digest"]
            else:
                again = go_on(other.as_uri(), tmp_path / "here").summary
                assert (again["digest"], again["model_digest"]) == (whole["digest"], whole["model_digest"])
            shutil.rmtree(other)
            shutil.rmtree(tmp_path / "here")
        elif commit:  # the same as before this act, whatever it has deleted
            assert all(content(left, path, file) is not None for path, file in commit.files.items())
        left_after([act], tmp_path / "left")
    assert len(seen) > 3


WRITER = """
import sys
import time
import raydpzv
from raydpzv.storage import download
from tests.helpers.storages import QUICK
download.PACE = QUICK


class Slow(raydpzv.Callback):
    def rows(self, rows):
        time.sleep(0.1)


uri, folder, *changes = sys.argv[1:]
raydpzv.run(raydpzv.load("digits_dpzv", changes), folder, storage=uri, callbacks=[Slow()])
"""
"""It takes four seconds, so that who looks when it is time to kill it does so before its end."""


def killed(tmp_path, uri, changes, *, after):
    """Begin a run in a process of its own, and kill it once its storage has so many updates."""
    (tmp_path / "writer.py").write_text(WRITER)
    process = Forked([str(tmp_path / "writer.py"), uri, str(tmp_path / "lost"), *changes])
    place, limit = open_place(uri), time.monotonic() + 120
    while time.monotonic() < limit and process.poll() is None:
        found = latest(place) if place.names("commits") else None
        if found and found.covered >= after and "checkpoint.state" in found.files:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    return tmp_path / "lost"


LONG = ("budget.updates=1500", "evaluate.every=500", "record.checkpoint_updates=40")


def test_a_machine_that_is_lost_is_charged_with_what_it_may_have_released(tmp_path):
    """kill -9 of a run with fresh noise; another machine goes on from the storage alone."""
    uri = (tmp_path / "storage of mine").as_uri()
    lost = killed(tmp_path, uri, LONG, after=300)
    stored = latest(open_place(uri))
    with Ledger.open(lost / "ledger") as ledger:
        made = ledger.version
    assert stored.covered <= made <= stored.announced
    before = tmp_path / "before"
    download.fetch(uri, before)
    run = go_on(uri, tmp_path / "here")
    missing = stored.announced - stored.covered
    assert missing == 1500 // 50
    assert any(
        f"{missing} updates that a lost machine may have made" in said for said in run.summary["warnings"]
    )
    (claim,) = (c for c in run.summary["epsilon"] if (c["adversary"], c["relation"]) == ("client", "replace"))
    assert run.rows("release").num_rows == 1500
    assert run.summary["updates"] == 1500
    (fault,) = run.summary["faults"]
    assert f"up to {missing} updates that are not in the storage" in fault["message"]
    whole = scenarios.run(scenarios.load("digits_dpzv", LONG)).summary
    (usual,) = (c for c in whole["epsilon"] if (c["adversary"], c["relation"]) == ("client", "replace"))
    assert claim["epsilon"] > usual["epsilon"]
    # what was in the storage was given out again, bit for bit
    with Ledger.open(before / "ledger") as first, Ledger.open(tmp_path / "here" / "ledger") as second:
        assert stored.covered <= first.version <= made
        assert first.since(0).scalar.tobytes() == second.since(0, first.version).scalar.tobytes()
    download.fetch(uri, tmp_path / "fetched")
    assert RunFolder.open(tmp_path / "fetched").summary()["digest"] == run.summary["digest"]
    assert missing_updates(tmp_path / "fetched") == missing
    assert replay(tmp_path / "fetched").verified
    # the lost machine comes back: its folder is older than the storage
    with pytest.raises(InputError, match="an older copy of this storage"):
        go_on(uri, lost)
    with pytest.raises(
        InputError, match=f"machine's copy of {uri}, which another machine may have gone on with"
    ):
        continued(lost)


@pytest.mark.parametrize("over", [False, True])
def test_a_damaged_commit_may_have_announced_as_much_as_the_one_before_it(tmp_path, monkeypatch, *, over):
    place = open_place((tmp_path / "storage").as_uri())
    covered = 40 if over else 20
    for number, announced in ((1, 40), (2, 60)):
        commit = Commit(1, number, "run", "me", {}, ANNOUNCED, covered, covered if over else announced, over)
        place.write(commit.name, commit.encoded())
    (tmp_path / "storage" / commit.name).write_bytes(commit.encoded()[:-40])
    charged = []
    monkeypatch.setattr(download, "add_missing", lambda folder, **how: charged.append(how))
    if over:
        with pytest.raises(DataError, match="its newest commit is damaged, so that nobody knows"):
            go_on(place.uri, tmp_path / "here")
        assert not charged
        return
    with pytest.raises(DataError, match="not a run folder"):
        go_on(place.uri, tmp_path / "here")
    assert charged == [{"after": 20, "updates": 2 * (40 - 20)}]


def test_objects_that_are_gone_are_named_as_that(tmp_path, small):
    uri = (tmp_path / "storage").as_uri()
    raydpzv.run(small("privacy.noise=seeded"), tmp_path / "run", storage=uri)
    found = latest(open_place(uri))
    (tmp_path / "storage" / min(found.objects)).unlink()
    with pytest.raises(DataError, match="objects of its newest commit are missing"):
        download.fetch(uri, tmp_path / "here")


@pytest.mark.parametrize(("out", "storage"), [("run", "run"), ("run", "run/storage"), ("run/here", "run")])
def test_a_storage_and_the_folder_that_is_brought_there_lie_apart(tmp_path, small, out, storage):
    uri = (tmp_path / storage).as_uri()
    with pytest.raises(InputError, match="or has it in itself; choose another"):
        raydpzv.run(small("privacy.noise=seeded"), tmp_path / out, storage=uri)
    assert not list(tmp_path.iterdir())
    raydpzv.run(small("privacy.noise=seeded"), tmp_path / "run", storage=(tmp_path / "runs").as_uri())


def test_where_the_machine_is_not_lost_nothing_is_charged(tmp_path):
    uri = (tmp_path / "storage").as_uri()
    folder = killed(tmp_path, uri, LONG, after=100)
    with Ledger.open(folder / "ledger") as ledger:
        made = ledger.since(0).scalar.copy()
    run = go_on(uri, folder)
    assert "faults" not in run.summary
    assert missing_updates(folder) == 0
    with Ledger.open(folder / "ledger") as ledger:
        assert ledger.since(0, len(made)).scalar.tobytes() == made.tobytes()


def test_a_second_loss_is_charged_beside_the_first(tmp_path):
    uri = (tmp_path / "storage").as_uri()
    killed(tmp_path, uri, LONG, after=100)

    def second():
        with continued_at(uri, tmp_path / "second") as ((prepared, folder, _), mirror):
            run_prepared(prepared, folder, storage=mirror, progress=killing(mirror, 500))

    with pytest.raises(Killed):
        second()
    third = go_on(uri, tmp_path / "third")
    assert missing_updates(tmp_path / "third") == 2 * (1500 // 50)
    assert len([f for f in third.summary["faults"] if f["party"] == "driver"]) == 2


def die_in(spec, uri, folder, at):
    """Begin a run in this process, and end it as a kill does after so many updates."""

    def begin():
        with download.begun(uri, "run") as mirror:
            run_local(prepare(spec), RunOptions(folder, storage=mirror, progress=killing(mirror, at)))

    with pytest.raises(Killed):
        begin()


def killing(mirror, at):
    def progress(status):
        if status.updates >= at:
            leave_as_killed(mirror)
            raise Killed

    return progress


@pytest.mark.parametrize("kind", ["digits_users_zo", "digits_users_async"])
def test_users_whose_rounds_were_lost_are_charged(tmp_path, monkeypatch, kind):
    spec = scenarios.load(kind, [*USERS, "budget.updates=30"])
    storage = tmp_path / "storage"
    die_in(spec, storage.as_uri(), tmp_path / "lost", 12)
    shutil.copytree(storage, tmp_path / "control")
    stored = latest(open_place(storage.as_uri()))
    missing = stored.announced - stored.covered
    with Ledger.open(tmp_path / "lost" / "ledger") as ledger:
        assert stored.covered <= ledger.version <= stored.announced
    run = go_on(storage.as_uri(), tmp_path / "here")
    assert missing_updates(tmp_path / "here") == missing >= 1
    monkeypatch.setattr("raydpzv.experiment.runner.missing_updates", lambda path: 0)
    control = go_on((tmp_path / "control").as_uri(), tmp_path / "there")

    def epsilons(of):
        return {(c["adversary"], c["relation"]): c["epsilon"] for c in of.summary["epsilon"]}

    proved = {who: epsilon for who, epsilon in epsilons(control).items() if epsilon < 1e300}
    assert proved
    assert all(epsilons(run)[who] > epsilon for who, epsilon in proved.items())


USERS = (
    *("data.train_rows=150", "data.test_rows=60", "split.clients=3", "users.count=12"),
    *("method.perturbations=3", "evaluate.every=5", "network.latency=0.05"),
    *("privacy={}", "privacy.mode=user", "privacy.multiplier=2.0", "privacy.delta=1e-3", "privacy.clip=0.1"),
)


def test_a_budget_of_epsilon_ends_a_run_earlier_that_lost_releases(tmp_path):
    limit = ["budget.epsilon=0.5", "budget.adversary=paper"]
    uri = (tmp_path / "storage").as_uri()
    spec = scenarios.load("digits_dpzv", [*LONG, *limit])
    whole = scenarios.run(spec)
    assert "exceed the budget" in whole.summary["stopped_by"]
    killed(tmp_path, uri, [*LONG, *limit], after=100)
    missing = latest(open_place(uri)).announced - latest(open_place(uri)).covered
    run = go_on(uri, tmp_path / "here")
    assert run.summary["updates"] == whole.summary["updates"] - missing


def test_seeded_noise_needs_no_account_of_what_was_lost(tmp_path):
    uri = (tmp_path / "storage").as_uri()
    changes = (*LONG, "privacy.noise=seeded")
    spec = scenarios.load("digits_dpzv", changes)
    die_in(spec, uri, tmp_path / "lost", 500)
    assert latest(open_place(uri)).noise == "none"
    assert go_on(uri, tmp_path / "here").summary["digest"] == scenarios.run(spec).summary["digest"]


def test_a_wall_clock_run_whose_machine_is_lost_is_refused(tmp_path, small):
    uri = (tmp_path / "storage").as_uri()
    spec = small("clock.kind=wall", "arrivals.rate=200", "budget.updates=40", "privacy.noise=system")
    with pytest.warns(RuntimeWarning, match="cannot go on from there if this machine is lost"):
        die_in(spec, uri, tmp_path / "lost", 1)
    with pytest.raises(NotRecomputable, match="a wall-clock run stands still for no storage"):
        go_on(uri, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_one_process_writes_a_storage_and_who_else_would_is_told_who_does(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    spec = small("privacy.noise=seeded")
    with download.begun(uri, "run") as mirror:
        run_local(prepare(spec), RunOptions(tmp_path / "run", storage=mirror))
    with pytest.raises(InputError, match="holds a run already; choose another --storage, or go on with it"):
        raydpzv.run(spec, tmp_path / "other", storage=uri)
    with pytest.raises(InputError, match="this run is complete"):
        go_on(uri, tmp_path / "run")
    with pytest.raises(InputError, match="goes with out"):
        raydpzv.run(spec, storage=uri)


def test_what_came_to_its_end_here_and_was_not_brought_is_brought_later(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    spec = small("privacy.noise=system")
    with download.begun(uri, "run") as mirror:

        def killed_after_its_end(status):
            if status.updates == spec.budget.updates:
                leave_as_killed(mirror)

        run_local(
            prepare(spec),
            RunOptions(tmp_path / "run", storage=mirror, progress=killed_after_its_end),
        )
    assert "summary.json" not in latest(open_place(uri)).files
    bring_rest(uri, tmp_path / "run")
    assert latest(open_place(uri)).over
    download.fetch(uri, tmp_path / "fetched")
    assert RunFolder.open(tmp_path / "fetched").completed_by()


def test_a_fetched_copy_goes_on_in_the_storage_or_not_at_all(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    spec = small("privacy.noise=system", *OFTEN)
    stop, progress = stop_after(60)
    with download.begun(uri, "run") as mirror:
        run_local(prepare(spec), RunOptions(tmp_path / "run", storage=mirror, progress=progress, stop=stop))
    for name in ("early", "late"):
        download.fetch(uri, tmp_path / name)
        with pytest.raises(InputError, match="machine's copy"):
            continued(tmp_path / name)
    assert go_on(uri, tmp_path / "early").summary["status"] == "done"
    assert missing_updates(tmp_path / "early") == 0  # what was stopped had brought all of it
    with pytest.raises(InputError, match="an older copy"):
        go_on(uri, tmp_path / "late")
    with pytest.raises(InputError, match="something else"):
        go_on(uri, tmp_path)


def test_secrets_are_their_owners_alone_where_there_are_modes(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    stop, progress = stop_after(60)
    with download.begun(uri, "run") as mirror:
        options = RunOptions(tmp_path / "run", storage=mirror, progress=progress, stop=stop)
        run_local(prepare(small(*OFTEN)), options)
    download.fetch(uri, tmp_path / "fetched")
    for name in ("operator.json", "checkpoint.state"):
        assert (tmp_path / "fetched" / name).stat().st_mode & 0o077 == 0
    assert (tmp_path / "storage").stat().st_mode & 0o077 == 0
