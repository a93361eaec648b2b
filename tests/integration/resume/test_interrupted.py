import errno
import os
from pathlib import Path
from typing import Any

import pytest

import scenarios
from raydpzv.errors import InputError, RunError
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import rebuild
from raydpzv.experiment.resuming import continued
from raydpzv.ledger import log
from raydpzv.records import run_writer, write_ahead_log
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import digest
from raydpzv.registry import METHODS
from scenarios.exit_codes import failures
from tests.helpers import small_horizontal, small_vertical
from tests.helpers.kills import kill_at
from tests.helpers.loading import refusal
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

PLAIN = [(name, ()) for name, found in METHODS.items() if found.kind == "vertical"]
VERTICAL = [
    *PLAIN,
    ("dpzv", ("method.server=zo", "method.batches=poisson", "method.perturbations=2")),
    ("dpzv", ("arrivals.rate=[1.0, 2.0, 0.5, 1.5]",)),
    ("zoo_vfl", ("method.server=zo_one_sided",)),
    ("vafl", ("method.query_first=true", "privacy.mode=none")),
    ("vafl", ("method.max_delay=3", "privacy.mode=none")),
    ("vafl", ("method.synchrony=t-synchronous", "method.wait_for=3", "method.noise_on=gradient")),
    ("czofo", ("method.upload_bits=4", "method.answer_bits=8", "method.momentum=0.5")),
]


def stop_at(updates: int, spec: Any, folder: Path) -> None:
    """Start or continue a run, and stop it as its user does."""
    prepared, out = (prepare(spec), folder) if not folder.exists() else continued(folder)[:2]
    summary = run_prepared(prepared, out, **stop_after(updates)).summary
    assert (summary["status"], summary["updates"]) == ("stopped", updates)


def resumed(spec: Any, folder: Path) -> Any:
    """Continue an interrupted run to its end, hold it against an uninterrupted one, and return
    that.
    """
    whole, checkpoint = scenarios.run(spec), RunFolder.open(folder).checkpoint()
    assert checkpoint is not None
    prepared, opened, _ = continued(folder)
    seen: list[int] = []
    end = run_prepared(prepared, opened, progress=lambda status: seen.append(status.updates))
    for field in (
        "digest",
        "model_digest",
        "updates",
        "bytes_up",
        "bytes_down",
        "epsilon",
        "vector_length",
    ):
        assert end.summary.get(field) == whole.summary.get(field), field
    assert end.summary.get("ledger", {}).get("digest") == whole.summary.get("ledger", {}).get(
        "digest"
    )
    assert (end.summary["status"], digest(RunFolder.open(folder).rows())) == (
        "done",
        whole.summary["digest"],
    )
    assert min(updates for updates in seen if updates) >= checkpoint.round
    assert end.summary["checkpoints"]["count"] > 0
    assert RunFolder.open(folder).checkpoint() is None
    with pytest.raises(InputError, match="complete"):
        continued(folder)
    return whole


# a method's roles are the same with both engines, and their models are in the checkpoint of any
# method
@pytest.mark.parametrize(
    ("name", "changes", "engine"),
    [*((*case, "compiled") for case in VERTICAL), *((*case, "torch") for case in PLAIN)],
    ids=lambda each: each if isinstance(each, str) else "-".join(each),
)
def test_an_interrupted_vertical_run_comes_to_the_same_bits(tmp_path, name, changes, engine):
    spec, folder = (
        small_vertical.scenario(name, *changes, f"model.engine={engine}"),
        tmp_path / "run",
    )
    for interrupt, updates in ((kill_at, 24), (stop_at, 35), (kill_at, 48)):
        interrupt(updates, spec, folder)
    resumed(spec, folder)


@pytest.mark.parametrize("kind", small_horizontal.METHODS)
def test_an_interrupted_horizontal_run_comes_to_the_same_bits(tmp_path, kind):
    spec, folder = small_horizontal.small(kind, small_horizontal.OFTEN), tmp_path / "run"
    for interrupt, updates in ((stop_at, 9), (kill_at, 13), (stop_at, 17)):
        interrupt(updates, spec, folder)
    whole = resumed(spec, folder)
    if kind in small_horizontal.SEEDED:
        again = rebuild(folder)
        assert (again.verified, again.updates) == (True, 24)
        assert again.models[MODEL].tobytes() == whole.models[MODEL].tobytes()


# The disk is full, or the folder made read-only, in the midst of a run: the folder is named, and
# nothing is lost.


@pytest.fixture
def full(monkeypatch):
    """From the n-th time on a write of some kind fails with an error of the system's."""

    def make(what, calls, number):
        place = {
            "ledger": (log.os, "write"),
            "append_rows": (write_ahead_log, "append_rows"),
            "write_checkpoint": (run_writer, "write_checkpoint"),
        }[what]
        found, count = getattr(*place), [0]

        def failing(*arguments, **named):
            count[0] += 1
            if count[0] >= calls:
                raise OSError(number, os.strerror(number))
            return found(*arguments, **named)

        monkeypatch.setattr(*place, failing)

    return make


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize(
    ("what", "calls"), [("append_rows", 3), ("write_checkpoint", 2), ("ledger", 60)]
)
def test_what_cannot_be_written_ends_the_run_and_a_resume_loses_nothing(
    small, tmp_path, full, monkeypatch, what, calls, number
):
    spec = small("record.checkpoint=1e-9", "record.checkpoint_updates=20")
    monkeypatch.setattr(
        write_ahead_log, "_LONGEST_LOG", 1 << 12
    )  # so that rows become parts in the midst
    with monkeypatch.context():
        full(what, calls, number)
        with refusal(RunError, os.strerror(number), str(tmp_path / "run")):
            scenarios.run(spec, tmp_path / "run")
    monkeypatch.undo()
    experiment, folder, _ = continued(tmp_path / "run")
    found, whole = run_prepared(experiment, folder).summary, scenarios.run(spec).summary
    for field in ("digest", "model_digest"):
        assert found[field] == whole[field]
    assert found["ledger"]["digest"] == whole["ledger"]["digest"]


def test_a_log_of_the_error_that_cannot_be_written_does_not_hide_it(tmp_path, monkeypatch):
    def failing(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("raydpzv.files.write_atomically", failing)
    with pytest.raises(RunError, match=r"^the disk was seen to be full$"), failures(tmp_path):
        raise RunError("the disk was seen to be full")
