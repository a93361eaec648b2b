import shutil

import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.errors import DataError, InputError, NotRecomputable, ReplayMismatch
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import resuming
from raydpzv.records.run_folder import RunFolder, drop_checkpoints
from raydpzv.records.store import read_rows
from tests.helpers.small_horizontal import stop_after


@pytest.fixture(scope="module")
def stopped_once(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    scenarios.run(small(), folder, **stop_after(40))
    return folder


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """The folder of a run that was stopped after 40 of 120 updates: a copy for each test to
    harm.
    """
    return shutil.copytree(stopped_once, tmp_path / "run")


def test_rows_that_disagree_with_the_ledger_are_not_continued(stopped):
    path = stopped / "rows" / "release" / "part-00000.parquet"
    table = pq.read_table(path)
    values = table.column("value").to_numpy().copy()
    values[20] += 0.01
    pq.write_table(table.set_column(table.schema.get_field_index("value"), "value", [values]), path)
    with pytest.raises(ReplayMismatch, match="one of them was changed"):
        resuming(stopped)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("updates = 120", "updates = 20000"), "scenario.toml changed"),
        (("lr = 0.003", "lr = 0.004"), "scenario.toml changed"),
        (("test_fraction = 0.2", "test_fraction = 0.3"), "scenario.toml changed"),
    ],
)
def test_a_changed_scenario_is_neither_continued_nor_replayed(stopped, edit, said):
    path = stopped / "scenario.toml"
    changed = path.read_text().replace(*edit)
    assert changed != path.read_text()
    path.write_text(changed)
    for again in (resuming, replay):
        with pytest.raises(InputError, match=said):
            again(stopped)


def test_missing_and_damaged_parts_are_named(small, tmp_path):
    spec = small("record.flush=0.001")
    scenarios.run(spec, tmp_path / "run", **stop_after(40))
    folder = tmp_path / "run" / "rows" / "release"
    parts = sorted(folder.glob("part-*.parquet"))
    assert len(parts) > 3
    content = parts[1].read_bytes()
    parts[1].write_bytes(content[: len(content) // 2])
    for again in (resuming, replay):
        with pytest.raises(DataError, match=r"part-00001\.parquet: cannot be read"):
            again(tmp_path / "run")
    pq.write_table(read_rows(tmp_path / "run", "evaluation"), parts[1])
    with pytest.raises(DataError, match="is not a part of release rows"):
        replay(tmp_path / "run")
    parts[1].unlink()
    for again in (resuming, replay):
        with pytest.raises(DataError, match="a part is missing"):
            again(tmp_path / "run")


def test_a_gap_in_the_record_is_not_drawn_again(stopped):
    """The ledger has what the rows lack; without it the gap is an error."""
    drop_checkpoints(stopped)
    path = stopped / "rows" / "release" / "part-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(5), path)
    resuming(shutil.copytree(stopped, stopped.with_name("copy")))[1].__exit__()
    shutil.rmtree(stopped / "ledger")
    with pytest.raises(DataError, match="the record lacks the release"):
        resuming(stopped)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_summary_is_named(stopped, content):
    (stopped / "summary.json").write_text(content)
    with pytest.raises(DataError, match=r"summary.json: is damaged"):
        resuming(stopped)


WALL = ("clock.kind=wall", "arrivals.rate=50", "data.train_rows=150", "data.test_rows=40")
NOISE = ("privacy.mode=paper", "privacy.epsilon=1.0", "privacy.delta=1e-5", "privacy.clip=1.0")


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("vafl", ("method.max_delay=3",), "what its queries were answered with"),
        ("vafl", ("method.query_first=true",), "what its queries were answered with"),
        (
            "zoo_vfl",
            (*NOISE, "privacy.noise=seeded"),
            "zoo_vfl keeps no ledger of what it releases",
        ),
        ("vafl", NOISE, "its noise on every embedding row came from the operating system"),
    ],
)
def test_a_wall_clock_run_whose_segments_nobody_could_account_for_is_not_continued(
    tmp_path, name, overrides, said
):
    """It takes no checkpoints, and a new attempt begins anew."""
    spec = scenarios.load(name, [*WALL, *overrides])
    scenarios.run(spec, tmp_path / "run", **stop_after(10))
    assert not (tmp_path / "run" / "checkpoint.state").exists()
    with pytest.raises(NotRecomputable, match=said):
        resuming(tmp_path / "run")


def test_rows_of_a_wall_clock_run_without_a_checkpoint_are_left_as_they_are(tmp_path):
    """To start again there would drop a record."""
    scenarios.run(scenarios.load("vafl", [*WALL]), tmp_path / "run", **stop_after(10))
    folder = RunFolder.open(tmp_path / "run")
    drop_checkpoints(folder.path)
    before = folder.rows()["service"]
    with pytest.raises(NotRecomputable, match="no checkpoint to continue from"):
        resuming(tmp_path / "run")
    assert folder.rows()["service"].equals(before)
