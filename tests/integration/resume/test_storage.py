import shutil
import signal
import stat
import time
from contextlib import suppress

import pytest

import raydpzv
import scenarios
from raydpzv.errors import InputError, NotRecomputable, RunError
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import RunOptions, start
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.run_folder import RunFolder
from raydpzv.storage.download import local_copy
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.index import INDEXES, OBJECTS, latest
from tests.helpers.kills import Killed
from tests.helpers.programs import Forked, Kill, killed, said
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import small as small_horizontal
from tests.helpers.small_horizontal import stop_after
from tests.helpers.storages import (
    FRESH_NOISE,
    before_each_change,
    copy_at_once,
    full_disk,
    leave_as_killed,
)

OFTEN = ("record.checkpoint_updates=10", "record.flush=0.01")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    copy_at_once(monkeypatch)


@pytest.fixture
def uri(tmp_path):
    return (tmp_path / "storage").as_uri()


def begin(spec, uri, folder, **options):
    return start(spec, "local", RunOptions(folder, **options), uri)


def go_on(uri, folder, **options):
    prepared, opened, _ = continued(local_copy(uri, folder))
    return run_prepared(prepared, opened, **options)


def digests(run):
    return run.summary["digest"], run.summary["model_digest"]


@pytest.mark.parametrize("kind", ["dpzv", "fedavg"])
def test_whatever_change_a_kill_interrupts_another_machine_continues_to_the_same_bits(
    small, tmp_path, monkeypatch, uri, kind
):
    spec = small(*OFTEN, "budget.updates=40") if kind == "dpzv" else small_horizontal(kind, *OFTEN)
    whole, seen = scenarios.run(spec), {}

    def look(name):
        place = open_storage(uri)
        index = latest(place)
        if index is None:
            return
        assert index.objects <= set(place.names(OBJECTS)), f"before {name} a content is gone"
        if index.name not in seen:
            seen[index.name] = shutil.copytree(tmp_path / "storage", tmp_path / str(len(seen)))

    with monkeypatch.context() as patch:
        before_each_change(patch, look)
        assert digests(begin(spec, uri, tmp_path / "run")) == digests(whole)
    assert len(seen) > 3
    for number, left in enumerate(seen.values()):
        # a complete run is returned, all others resume
        again = raydpzv.run(
            spec, tmp_path / f"here {number}", storage_path=left.parent.as_uri(), name=left.name
        )
        assert digests(again) == digests(whole)
    assert latest(open_storage(uri)).over


WORDS = {
    "digits_dpzv": ("privacy.noise=seeded", "budget.updates=300"),
    "digits_decomfl": ("budget.updates=600", "data.train_rows=200"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_runs_that_are_killed_again_and_again_end_with_the_same_bits(tmp_path, uri, name):
    """Each time on another machine, at an update that a key draws, and soon after it by its time."""
    changes = (*WORDS[name], "record.checkpoint_updates=7", "evaluate.every=20")
    spec = raydpzv.load(name, changes)
    words = [word for change in changes for word in ("--set", change)]
    run = [
        "-m",
        "raydpzv",
        "run",
        name,
        *words,
        "--quiet",
        "--storage",
        uri,
        "--or-resume",
        "--out",
    ]
    draws = (Key(7) / "kills").generator()
    updates, attempts = 0, 4
    for attempt in range(attempts):
        folder = tmp_path / f"machine {attempt}"
        if attempt % 2:
            process = Forked([*run, str(folder)])
            while process.poll() is None and not (folder / "checkpoint.state").exists():
                time.sleep(0.01)
            time.sleep(float(draws.uniform(0.0, 0.1)))
            with suppress(ProcessLookupError):  # it was faster
                process.send_signal(signal.SIGKILL)
            process.communicate()
        else:
            updates += int(draws.integers(5, spec.budget.updates // attempts))
            killed([*run, str(folder)], Kill(folder, after=updates))
    said(Forked([*run, str(tmp_path / "last")]))
    found = RunFolder.open(tmp_path / "last").summary()
    assert (found["digest"], found["model_digest"]) == digests(raydpzv.run(spec))


def lose(spec, uri, folder, at=12):
    """Start a run in this process and end it as a kill does; its storage keeps what it had then."""
    with pytest.MonkeyPatch.context() as patch:

        def progress(status):
            if status.updates >= at:
                leave_as_killed(patch)
                raise Killed

        with pytest.raises(Killed):
            begin(spec, uri, folder, progress=progress)
    (folder / "summary.json").unlink()  # which the error writes, and a kill does not


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
def test_a_lost_run_with_fresh_noise_resumes_in_its_own_folder_alone(tmp_path, uri, kind):
    """Elsewhere it would draw the noise of its last releases a second time. Here all of them are on
    record.
    """
    name, changes = FRESH[kind]
    spec = scenarios.load(name, [*changes, "data.train_rows=150"])
    with pytest.warns(RuntimeWarning, match=FRESH_NOISE):
        lose(spec, uri, tmp_path / "lost")
    with pytest.raises(NotRecomputable, match="did not end cleanly: the releases after its last"):
        go_on(uri, tmp_path / "here")
    with Ledger.open(tmp_path / "lost" / "ledger") as ledger:
        version, made = ledger.version, ledger.since(0).scalar.tobytes()
    with pytest.warns(RuntimeWarning, match=FRESH_NOISE):
        run = go_on(uri, tmp_path / "lost")
    assert run.summary["status"] == "done"
    with Ledger.open(tmp_path / "lost" / "ledger") as ledger:
        assert ledger.since(0, version).scalar.tobytes() == made, "no release was made twice"


def test_fresh_noise_goes_on_after_a_clean_stop_and_on_one_machine_alone(
    small, tmp_path, uri, monkeypatch
):
    spec = small("privacy.noise=system", *OFTEN, "budget.updates=40")
    with pytest.warns(RuntimeWarning, match=FRESH_NOISE):
        begin(spec, uri, tmp_path / "first", **stop_after(20))
    early, late = (local_copy(uri, tmp_path / name) for name in ("early", "late"))
    prepared, opened, _ = continued(early)
    seen = []

    def die(status):
        leave_as_killed(monkeypatch)
        seen.append(latest(open_storage(uri)))
        raise Killed

    with pytest.warns(RuntimeWarning, match=FRESH_NOISE), pytest.raises(Killed):
        run_prepared(prepared, opened, progress=die)
    assert not seen[0].over, "before the first release the storage says that a run is under way"
    for folder in (late, tmp_path / "first"):
        with pytest.raises(InputError, match="holds an older copy"):
            continued(folder)
    with pytest.raises(NotRecomputable, match="did not end cleanly"):
        continued(local_copy(uri, tmp_path / "third"))
    monkeypatch.undo()
    (early / "summary.json").unlink(missing_ok=True)
    with pytest.warns(RuntimeWarning, match=FRESH_NOISE):
        assert raydpzv.resume(early).summary["status"] == "done"
    assert replay(early).verified


def test_a_storage_that_fails_in_midrun_loses_nothing(small, tmp_path, uri, monkeypatch):
    spec, away = small("privacy.noise=seeded", "budget.updates=60", *OFTEN), pytest.MonkeyPatch()

    def progress(status):
        if status.updates == 15:
            before_each_change(away, full_disk(INDEXES))
        if status.updates == 45:
            away.undo()

    with pytest.warns(RuntimeWarning, match="No space left on device.; it is tried again after"):
        run = begin(spec, uri, tmp_path / "run", progress=progress)
    there = RunFolder.open(local_copy(uri, tmp_path / "there"))
    assert there.summary()["digest"] == run.summary["digest"]


def test_a_storage_that_fails_at_the_end_is_brought_up_later(small, tmp_path, uri, monkeypatch):
    spec = small("privacy.noise=system")

    def progress(status):
        if status.updates == spec.budget.updates:
            before_each_change(away, full_disk(INDEXES))

    with (
        pytest.MonkeyPatch.context() as away,
        pytest.warns(RuntimeWarning, match=FRESH_NOISE),
        pytest.raises(RunError, match=r"No space left on device\); see to the storage, then copy"),
    ):
        begin(spec, uri, tmp_path / "run", progress=progress)
    assert "summary.json" not in latest(open_storage(uri)).files
    with pytest.raises(InputError, match="this run is complete"):
        continued(tmp_path / "run")
    assert latest(open_storage(uri)).over
    assert RunFolder.open(local_copy(uri, tmp_path / "there")).completed_by()


def test_a_run_is_found_again_by_storage_path_and_name(small, tmp_path, uri, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec, other = (
        small("privacy.noise=seeded", *OFTEN),
        small("privacy.noise=seeded", "seed=9", *OFTEN),
    )
    whole = digests(scenarios.run(spec))
    for place, folder in ((uri, "runs/one"), (tmp_path / "shared", tmp_path / "shared" / "one")):
        named = {"storage_path": place, "name": "one"}
        stopped = raydpzv.run(spec, **named, **stop_after(30))
        assert (stopped.summary["status"], str(stopped.path)) == ("stopped", str(folder))
        shutil.rmtree("runs", ignore_errors=True)
        assert digests(raydpzv.run(spec, **named)) == whole
        shown = raydpzv.run(spec, **named, progress=lambda status: pytest.fail("it is complete"))
        assert (digests(shown), shown.rows("evaluation").num_rows > 0) == (whole, True)
        assert shown.state_dict("server").keys()
        with pytest.raises(InputError, match="holds a run with other settings: seed is"):
            raydpzv.run(other, **named)
    with pytest.raises(InputError, match="runs/one: this run is complete"):
        raydpzv.resume(f"{uri}/one")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"storage_path": "s3://bucket"}, "give both"),
        ({"name": "one"}, "give both"),
        *(({"storage_path": "x", "name": name}, "without /") for name in ("", "..", "a/b", "/a")),
        ({"storage_path": "x", "name": "one", "out": "y"}, "out: wanted none"),
    ],
)
def test_words_that_name_no_place_are_refused(small, words, line):
    with pytest.raises(InputError, match=line):
        raydpzv.run(small("privacy.noise=seeded"), **words)


def test_secrets_stay_their_owners_alone(small, tmp_path, uri):
    begin(small("privacy.noise=seeded", *OFTEN), uri, tmp_path / "run", **stop_after(20))
    there, place = local_copy(uri, tmp_path / "there"), open_storage(uri)
    for name in ("operator.json", "checkpoint.state"):
        stored = tmp_path / "storage" / OBJECTS / latest(place).files[name].sha256
        for path in (there / name, stored):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "storage").stat().st_mode) == 0o700
