"""The runs of a comparison, one by one: what is kept, continued or made again, and what is read
from them.
"""

import math
import shutil
import threading
from queue import SimpleQueue
from types import SimpleNamespace

import pyarrow.compute as pc
import pytest

import scenarios
from raydpzv.compare.file import ComparisonFile, MethodEntry, resolved
from raydpzv.compare.results import collect
from raydpzv.compare.run_comparison import (
    RUNS_FOLDER,
    _work,
    check_ready,
    finished,
    one_by_one,
    opened,
    run_planned,
    unfinished,
)
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.records.run_folder import RunFolder
from tests.helpers.small_comparisons import small_comparison


def make(comparison, root, stop_after=None):
    """Make what is left; stop after so many runs; return what became of each."""
    found, stop = {}, threading.Event()

    def ended(planned, reason):
        found[planned.folder] = reason
        if len(found) == stop_after:
            stop.set()

    with opened(root, comparison):
        one_by_one(
            unfinished(root, comparison),
            root,
            progress=lambda standing: None,
            ended=ended,
            stop=stop,
        )
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A comparison that has been run, and its folder."""
    root, comparison = tmp_path_factory.mktemp("compared") / "small", small_comparison()
    assert set(make(comparison, root).values()) == {""}
    return comparison, root


def test_every_run_is_the_run_that_its_scenario_gives_alone(made):
    comparison, root = made
    tables = collect(comparison, root)
    assert tables.runs.num_rows == 2 * 6
    for planned, row in zip(comparison.runs(), tables.runs.to_pylist(), strict=True):
        if planned.spec.seed == 0:
            alone = scenarios.run(planned.spec).summary
            for name in (
                "accuracy",
                "loss",
                "updates",
                "bytes_up",
                "bytes_down",
                "simulated_seconds",
            ):
                assert row[name] == alone[name], name
        assert (row["status"], row["seed"]) == ("done", planned.spec.seed)
    assert {row["label"] for row in tables.runs.to_pylist() if row["control"]} == {
        "frozen clients (control)",
        "central SGD (control)",
    }


def test_curves_add_up_to_the_runs(made):
    comparison, root = made
    tables = collect(comparison, root)
    for row in tables.runs.to_pylist():
        mine = [
            r
            for r in tables.curves.to_pylist()
            if all(r[k] == row[k] for k in ("label", "epsilon", "seed"))
        ]
        assert [r["update"] for r in mine] == [0, 20, 40, 60]
        assert mine[-1]["accuracy"] == row["accuracy"]
        assert (mine[-1]["bytes_up"], mine[-1]["bytes_down"]) == (
            row["bytes_up"],
            row["bytes_down"],
        )
        assert mine[0]["bytes_up"] == 0


def test_claims_are_those_of_the_runs_with_noise(made):
    comparison, root = made
    claims = collect(comparison, root).claims.to_pylist()
    assert {(c["label"], c["epsilon"]) for c in claims} == {("DPZV", 1.0), ("VAFL", 1.0)}
    spec = next(p.spec for p in comparison.runs() if p.line.label == "DPZV" and p.line.epsilon)
    alone = scenarios.run(spec).summary["epsilon"]
    mine = [c for c in claims if c["label"] == "DPZV" and c["seed"] == 0]
    assert [(c["adversary"], c["claimed"], c["holds"], c["accountant"]) for c in mine] == [
        (c["adversary"], c["epsilon"], c["holds"], c["accountant"]) for c in alone
    ]


def test_a_finished_comparison_has_nothing_left_and_more_seeds_add_runs(made):
    comparison, root = made
    assert unfinished(root, comparison) == []
    wider = small_comparison(seeds=(0, 1, 2))
    with opened(root, wider):
        assert {planned.spec.seed for planned in unfinished(root, wider)} == {2}
    with pytest.raises(InputError, match="started with seed 2 too"), opened(root, comparison):
        pass
    with opened(root, wider):  # as it was for the other tests
        (root / "comparison.toml").write_text(comparison.as_toml())


def test_an_interrupted_comparison_continues_and_ends_with_the_same_rows(made, tmp_path):
    comparison, whole = made
    assert len(make(comparison, tmp_path / "part", stop_after=3)) == 3
    part = collect(comparison, tmp_path / "part").runs.to_pylist()
    assert [row["outcome"] for row in part].count("not run") == 9
    assert len(make(comparison, tmp_path / "part")) == 9
    one, other = collect(comparison, whole), collect(comparison, tmp_path / "part")
    assert one.curves.equals(other.curves)
    timeless = [name for name in one.runs.column_names if name != "seconds"]
    assert str(one.runs.select(timeless).to_pylist()) == str(
        other.runs.select(timeless).to_pylist()
    )


def test_a_run_stopped_in_its_midst_is_resumed(tmp_path):
    planned = next(
        p for p in small_comparison().runs() if p.line.label == "DPZV" and p.line.epsilon
    )
    stop, folder = threading.Event(), tmp_path / "run"

    def halfway(status):
        if status.updates >= 30:
            stop.set()

    assert (
        run_planned(planned, folder, RunOptions(progress=halfway, stop=stop))
        == "stopped before its end"
    )
    assert not finished(planned, folder)
    releases = scenarios.run(planned.spec).rows("release")
    assert run_planned(planned, folder) == ""
    assert finished(planned, folder)
    assert RunFolder.open(folder).rows()["release"].equals(releases)


def test_a_run_that_cannot_be_continued_begins_again(tmp_path):
    unkept = small_comparison("privacy.noise=system", methods=(
        MethodEntry(label="VAFL", scenario="vafl", private=("privacy.clip=0.1",)),
    ))  # fmt: skip
    planned = next(p for p in unkept.runs() if p.line.epsilon)
    stop, folder = threading.Event(), tmp_path / "run"
    stop.set()
    run_planned(planned, folder, RunOptions(stop=stop))
    assert not finished(planned, folder)
    assert run_planned(planned, folder) == ""
    assert finished(planned, folder)


def test_divergence_is_a_result_that_stays_and_any_other_failure_is_tried_again(tmp_path):
    comparison = small_comparison(
        seeds=(0,), epsilons=("none",), methods=(MethodEntry(label="wild", scenario="vafl", set=("method.lr=1e9",)),)
    )  # fmt: skip
    root = tmp_path / "wild"
    reasons = make(comparison, root)
    wild = next(p.folder for p in comparison.runs() if p.line.label == "wild")
    assert "not" in reasons[wild]
    assert unfinished(root, comparison) == []
    row = collect(comparison, root, reasons).runs.filter(pc.field("label") == "wild").to_pylist()[0]
    assert (row["outcome"], row["status"]) == ("diverged", "failed")
    assert "finite" in row["reason"]
    assert unfinished(root, comparison) == []
    summary = root / RUNS_FOLDER / wild / "summary.json"
    summary.write_text(summary.read_text().replace('"failure": "diverged"', '"failure": null'))
    assert [planned.folder for planned in unfinished(root, comparison)] == [wild]


def test_a_failure_without_a_folder_is_told(tmp_path):
    planned = next(small_comparison().runs())
    broken = type(planned)(planned.line, planned.spec, "x")
    (tmp_path / "file").write_text("not a folder")
    reason = run_planned(broken, tmp_path / "file" / "x")
    assert "cannot write" in reason


def test_rows_without_a_run_say_so(made, tmp_path):
    comparison, root = made
    shutil.copytree(root, tmp_path / "copy")
    victim = next(comparison.runs()).folder
    shutil.rmtree(tmp_path / "copy" / RUNS_FOLDER / victim)
    row = collect(comparison, tmp_path / "copy").runs.to_pylist()[0]
    assert (row["outcome"], row["reason"], row["status"]) == ("not run", "not started", "missing")
    assert math.isnan(row["accuracy"])
    told = collect(
        comparison, tmp_path / "copy", {victim: "its process was lost"}
    ).runs.to_pylist()[0]
    assert (told["outcome"], told["reason"]) == ("failed", "its process was lost")


def test_one_process_at_a_time_and_no_foreign_folder(made, tmp_path):
    comparison, root = made
    with (
        opened(root, comparison),
        pytest.raises(InputError, match="another process"),
        opened(root, comparison),
    ):
        pass
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("mine")
    with (
        pytest.raises(InputError, match="something else"),
        opened(tmp_path / "letters", comparison),
    ):
        pass
    other = small_comparison("method.batch=32")
    with pytest.raises(InputError, match="another comparison"), opened(root, other):
        pass


def test_data_that_are_not_there_are_missed_before_the_first_run():
    with pytest.raises(DataError, match=r"^DPZV: "):
        check_ready(small_comparison("data.source=mnist", "data.folder=nowhere", "split.clients=4"))


def test_a_proved_mode_stays_proved_at_every_epsilon_and_all_rows_are_what_was_planned(tmp_path):
    entry = MethodEntry(label="DPZV", set=("method.perturbations=2",))
    file = ComparisonFile(
        name="proved",
        scenario="digits_private",
        set=("budget.updates=4", "evaluate.every=4", "privacy.relation=add_remove"),
        seeds=1,
        epsilons=(3.0,),
        methods=(entry,),
        heads="a sum has none that learns",
    )
    comparison = resolved(file)
    assert set(make(comparison, tmp_path / "c").values()) == {""}
    claim, replaced = [
        row
        for row in collect(comparison, tmp_path / "c").claims.to_pylist()
        if row["adversary"] == "client" and row["holds"]
    ]
    assert (claim["relation"], round(claim["claimed"], 6)) == ("add_remove", 3.0)
    assert replaced["relation"] == "replace"
    assert replaced["claimed"] > claim["claimed"]
    with pytest.raises(SpecError, match=r'"proved" is for method\.name = "dpzv"'):
        resolved(file.model_copy(update={"methods": (MethodEntry(set=("method.name=vafl",)),)}))


def test_a_worker_ends_that_cannot_read_what_it_is_to_run(monkeypatch, tmp_path):
    def unreadable():
        raise ImportError("no module named mine")

    said = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda found: said.put(found.exc_type))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the worker sets it
    pipe = SimpleNamespace(recv=unreadable, send=lambda said: None)
    worker = threading.Thread(target=_work, args=(pipe, tmp_path), daemon=True)
    worker.start()
    worker.join(timeout=30)
    assert not worker.is_alive()
    assert said.get(timeout=30) is ImportError
