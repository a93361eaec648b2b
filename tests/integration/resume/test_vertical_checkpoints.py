import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.errors import DataError, StoppedEarly
from raydpzv.experiment.resuming import resuming
from raydpzv.ledger.ledger import Ledger
from raydpzv.records import write_ahead_log
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from tests.helpers.kills import kill_at
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after
from tests.helpers.small_vertical import RECORD, scenario
from tests.helpers.sound_runs import sound, table


def go_on(folder, **options):
    experiment, opened, _ = resuming(folder)
    return run_prepared(experiment, opened, runner="local", **options).summary


def test_a_ledger_is_read_once_to_continue_with_its_run(tmp_path, monkeypatch):
    spec, folder = scenario("dpzv"), tmp_path / "run"
    kill_at(24, spec, folder)
    opened = []
    monkeypatch.setattr(
        Ledger,
        "open",
        lambda path, real=Ledger.open, **named: opened.append(named) or real(path, **named),
    )
    experiment, going_on, _ = resuming(folder)
    summary = run_prepared(experiment, going_on).summary
    assert [named.get("write", False) for named in opened] == [False]
    assert going_on.read_ledger is None, "nobody else takes it"
    assert summary["digest"] == scenarios.run(spec).summary["digest"]


SYSTEM = {
    "accounted": ["privacy.noise=system", "budget.epsilon=1e6", "method.perturbations=2"],
    "poisson": ["privacy.noise=system", "method.batches=poisson", "method.server=zo"],
}


def copied_at(updates, spec, folder):
    """Run to the end; return the summary, and a copy of the folder as a kill would have left it,
    but for its ledger.

    That has all releases of the run, as if the kill had lost all rows of what came after the
    checkpoint.
    """
    copy = folder.with_name("copy")

    def look(status):
        if status.updates >= updates and not copy.exists():
            shutil.copytree(folder, copy)

    end = scenarios.run(spec, folder, progress=look).summary
    shutil.rmtree(copy / "ledger")
    shutil.copytree(folder / "ledger", copy / "ledger")
    return end, copy


@pytest.mark.parametrize("kind", [*SYSTEM, "proved"])
def test_releases_beyond_the_checkpoint_are_given_out_again(tmp_path, kind):
    """Also sums that wait for the rest of their release, the mean of the last models, and the
    account.
    """
    if kind == "proved":
        waiting = ["method.gather=4", "method.average=0.8", "method.server=joint"]
        spec = sound(table(tmp_path / "table.csv"), *waiting, *RECORD)
    else:
        spec = scenario("dpzv", *SYSTEM[kind])
    end, copy = copied_at(48, spec, tmp_path / "run")
    checkpoint = RunFolder.open(copy).checkpoint()
    assert checkpoint.round == 40
    if kind == "proved":
        assert checkpoint.state["server"]["role"]["gathered"]
        assert checkpoint.state["server"]["role"]["tail"][0] > 0
    stopped = shutil.copytree(copy, tmp_path / "stopped")
    again = go_on(copy)
    for field in ("digest", "model_digest", "epsilon", "updates"):
        assert again[field] == end[field], field
    assert again["ledger"]["digest"] == end["ledger"]["digest"]
    # stopped before all that the ledger has was given out, it would tell of fewer releases than
    # were made
    with pytest.raises(StoppedEarly):
        go_on(stopped, **stop_after(42))
    assert not (stopped / "summary.json").exists()


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            write_ahead_log, "_LONGEST_LOG", 0
        )  # so that each checkpoint's rows are parts
        kill_at(35, scenario("dpzv"), folder)
    return folder


@pytest.fixture
def killed(killed_once, tmp_path):
    """The folder of a run that was killed after 35 of 60 updates: a copy for each test to harm."""
    return shutil.copytree(killed_once, tmp_path / "run")


def contents(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_what_belongs_not_together_is_refused_before_anything_is_changed(killed):
    def refused(text):
        found = contents(killed)
        with pytest.raises(DataError, match=text):
            resuming(killed)
        assert contents(killed) == found

    ledger = killed.with_name("ledger")
    (killed / "ledger").rename(ledger)
    refused("wanted the ledger of the run's checkpoint, with 30 updates or more, but there is none")
    with Ledger.open(ledger, write=True) as cut:
        cut.truncate(29)
    ledger.rename(killed / "ledger")
    refused("but it holds 29")


def test_a_doubled_and_a_lost_row_are_found(killed):
    part = killed / "rows" / "message" / "part-00001.parquet"
    rows, whole = pq.read_table(part), part.read_bytes()
    for wrong in (pa.concat_tables([rows, rows.slice(3, 1)]), rows.slice(1)):
        pq.write_table(wrong, part)
        found = contents(killed)
        with pytest.raises(
            DataError, match=r"message: has \d+ rows where the checkpoint counts \d+"
        ):
            resuming(killed)
        assert contents(killed) == found
    part.write_bytes(whole)
    resuming(killed)[1].__exit__()


def test_a_changed_row_is_found_though_the_counts_are_right(killed):
    part = killed / "rows" / "message" / "part-00001.parquet"
    rows, whole = pq.read_table(part), part.read_bytes()
    place = rows.schema.get_field_index("bytes")
    pq.write_table(rows.set_column(place, "bytes", pa.array(rows["bytes"].to_numpy() + 1)), part)
    found = contents(killed)
    with pytest.raises(DataError, match="message: its parts are not those of the checkpoint"):
        resuming(killed)
    assert contents(killed) == found
    part.write_bytes(whole)
    resuming(killed)[1].__exit__()


def test_what_interrupted_writes_left_is_deleted(killed):
    left = [killed / ".summary.json.4711", killed / "rows" / "message" / ".part-00007.parquet"]
    for path in left:
        path.write_bytes(b"half")
    resuming(killed)[1].__exit__()
    assert not any(path.exists() for path in left)
    assert (killed / "checkpoint.state").is_file()


@pytest.mark.parametrize("part", ["epochs", "works", "services", "head", "refreshed", "clients"])
def test_what_a_checkpoint_leaves_out_would_be_missed(tmp_path, part):
    """A control: with one part of the state wrong the bits are others."""
    spec, folder = scenario("vafl"), tmp_path / "run"
    whole = scenarios.run(spec).summary
    kill_at(35, spec, folder)
    experiment, opened, _ = resuming(folder)
    checkpoint, run, server = opened.checkpoint(), None, None
    state = dict(checkpoint.state)
    run, server = state["run"], state["server"]
    if part == "epochs":
        run["epochs"] = [[client, used + 1] for client, used in run["epochs"]]
    elif part == "works":
        run["works"] = [[client, works + 1] for client, works in run["works"]]
    elif part == "services":
        run["services"]["open"] = []
    elif part == "clients":
        state["clients"][0].vectors[0, 0] += 1
    else:
        server["top"][part][0] += 1
    opened.write_checkpoint(Checkpoint(checkpoint.round, state))
    assert run_prepared(experiment, opened, runner="local").summary["digest"] != whole["digest"]
