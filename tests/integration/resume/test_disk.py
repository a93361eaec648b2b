"""The disk is full, or the folder made read-only, in the midst of a run: the folder is named, and nothing is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import scenarios
from raydpzv.errors import RunError
from raydpzv.experiment.resuming import continued
from raydpzv.ledger import log
from raydpzv.records import run_writer, write_ahead_log
from scenarios.exit_codes import failures
from tests.helpers.runs import run_prepared


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
@pytest.mark.parametrize(("what", "calls"), [("append_rows", 3), ("write_checkpoint", 2), ("ledger", 60)])
def test_what_cannot_be_written_ends_the_run_and_a_resume_loses_nothing(
    small, tmp_path, full, monkeypatch, what, calls, number
):
    spec = small("record.checkpoint=1e-9", "record.checkpoint_updates=20")
    monkeypatch.setattr(write_ahead_log, "_LONGEST_LOG", 1 << 12)  # so that rows become parts in the midst
    with monkeypatch.context():
        full(what, calls, number)
        with pytest.raises(RunError, match=os.strerror(number)) as caught:
            scenarios.run(spec, tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    experiment, folder, _ = continued(tmp_path / "run")
    found, whole = run_prepared(experiment, folder).summary, scenarios.run(spec).summary
    for field in ("digest", "model_digest"):
        assert found[field] == whole[field]
    assert found["ledger"]["digest"] == whole["ledger"]["digest"]


def test_a_log_of_the_error_that_cannot_be_written_does_not_hide_it(tmp_path, monkeypatch):
    def failing(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(RunError, match=r"^the disk was seen to be full$"), failures(tmp_path):
        raise RunError("the disk was seen to be full")
