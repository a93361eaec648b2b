import threading

import pytest

import raydpzv
import scenarios
from raydpzv.experiment.runner import RunOptions, start
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.index import latest

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SHORT = (
    "budget.updates=3000",
    "data.train_rows=200",
    "evaluate.every=1000",
    "record.checkpoint_updates=300",
    "resources.client_actors=1",
    "privacy.noise=seeded",
)


def test_a_run_on_actors_continues_from_a_storage_to_the_same_bits(tmp_path):
    spec, uri = scenarios.load("digits_dpzv", SHORT), (tmp_path / "storage").as_uri()
    ended, numbers = threading.Event(), []

    def stop(status, metrics):
        numbers.append(latest(open_storage(uri)).number)
        if status.updates == 1000:
            ended.set()

    options = RunOptions(tmp_path / "first", evaluated=stop, stop=ended)
    first = start(spec, "ray", options, uri)
    assert (first.summary["status"], first.summary["updates"]) == ("stopped", 1000)
    assert latest(open_storage(uri)).number > numbers[0] + 1, "it was copied in midrun, too"
    named = {"storage_path": tmp_path.as_uri(), "name": "storage"}
    again = raydpzv.run(spec, tmp_path / "second", runner="ray", **named)
    assert again.summary["digest"] == raydpzv.run(spec).summary["digest"]
