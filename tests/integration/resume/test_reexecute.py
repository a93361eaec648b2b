import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.errors import InputError, ReplayMismatch
from raydpzv.experiment.rebuild import replay
from tests.helpers.kills import kill_at

MESSY = (
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "network.latency=0.05",
    "network.up=50000",
    "arrivals.rate=[1.0, 2.0, 0.5, 1.5]",
)


@pytest.fixture(scope="module")
def recorded_once(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    scenarios.run(small(), folder)
    return folder


@pytest.fixture
def recorded(recorded_once, tmp_path):
    """The folder of a run of 120 updates: a copy for each test to harm."""
    return shutil.copytree(recorded_once, tmp_path / "run")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        MESSY,
        ("privacy.noise=system",),
        ("method.perturbations=3", "method.momentum=0.0", "method.direction=gaussian"),
        ("method.server=zo", "method.batches=poisson"),
    ],
)
def test_a_virtual_run_replays_to_the_same_bits(small, tmp_path, overrides):
    run = scenarios.run(small(*overrides), tmp_path / "run")
    result = replay(tmp_path / "run")
    assert result.verified
    assert result.updates == 120
    for party, values in run.models.items():
        assert np.array_equal(result.models[party], values)


def test_a_wall_run_replays_its_arrival_order_to_the_same_bits(small, tmp_path):
    spec = small("clock.kind=wall", "arrivals.rate=[80, 80, 80, 8]", "privacy.noise=system")
    run = scenarios.run(spec, tmp_path / "run")
    assert run.summary["updates"] == 120
    result = replay(tmp_path / "run")
    assert result.verified
    for party, values in run.models.items():
        assert np.array_equal(result.models[party], values)


def test_a_synchronous_wall_run_replays_too(tmp_path):
    spec = scenarios.load("sgd", ["clock.kind=wall", "budget.updates=80", "arrivals.rate=20"])
    scenarios.run(spec, tmp_path / "run")
    assert replay(tmp_path / "run").verified


def test_replay_stops_where_it_is_told(recorded):
    part = replay(recorded, at=50)
    assert (part.updates, part.verified) == (50, False)
    whole = replay(recorded)
    assert not np.array_equal(part.models["server"], whole.models["server"])
    with pytest.raises(InputError, match=r"--at: wanted 1..120"):
        replay(recorded, at=121)


def test_a_changed_release_is_found_out(recorded):
    path = recorded / "rows" / "release" / "part-00000.parquet"
    table = pq.read_table(path)
    values = table.column("value").to_numpy().copy()
    values[40] += 0.01
    pq.write_table(table.set_column(table.schema.get_field_index("value"), "value", [values]), path)
    with pytest.raises(ReplayMismatch, match="one of them was changed"):
        replay(recorded)
    # the bits alone tell it too
    shutil.rmtree(recorded / "ledger")
    with pytest.raises(ReplayMismatch, match="the server's loss was"):
        replay(recorded)


def test_a_missing_release_is_found_out(recorded):
    path = recorded / "rows" / "release" / "part-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 100), path)
    with pytest.raises(ReplayMismatch, match="the record has no release for client"):
        replay(recorded)


def test_a_killed_run_is_replayed_as_far_as_its_last_checkpoint(small, tmp_path):
    spec = small("record.checkpoint_updates=10")
    scenarios.run(spec, tmp_path / "whole")
    kill_at(25, spec, tmp_path / "killed")
    killed = replay(tmp_path / "killed")
    assert 10 < killed.updates <= 20, "but for services whose answers were on their way"
    whole = replay(tmp_path / "whole", killed.updates)
    assert {name: x.tobytes() for name, x in killed.models.items()} == {
        name: x.tobytes() for name, x in whole.models.items()
    }


def test_the_whole_part_of_a_record_with_services_missing_at_its_end_is_replayed(small, tmp_path):
    """As a killed wall-clock run leaves it: what was served but not yet applied has no row."""
    spec = small("clock.kind=wall", "arrivals.rate=80")
    scenarios.run(spec, tmp_path / "run")
    path = tmp_path / "run" / "rows" / "service" / "part-00000.parquet"
    table = pq.read_table(path).sort_by("round")
    pq.write_table(table.take([*range(100), *range(103, 120)]), path)
    assert replay(tmp_path / "run").updates == 100
