"""Runs on actors whose folder is brought to a storage: the server makes no update that the storage knows nothing of."""

from __future__ import annotations

import json

import pytest

import raydpzv
import scenarios
from raydpzv.errors import RunError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import continued_at
from raydpzv.registry import RUNNERS
from raydpzv.storage import download
from raydpzv.storage.commits import latest
from tests.helpers.storages import QUICK, KeptPlace
from tests.integration.resume.test_storage import USERS

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SHORT = ("budget.updates=300", "data.train_rows=200", "evaluate.every=100", "resources.client_actors=1")


@pytest.fixture
def place(tmp_path, monkeypatch):
    place = KeptPlace(tmp_path / "storage")
    monkeypatch.setattr(download, "PACE", QUICK)
    monkeypatch.setattr(download, "open_place", lambda uri: place)
    return place


def begin(spec, place, folder, **options):
    with download.begun(place.uri, "run") as mirror:
        return RUNNERS["ray"](prepare(spec), RunOptions(folder, storage=mirror, **options))


@pytest.mark.parametrize("kind", ["records", "users"])
def test_the_server_stands_still_where_the_storage_knows_of_no_more(place, tmp_path, kind):
    """Where commits fail after some, the run ends there, with no release beyond what was announced."""
    spec = scenarios.load("digits_dpzv", [*SHORT, "budget.updates=3000", "evaluate.every=1000"])
    if kind == "users":
        spec = scenarios.load("digits_users_zo", [*USERS, "budget.updates=40", "resources.hosts=1"])

    def full(act):
        if act.name.startswith("commits/") and act.data is not None:
            covered = json.loads(act.data.splitlines()[0])["covered"]
            if covered > spec.budget.updates // 20:
                raise OSError(28, "No space left on device")

    place.before = full
    with pytest.warns(RuntimeWarning, match="tried again"), pytest.raises(RunError, match="No space left"):
        begin(spec, place, tmp_path / "run")
    stored = latest(place)
    assert stored.noise == "announced"
    assert stored.covered > 0
    from raydpzv.ledger.ledger import Ledger

    with Ledger.open(tmp_path / "run" / "ledger") as ledger:
        assert stored.covered <= ledger.version <= stored.announced < spec.budget.updates


def test_a_run_on_actors_goes_on_from_a_storage_to_the_same_bits(place, tmp_path):
    long = ("budget.updates=5000", "evaluate.every=1000", "record.checkpoint_updates=500")
    spec = scenarios.load("digits_dpzv", [*SHORT, *long, "privacy.noise=seeded"])
    stopped = RunOptions().stop

    def stop(status):
        if status.updates >= 100:
            stopped.set()

    first = begin(spec, place, tmp_path / "first", progress=stop, stop=stopped)
    assert first.summary["status"] == "stopped"
    with continued_at(place.uri, tmp_path / "second") as ((prepared, folder, _), mirror):
        run = RUNNERS["ray"](prepared, RunOptions(folder, storage=mirror))
    assert run.summary["digest"] == raydpzv.run(spec).summary["digest"]
    assert run.summary["storage"]["commits"] >= 2
