import csv
import json
import math
import struct
import sys
import threading
from datetime import UTC, datetime

import pytest

import raydpzv
from raydpzv.errors import InputError, SpecError
from raydpzv.privacy.gdp import mu_of
from raydpzv.privacy.release import PrivacyLoss
from raydpzv.records import exporters
from raydpzv.records.callbacks import Fault, RunStart
from raydpzv.records.exporters import JsonLog, status_scalars
from raydpzv.registry import LOGS
from raydpzv.report.page import run_pictures
from raydpzv.sim.interfaces import Status
from scenarios.options import chosen_logs


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run with every log there is, and its folder."""
    folder = tmp_path_factory.mktemp("logged") / "run"
    given = [
        "privacy.noise=seeded",
        "budget.updates=120",
        "evaluate.every=40",
        "data.validation_fraction=0.2",
    ]
    logs = chosen_logs("csv, tensorboard,json")
    assert len(logs) == len(LOGS) - 3  # trackers want libraries of their own
    return raydpzv.run(raydpzv.load("digits_dpzv", given), folder, callbacks=logs), folder


def measured(run):
    """(update, scalar, value) of every score on record."""
    before = {"test": "", "validation": "validation_"}
    return {
        (row["round"], before[row["part"]] + name, row[name])
        for row in run.rows("evaluation").to_pylist()
        for name in ("accuracy", "loss", "top_share")
    }


def ended(run):
    """Scalars at the end, from the rows and from the summary."""
    epsilon = run.rows("release").to_pylist()[-1]["epsilon_client"]
    return {
        "uploads": 120,
        "bytes_up": run.summary["bytes_up"],
        "bytes_down": run.summary["bytes_down"],
    } | ({"epsilon_client": epsilon} if math.isfinite(epsilon) else {})


def check(run, found):
    """found: (update, scalar, value) as they stand in a log."""
    assert measured(run) <= set(found)
    last = {name: value for update, name, value in found if update == 120}
    assert {name: last[name] for name in ended(run)} == pytest.approx(ended(run), rel=1e-6)


def test_a_csv_file_holds_the_rows_scores_and_the_counts_of_the_end(logged):
    run, folder = logged
    with (folder / "scalars.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    check(run, [(int(line["update"]), line["scalar"], float(line["value"])) for line in lines])
    times = {(row["round"], row["time"]) for row in run.rows("evaluation").to_pylist()}
    assert times == {
        (int(i["update"]), float(i["time"])) for i in lines if i["scalar"] == "accuracy"
    }


def events(folder):
    """The events of the only event file in a run's folder."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = (folder / "tensorboard").iterdir()
    data, place = file.read_bytes(), 0
    while place < len(data):  # length, its checksum, the event, its checksum
        (size,) = struct.unpack_from("<Q", data, place)
        yield Event.FromString(data[place + 12 : place + 12 + size])
        place += 16 + size


def test_event_files_hold_the_same(logged):
    run, folder = logged
    found = [
        (event.step, i.tag, i.simple_value) for event in events(folder) for i in event.summary.value
    ]
    single = {
        (update, name, struct.unpack("f", struct.pack("f", value))[0])
        for update, name, value in measured(run)
    }
    assert single <= set(found)
    assert {name: value for update, name, value in found if update == 120}["uploads"] == 120


def test_event_files_hold_the_pictures_of_the_run(logged):
    _, folder = logged
    values = [i for event in events(folder) for i in event.summary.value if i.HasField("image")]
    found = {i.tag: i.image.encoded_image_string for i in values}
    assert found == run_pictures(folder)
    assert "accuracy_over_updates" in found
    (size,) = {(i.image.width, i.image.height) for i in values if i.tag == "accuracy_over_updates"}
    assert size[0] > size[1] > 100


def test_event_files_are_read_along_and_no_thread_writes_them(tmp_path, monkeypatch):
    """The library's own writers take a thread and a process queue, for two thirds of what all logs
    cost.
    """
    threads = set(threading.enumerate())
    monkeypatch.setattr(exporters, "_FLUSH", 0.0)
    (log,) = chosen_logs("tensorboard")
    log.start(RunStart(raydpzv.load("digits_dpzv"), "digits_dpzv", "local", tmp_path))
    before = datetime.now(UTC).timestamp()
    log.status(Status(updates=7, uploads=9))
    first, event = events(tmp_path)
    assert (event.step, {i.tag: i.simple_value for i in event.summary.value}["uploads"]) == (7, 9)
    assert first.file_version
    assert before <= event.wall_time <= datetime.now(UTC).timestamp()
    monkeypatch.setattr(exporters, "_FLUSH", 60.0)
    log.status(Status(updates=8))  # to sync each would make the run wait
    assert len(list(events(tmp_path))) == 2
    log.end(None)
    assert [event.step for event in events(tmp_path)] == [0, 7, 8]
    assert set(threading.enumerate()) == threads


def test_a_structured_log_is_an_object_a_line_with_run_actor_client_update(logged):
    run, folder = logged
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert all(
        {"at", "level", "event", "run", "actor", "client", "update"} <= line.keys()
        for line in lines
    )
    assert {line["run"] for line in lines} == {"run"}
    assert (lines[0]["event"], lines[0]["scenario"], lines[0]["runner"]) == (
        "start",
        "digits_dpzv",
        "local",
    )
    assert (lines[-1]["event"], lines[-1]["status"], lines[-1]["digest"]) == (
        "end",
        "done",
        run.summary["digest"],
    )
    check(run, [(line["update"], name, value) for line in lines for name, value in line.items()])


def test_a_fault_names_actor_and_client_and_what_is_not_finite_is_null(tmp_path):
    log = JsonLog()
    log.start(RunStart(raydpzv.load("digits_dpzv"), "digits_dpzv", "ray", tmp_path))
    log.status(Status(updates=7, loss=math.inf))
    for party in ("client 3", "client actor 1", "run"):
        log.fault(Fault(math.nan, party, "Lost", "said"))
    log.end(None)
    _, status, *faults, end = [
        json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()
    ]
    assert "staleness" not in status
    assert [(f["actor"], f["client"], f["update"], f["level"], f["time"]) for f in faults] == [
        ("client 3", 3, 7, "warning", None),
        ("client actor 1", None, 7, "warning", None),
        ("driver", None, 7, "error", None),
    ]
    assert (end["status"], end["update"]) == (None, 7)


def test_epsilon_is_written_by_adversary_and_left_out_where_nothing_is_proved():
    found = status_scalars(Status(privacy=PrivacyLoss(mu_of(0.5, 1e-3), math.inf, 1e-3)))
    assert {k: v for k, v in found.items() if "epsilon" in k} == {
        "epsilon_paper": pytest.approx(0.5)
    }
    users = PrivacyLoss(math.nan, mu_of(2.0, 1e-5), 1e-5, mu_of(1.0, 1e-5), mu_of(3.0, 1e-5))
    found = status_scalars(Status(privacy=users))
    assert (
        found["epsilon_external"],
        found["epsilon_client"],
        found["epsilon_server"],
    ) == pytest.approx((1, 2, 3))


def test_a_wrong_name_is_refused_with_the_nearest_and_a_missing_library_with_the_command(
    monkeypatch,
):
    with pytest.raises(
        SpecError, match=r'--log: unknown log "tensorbord"\. Did you mean "tensorboard"'
    ):
        chosen_logs("csv,tensorbord")
    with pytest.raises(SpecError, match='--log: unknown log ""'):
        chosen_logs("csv,")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match=r"not installed: pip install 'raydpzv\[tensorboard\]'$"):
        chosen_logs("tensorboard")


@pytest.mark.parametrize("name", ["csv", "tensorboard", "json"])
def test_without_a_folder_a_log_says_what_it_wants(name):
    (log,) = chosen_logs(name)
    with pytest.raises(InputError, match="wanted a run folder to write a log to"):
        log.start(RunStart(raydpzv.load("digits_dpzv"), "digits_dpzv", "local", None))


def test_what_checkpoints_took_is_a_scalar_where_some_were_taken():
    assert "checkpoint_seconds" not in status_scalars(Status())
    assert (
        status_scalars(Status(checkpoints=2, checkpoint_seconds=0.25))["checkpoint_seconds"] == 0.25
    )
