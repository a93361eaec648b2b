import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import scenarios
from raydpzv.config.toml import override
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.rebuild import rebuild
from raydpzv.experiment.resuming import resuming
from raydpzv.ledger.ledger import Ledger
from raydpzv.records import write_ahead_log
from raydpzv.records.checkpoint import CHECKPOINT, read_checkpoint
from raydpzv.records.checkpoint import before as before_it
from raydpzv.records.run_folder import RunFolder
from tests.helpers.loading import refusal
from tests.helpers.small_horizontal import OFTEN, contents, resume, small, stopped


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("decomfl", ("updates = 24", "updates = 99")),
        ("decomfl", ("local_steps = 2", "local_steps = 3")),
        ("fedavg", ("train_rows = 150", "train_rows = 140")),
    ],
)
def test_a_changed_scenario_is_refused(tmp_path: Path, kind: str, edit: tuple[str, str]) -> None:
    stopped(small(kind, OFTEN), tmp_path / "run")
    path = tmp_path / "run" / "scenario.toml"
    assert edit[0] in path.read_text()
    path.write_text(path.read_text().replace(*edit))
    before = contents(tmp_path / "run")
    with refusal(InputError, r"scenario\.toml changed"):
        resuming(tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_changed_data_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,label\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(400)))
    data = ("data.source=csv", f"data.file={table}", "data.target=label")
    stopped(small("decomfl", OFTEN, *data), tmp_path / "run")
    table.write_text(table.read_text().replace("3,3,", "3,4,", 1))
    with pytest.raises(InputError, match="the data changed"):
        resuming(tmp_path / "run")


def test_a_torn_checkpoint_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    stopped(small("fedavg", OFTEN, "model.hidden=[1]"), tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.state"
    data = path.read_bytes()
    before_it(path).unlink()
    for size in (0, 1, 100, len(data) - 1):
        path.write_bytes(data[:size])
        before = contents(tmp_path / "run")
        with refusal(DataError, r"checkpoint\.state: cannot be read"):
            resuming(tmp_path / "run")
        assert contents(tmp_path / "run") == before


def damage(folder: Path, how: str) -> None:
    """Harm the ledger of a run in one of several ways."""
    segment = max((folder / "ledger").glob("*.arrow*"), key=lambda p: p.stat().st_size)
    data = segment.read_bytes()
    if how == "flip":
        segment.write_bytes(
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        )
    elif how == "cut":
        segment.write_bytes(data[: len(data) // 2])
    elif how == "gone":
        shutil.rmtree(folder / "ledger")
    elif how == "header":
        (folder / "ledger" / "header.json").write_text("{")


@pytest.mark.parametrize("how", ["flip", "cut", "gone", "header"])
def test_a_damaged_ledger_is_refused_by_name_and_nothing_is_touched(
    tmp_path: Path, how: str
) -> None:
    """Cut off: what is there is whole, but the checkpoint counts on more."""
    stopped(small("decomfl", OFTEN), tmp_path / "run")
    damage(tmp_path / "run", how)
    before = contents(tmp_path / "run")
    with refusal(InputError, str(tmp_path / "run" / "ledger")):
        resuming(tmp_path / "run")
    assert contents(tmp_path / "run") == before
    if how != "cut":
        with refusal(InputError):
            rebuild(tmp_path / "run")


def test_a_ledger_with_a_seed_for_each_direction_is_refused_and_nothing_is_touched(
    tmp_path: Path,
) -> None:
    """Its pairs would lead elsewhere."""
    spec = small("decomfl", OFTEN)
    stopped(spec, tmp_path / "run")
    folder = tmp_path / "run" / "ledger"
    shutil.rmtree(folder)
    earlier = replace(prepare_horizontal(spec).plan.header(), step_seeds=False)
    Ledger.create(folder, earlier).close()
    before = contents(tmp_path / "run")
    for work in (resuming, rebuild):
        with refusal(InputError, r"a ledger of format 1 .* wanted a ledger of format 2"):
            work(tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_a_run_that_adds_back_shows_its_drift_also_where_it_was_continued(tmp_path: Path) -> None:
    spec = small("add_back", OFTEN)
    whole = scenarios.run(spec).summary["drift"]
    stopped(spec, tmp_path / "run")
    assert resume(tmp_path / "run").summary["drift"] == whole
    assert 0 < whole["largest"] < 1e-4
    restore = scenarios.run(small("per_client")).summary["drift"]
    assert restore == {"largest": 0.0, "share": 0.0}


def test_adding_back_without_rounds_is_refused() -> None:
    with refusal(SpecError, "add_back"):
        small("asynchronous", "method.revert=add_back", "method.replicas=per_client")


def test_a_wall_clock_run_is_rebuilt_and_when_complete_not_resumed(tmp_path: Path) -> None:
    spec = small(
        "asynchronous",
        "clock.kind=wall",
        "arrivals.rate=40",
        "clock.compute=0.001",
        "resources.hosts=2",
    )
    run = scenarios.run(spec, tmp_path / "run")
    assert run.summary["updates"] == 24
    with pytest.raises(InputError, match="this run is complete"):
        resuming(tmp_path / "run")
    again = rebuild(tmp_path / "run")
    assert again.verified is True
    assert again.models[MODEL].tobytes() == run.models[MODEL].tobytes()


@pytest.mark.parametrize("out", [True, False])
def test_a_wall_clock_run_past_the_first_trimming_ends_well(tmp_path: Path, out: bool) -> None:
    """Who evaluates lags behind all clients: with or without a folder it must still find its
    way.
    """
    rest = ("budget.updates=150", "evaluate.every=1000", "split.clients=2", "resources.hosts=2")
    spec = small("asynchronous", "clock.kind=wall", "arrivals.rate=400", "clock.compute=0", *rest)
    run = scenarios.run(spec, tmp_path / "run" if out else None)
    assert run.summary["updates"] == 150
    assert run.summary["status"] == "done"


def test_missing_rows_are_named_before_anything_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead_log, "_LONGEST_LOG", 0)  # each checkpoint's rows are parts
    stopped(small("decomfl", OFTEN), tmp_path / "run")
    for kind, path in (
        ("all", "rows"),
        ("first", "rows/message/part-00000.parquet"),
        ("last", None),
    ):
        folder = tmp_path / kind
        shutil.copytree(tmp_path / "run", folder)
        found = read_checkpoint(folder / CHECKPOINT, RunFolder(folder).identity)
        assert found is not None
        gone = folder / (path or f"rows/sync/part-{found.extents['sync'].parts - 1:05d}.parquet")
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        before = contents(folder)
        with refusal(DataError, r"part-\d+.parquet: is missing"):
            resume(folder)
        assert contents(folder) == before


def test_a_clients_own_drifted_model_is_not_made_up(tmp_path: Path) -> None:
    spec = small("per_client", "method.revert=add_back", "method.momentum=0.0")
    scenarios.run(spec, tmp_path / "run")
    with pytest.raises(InputError, match="add_back"):
        rebuild(tmp_path / "run", client=3)
    assert rebuild(tmp_path / "run").verified


@pytest.mark.parametrize(
    ("kind", "budget"), [("decomfl", "budget.seconds=1.0"), ("mezo", "budget.bytes=1000")]
)
def test_a_run_that_would_never_end_is_refused(kind: str, budget: str) -> None:
    instant = [f"clock.{name}=0.0" for name in ("compute", "service")] + ["network={}"]
    with pytest.raises(SpecError, match=r"budget.updates: wanted, since this run never ends"):
        override(small(kind), [*instant, "budget={}", budget])


def test_a_model_that_no_machine_holds_is_refused_before_anything_is_written() -> None:
    with pytest.raises(SpecError, match="the limit is"):
        prepare_horizontal(small("decomfl", "model.hidden=[1000000, 1000000]"))
