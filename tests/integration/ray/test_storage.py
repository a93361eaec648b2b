import threading

import pytest

import raydpzv
import scenarios
from raydpzv.errors import RunError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.resuming import continued_at
from raydpzv.records.run_folder import RunFolder
from raydpzv.registry import RUNNERS
from raydpzv.storage import download
from tests.helpers.storages import QUICK, RecordedStorage, full_disk

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SHORT = (
    "budget.updates=300",
    "data.train_rows=200",
    "evaluate.every=100",
    "resources.client_actors=1",
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    place = RecordedStorage(tmp_path / "storage")
    monkeypatch.setattr(download, "TIMES", QUICK)
    monkeypatch.setattr(download, "open_storage", lambda uri: place)
    return place


def begin(spec, place, folder, **options):
    with download.created(place.uri, "run") as uploader:
        return RUNNERS["ray"](prepare(spec), RunOptions(folder, storage=uploader, **options))


def test_a_storage_that_fails_for_good_ends_a_run_on_actors(place, tmp_path):
    spec = scenarios.load("digits_dpzv", [*SHORT, "privacy.noise=seeded"])
    stop = threading.Event()

    def fill(status, metrics):
        """Fill the disk in the midst of the run, and let it wait until uploads have failed for
        good.
        """
        if status.updates == 100:
            place.before = full_disk(name="commits/")
        assert status.updates < 200 or stop.wait(60)

    with (
        pytest.warns(RuntimeWarning, match="tried again"),
        pytest.raises(RunError, match="No space left"),
    ):
        begin(spec, place, tmp_path / "run", stop=stop, evaluated=fill)
    summary = RunFolder.open(tmp_path / "run").summary()
    assert summary["status"] == "failed"
    assert 100 <= summary["updates"] <= 200


def test_a_run_on_actors_continues_from_a_storage_to_the_same_bits(place, tmp_path):
    long = ("budget.updates=3000", "evaluate.every=1000", "record.checkpoint_updates=300")
    spec = scenarios.load("digits_dpzv", [*SHORT, *long, "privacy.noise=seeded"])
    stopped = RunOptions().stop

    def stop(status, metrics):
        if status.updates == 1000:
            stopped.set()

    first = begin(spec, place, tmp_path / "first", evaluated=stop, stop=stopped)
    assert (first.summary["status"], first.summary["updates"]) == ("stopped", 1000)
    with continued_at(place.uri, tmp_path / "second") as ((prepared, folder, _), uploader):
        run = RUNNERS["ray"](prepared, RunOptions(folder, storage=uploader))
    assert run.summary["digest"] == raydpzv.run(spec).summary["digest"]
    assert run.summary["storage"]["commits"] >= 2
