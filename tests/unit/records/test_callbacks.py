import math
import time

import pyarrow as pa
import pytest

import raydpzv
from raydpzv.errors import InputError
from raydpzv.records.callbacks import Callback, Callbacks, StatusCallback
from raydpzv.sim.interfaces import Status

EVENTS = ("start", "status", "rows", "evaluation", "fault", "end")


class Heard(Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []
        for event in EVENTS:
            setattr(self, event, lambda what, event=event: self.told.append((event, what)))

    def of(self, event):
        return [what for name, what in self.told if name == event]

    def status(self, status):
        """Overridden so that it is told."""


class Failing(Callback):
    """Fails at one event."""

    def __init__(self, event):
        self.calls = 0
        setattr(self, event, self.fail)

    def status(self, status):
        """Overridden so that it is told."""

    def fail(self, what):
        self.calls += 1
        raise ArithmeticError("planted\nin two lines")


def test_a_callback_hears_the_rows_of_a_run_and_its_two_ends(small, tmp_path):
    heard = Heard()
    run = raydpzv.run(small("record.flush=0.001"), tmp_path / "run", callbacks=[heard])
    (started,), (ended,) = heard.of("start"), heard.of("end")
    assert (started.name, started.folder, started.runner) == ("run", tmp_path / "run", "local")
    assert ended == run.summary
    assert len(heard.of("rows")) > 2
    for name, table in run.tables.items():
        assert pa.concat_tables([rows[name] for rows in heard.of("rows")]).equals(table)
    rows = run.rows("evaluation").to_pylist()
    assert [e[:3] for e in heard.of("evaluation")] == [
        tuple(r[k] for k in ("round", "time", "part")) for r in rows
    ]
    assert [e.scores["accuracy"] for e in heard.of("evaluation")] == [
        row["accuracy"] for row in rows
    ]
    assert heard.of("status")[-1].updates == 120
    events = [event for event, _ in heard.told]
    assert events.index("start") < events.index("status")
    assert events[-1] == "end"
    assert events.count("fault") == 0


def test_scores_of_two_classes_stand_with_their_evaluation():
    heard = Heard()
    spec = raydpzv.load(
        "breast_cancer_dpzv", ["budget.updates=6", "evaluate.every=6", "privacy.noise=seeded"]
    )
    run = raydpzv.run(spec, callbacks=[heard])
    areas = [row["roc_auc"] for row in run.rows("auc").to_pylist()]
    assert [e.scores["roc_auc"] for e in heard.of("evaluation")] == areas
    assert areas


@pytest.mark.parametrize("event", [event for event in EVENTS if event != "fault"])
def test_an_error_of_a_callback_is_warned_of_once_and_ends_that_callback_alone(small, event):
    failing, heard = Failing(event), Heard()
    said = rf"^Failing\.{event}: ArithmeticError: planted in two lines; the run continues"
    with pytest.warns(RuntimeWarning, match=said) as warned:
        run = raydpzv.run(small("record.flush=0.001"), callbacks=[failing, heard])
    once = [one for one in warned if one.category is RuntimeWarning]
    assert (len(once), failing.calls) == (1, 1)
    assert run.summary["digest"] == raydpzv.run(small()).summary["digest"]
    assert heard.of("end") == [run.summary]


def test_what_breaks_a_run_off_is_a_fault_and_the_end_is_told(small):
    heard = Heard()

    def interrupt(status):
        if status.updates == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raydpzv.run(small(), callbacks=[heard, StatusCallback(interrupt, interval=0.0)])
    assert [(fault.party, fault.kind) for fault in heard.of("fault")] == [
        ("run", "KeyboardInterrupt")
    ]
    assert [summary["status"] for summary in heard.of("end")] == ["stopped"]


def test_a_status_is_put_together_for_those_who_listen_and_are_due(monkeypatch):
    monkeypatch.setattr(
        time, "monotonic", lambda: 0.0
    )  # statuses come at the very moment they are due

    class Deaf(Callback):
        pass

    assert not Callbacks([]).due()
    assert not Callbacks([Deaf()]).due()
    heard = []
    watch = Callbacks([StatusCallback(heard.append, interval=math.inf)])
    watch.status(Status(stage="Ray to start"))
    assert watch.due()  # a stage is no status of the run
    watch.status(Status(updates=1))
    assert not watch.due()
    watch.status(Status(updates=2))
    watch.last_status(Status(updates=3))
    assert [status.updates for status in heard] == [0, 1, 3]


def test_what_is_no_callback_is_refused_before_anything_is_written(small, tmp_path):
    with pytest.raises(
        InputError, match=r"^callbacks: wanted objects of raydpzv\.Callback, got <built-in"
    ):
        raydpzv.run(small(), tmp_path / "run", callbacks=[len])
    assert not (tmp_path / "run").exists()
