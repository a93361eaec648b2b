import json
import shutil
import stat

import numpy as np
import pytest

import scenarios
from raydpzv.errors import DataError
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import resuming
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.keys import Key
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

SECRET = ("method.batches=poisson", "method.coins=system", "budget.updates=60", "evaluate.every=30")


def batch(experiment):
    return experiment.clients[0].make()._batches.draw(0)


def test_whoever_tries_seeds_finds_the_batches_of_the_seed_and_not_the_secret_ones(small):
    seeded, secret = (
        small(*SECRET, f"method.coins={coins}", "seed=7") for coins in ("seed", "system")
    )

    def guessed(rows):
        """The seed of 0..19 whose coins give these rows, by the run's own addresses."""
        for seed in range(20):
            draws = (Key(seed) / "batches" / 0 / "poisson" / 0).generator().random(1437)
            if np.array_equal(np.flatnonzero(draws < 64 / 1437), rows):
                return seed
        return None

    assert guessed(batch(prepare_vertical(seeded))) == 7, "control"
    assert guessed(batch(prepare_vertical(secret))) is None
    assert not np.array_equal(batch(prepare_vertical(secret)), batch(prepare_vertical(secret)))


def test_the_secret_is_the_owners_and_in_nothing_else_of_the_folder(small, tmp_path):
    run = scenarios.run(small(*SECRET), tmp_path / "run")
    kept = tmp_path / "run" / "operator.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    secret = json.loads(kept.read_text())["coins"]
    number = int(secret, 16)
    shapes = [
        secret.encode(),
        str(number).encode(),
        *(number.to_bytes(32, order) for order in ("big", "little")),
    ]
    others = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path != kept]
    assert len(others) > 5
    assert not any(shape in path.read_bytes() for path in others for shape in shapes)
    assert secret not in repr(prepare_vertical(small(*SECRET), number))
    assert str(number) not in repr(prepare_vertical(small(*SECRET), number))
    assert replay(tmp_path / "run").verified
    assert run.summary["updates"] == 60


def test_a_stopped_run_continues_with_its_coins(small, tmp_path):
    spec, secret = small(*SECRET), 2**255 + 12345
    whole = run_prepared(prepare_vertical(spec, secret), None, runner="local").summary
    other = run_prepared(prepare_vertical(spec, secret + 1), None, runner="local").summary
    run_prepared(
        prepare_vertical(spec, secret),
        tmp_path / "run",
        runner="local",
        **stop_after(25),
    )
    experiment, folder, _ = resuming(tmp_path / "run")
    resumed = run_prepared(experiment, folder, runner="local").summary
    assert resumed["digest"] == whole["digest"] != other["digest"]


def test_without_the_operators_file_nothing_is_computed_again(small, tmp_path):
    scenarios.run(small(*SECRET), tmp_path / "run")
    shutil.copytree(
        tmp_path / "run", tmp_path / "published", ignore=shutil.ignore_patterns("operator.json")
    )
    with pytest.raises(DataError, match=r"has no operator\.json: it holds the run's secret coins"):
        replay(tmp_path / "published")
    (tmp_path / "published" / "operator.json").write_text('{"coins": "one"}')
    with pytest.raises(DataError, match=r'hexadecimal number "coins" .there is none'):
        replay(tmp_path / "published")
