import shutil

import pytest

import raydpzv
import scenarios
from raydpzv.errors import InputError, NotRecomputable, RunError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import continued, continued_at, upload_rest
from raydpzv.experiment.runner import run_local
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.run_folder import RunFolder
from raydpzv.storage import download
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.manifest import content, latest
from tests.helpers.kills import Killed
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import small as small_horizontal
from tests.helpers.small_horizontal import stop_after
from tests.helpers.storages import (
    FRESH_NOISE,
    QUICK,
    RecordedStorage,
    full_disk,
    leave_as_killed,
    left_after,
)

OFTEN = ("record.checkpoint_updates=10", "record.flush=0.01")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "TIMES", QUICK)


def go_on(uri, folder, **options):
    with continued_at(uri, folder) as ((prepared, opened, _), uploader):
        return run_prepared(prepared, opened, storage=uploader, **options)


@pytest.mark.parametrize(("kind", "every"), [("dpzv", 9), ("fedavg", 11)])
def test_whatever_act_a_kill_interrupts_another_machine_continues_to_the_same_bits(
    small, tmp_path, monkeypatch, kind, every
):
    spec = small(*OFTEN, "budget.updates=40") if kind == "dpzv" else small_horizontal(kind, *OFTEN)
    whole = scenarios.run(spec).summary
    storage = RecordedStorage(tmp_path / "storage")
    with monkeypatch.context() as patch:
        patch.setattr(download, "open_storage", lambda uri: storage)
        patch.setattr("raydpzv.storage.uploader._Threads.start", lambda self, *loops: None)
        with download.created(storage.uri, "run") as uploader:

            def brought(status):
                if status.updates % every == 0:
                    uploader.flush()

            options = RunOptions(tmp_path / "run", storage=uploader, progress=brought)
            assert run_local(prepare(spec), options).summary["digest"] == whole["digest"]
    seen, left = set(), left_after([], tmp_path / "left")
    for act in storage.acts:
        left = left_after([], tmp_path / "left", torn=act)
        commit = (
            latest(left)
            if left.names("commits") and seen | set(left.names("commits")[1:])
            else None
        )
        if commit and commit.name not in seen:
            seen.add(commit.name)
            other = shutil.copytree(tmp_path / "left", tmp_path / "other")
            if commit.over:
                download.fetch(other.as_uri(), tmp_path / "here")
                assert RunFolder.open(tmp_path / "here").summary()["digest"] == whole["digest"]
            else:
                again = go_on(other.as_uri(), tmp_path / "here").summary
                assert (again["digest"], again["model_digest"]) == (
                    whole["digest"],
                    whole["model_digest"],
                )
            shutil.rmtree(other)
            shutil.rmtree(tmp_path / "here")
        elif commit:  # the same as before this act, whatever it has deleted
            assert all(content(left, path, file) is not None for path, file in commit.files.items())
        left_after([act], tmp_path / "left")
    assert len(seen) > 3


def killing(uploader, at):
    """Return a progress function that ends the run as a kill does after so many updates."""

    def progress(status):
        if status.updates >= at:
            uploader.flush()
            leave_as_killed(uploader)
            raise Killed

    return progress


def lose(spec, uri, folder, at=12):
    """Start a run in this process and end it as a kill does; its storage keeps what it had at that
    update.
    """

    def start():
        with download.created(uri, "run") as uploader:
            run_local(
                prepare(spec), RunOptions(folder, storage=uploader, progress=killing(uploader, at))
            )

    with pytest.raises(Killed):
        start()


USERS = (
    "data.train_rows=150",
    "data.test_rows=60",
    "split.clients=3",
    "users.count=12",
    "method.perturbations=3",
    "evaluate.every=5",
    "network.latency=0.05",
    "privacy={}",
    "privacy.mode=user",
    "privacy.multiplier=2.0",
    "privacy.delta=1e-3",
    "privacy.clip=0.1",
)
FRESH = {
    "records": ("digits_dpzv", ("budget.updates=40", *OFTEN)),
    "users": ("digits_users_zo", (*USERS, "budget.updates=30")),
    "users without rounds": ("digits_users_async", (*USERS, "budget.updates=30")),
    "wall clock": ("digits_dpzv", ("clock.kind=wall", "arrivals.rate=200", "budget.updates=40")),
}


@pytest.mark.parametrize("kind", FRESH)
def test_a_lost_run_with_fresh_noise_resumes_in_its_own_folder_alone(tmp_path, kind):
    """Elsewhere it would draw the noise of its last releases a second time. Here all of them are on
    record.
    """
    name, changes = FRESH[kind]
    spec, uri = (
        scenarios.load(name, [*changes, "data.train_rows=150"]),
        (tmp_path / "storage").as_uri(),
    )
    with pytest.warns(RuntimeWarning, match=FRESH_NOISE):
        lose(spec, uri, tmp_path / "lost")
    (tmp_path / "lost" / "summary.json").unlink()  # which the error writes, and a kill does not
    with pytest.raises(
        NotRecomputable, match="did not end cleanly: the releases after its last upload"
    ):
        go_on(uri, tmp_path / "here")
    assert not (tmp_path / "here").exists()
    with Ledger.open(tmp_path / "lost" / "ledger") as ledger:
        version, made = ledger.version, ledger.since(0).scalar.tobytes()
    with pytest.warns(RuntimeWarning, match=FRESH_NOISE):
        run = go_on(uri, tmp_path / "lost")
    assert run.summary["status"] == "done"
    with Ledger.open(tmp_path / "lost" / "ledger") as ledger:
        assert ledger.since(0, version).scalar.tobytes() == made, "no release was made twice"


def test_a_run_stopped_cleanly_resumes_anywhere_with_fresh_noise(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    spec = small("privacy.noise=system", *OFTEN, "budget.updates=40")
    stop, progress = stop_after(20)
    with download.created(uri, "run") as uploader, pytest.warns(RuntimeWarning, match=FRESH_NOISE):
        run_local(
            prepare(spec),
            RunOptions(tmp_path / "run", storage=uploader, progress=progress, stop=stop),
        )
    for name in ("early", "late"):
        download.fetch(uri, tmp_path / name)
        with pytest.raises(InputError, match="machine's copy"):
            continued(tmp_path / name)
    with pytest.warns(RuntimeWarning, match=FRESH_NOISE):
        assert go_on(uri, tmp_path / "early").summary["status"] == "done"
    assert replay(tmp_path / "early").verified
    with pytest.raises(InputError, match="an older copy"):
        go_on(uri, tmp_path / "late")
    with pytest.raises(InputError, match="something else"):
        go_on(uri, tmp_path)


def test_seeded_noise_resumes_anywhere_to_the_same_bits(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    spec = small("privacy.noise=seeded", "budget.updates=40", *OFTEN)
    lose(spec, uri, tmp_path / "lost")
    assert latest(open_storage(uri)).noise == "none"
    assert go_on(uri, tmp_path / "here").summary["digest"] == scenarios.run(spec).summary["digest"]


@pytest.mark.parametrize(
    ("name", "noise"), [("digits_dpzv", ["privacy.noise=seeded"]), ("digits_decomfl", [])]
)
def test_a_storage_that_fails_for_good_ends_the_run_which_resumes_in_its_folder(
    tmp_path, monkeypatch, name, noise
):
    storage = RecordedStorage(tmp_path / "storage")
    monkeypatch.setattr(download, "open_storage", lambda uri: storage)
    long = ["budget.updates=100000", "evaluate.every=100000", "data.train_rows=100", *noise]
    spec = scenarios.load(name, long)

    def start():
        with download.created(storage.uri, "run") as uploader:
            storage.before = full_disk(name="commits/00000001-00000001")
            run_local(prepare(spec), RunOptions(tmp_path / "run", storage=uploader))

    with (
        pytest.warns(RuntimeWarning, match="tried again"),
        pytest.raises(RunError, match="No space left") as failed,
    ):
        start()
    summary = RunFolder.open(tmp_path / "run").summary()
    assert (summary["status"], summary["stopped_by"]) == ("failed", f"RunError: {failed.value}")
    assert 0 < summary["updates"] < 100000
    storage.before = lambda act: None
    stop, progress = stop_after(summary["updates"] + 10)
    again = go_on(storage.uri, tmp_path / "run", progress=progress, stop=stop)
    assert again.summary["updates"] >= summary["updates"] + 10


@pytest.mark.parametrize(
    ("out", "storage"), [("run", "run"), ("run", "run/storage"), ("run/here", "run")]
)
def test_a_storage_and_its_folder_lie_apart(tmp_path, small, out, storage):
    uri = (tmp_path / storage).as_uri()
    with pytest.raises(InputError, match="or has it in itself; choose another"):
        raydpzv.run(small("privacy.noise=seeded"), tmp_path / out, storage=uri)
    assert not list(tmp_path.iterdir())
    raydpzv.run(
        small("privacy.noise=seeded"), tmp_path / "run", storage=(tmp_path / "runs").as_uri()
    )


def test_a_storage_that_holds_a_run_starts_no_other(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    spec = small("privacy.noise=seeded")
    raydpzv.run(spec, tmp_path / "run", storage=uri)
    with pytest.raises(
        InputError, match="holds a run already; choose another --storage, or continue it"
    ):
        raydpzv.run(spec, tmp_path / "other", storage=uri)
    with pytest.raises(InputError, match="this run is complete"):
        go_on(uri, tmp_path / "run")
    with pytest.raises(InputError, match="goes with out"):
        raydpzv.run(spec, storage=uri)


def test_a_run_that_ended_here_unuploaded_is_uploaded_later(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    spec = small("privacy.noise=system")
    with download.created(uri, "run") as uploader:

        def killed_at_its_end(status):
            if status.updates == spec.budget.updates:
                leave_as_killed(uploader)

        options = RunOptions(tmp_path / "run", storage=uploader, progress=killed_at_its_end)
        with pytest.warns(RuntimeWarning, match=FRESH_NOISE):
            run_local(prepare(spec), options)
    assert "summary.json" not in latest(open_storage(uri)).files
    upload_rest(uri, tmp_path / "run")
    assert latest(open_storage(uri)).over
    download.fetch(uri, tmp_path / "fetched")
    assert RunFolder.open(tmp_path / "fetched").completed_by()


def test_secrets_are_their_owners_alone_where_there_are_modes(small, tmp_path):
    uri = (tmp_path / "storage").as_uri()
    stop, progress = stop_after(20)
    with download.created(uri, "run") as uploader:
        options = RunOptions(tmp_path / "run", storage=uploader, progress=progress, stop=stop)
        run_local(prepare(small("privacy.noise=seeded", *OFTEN)), options)
    download.fetch(uri, tmp_path / "fetched")
    for name in ("operator.json", "checkpoint.state"):
        assert (tmp_path / "fetched" / name).stat().st_mode & 0o077 == 0
    assert (tmp_path / "storage").stat().st_mode & 0o077 == 0
