import time
from pathlib import Path

import pytest

import scenarios
from raydpzv.experiment.finalize import RowWriter, fresh_noise
from raydpzv.experiment.prepare import prepare
from raydpzv.records import store
from raydpzv.records.callbacks import Callback, Callbacks
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import Rows
from tests.helpers.numbered_rows import after, beside, evaluations, fault, faults, numbers


@pytest.mark.parametrize(
    ("name", "changes", "fresh"),
    [
        ("digits_dpzv", [], True),
        ("digits_dpzv", ["clock.kind=wall", "arrivals.rate=100"], True),
        ("digits_dpzv", ["privacy.noise=seeded"], False),
        ("digits_dpzv", ["privacy.mode=none"], False),
        (
            "digits_private",
            ["privacy.head_clip=1.0", 'method.server="dp_sgd"'],
            False,
        ),  # it never resumes
    ],
)
def test_noise_of_the_system_is_fresh(name, changes, fresh):
    delta = ["privacy.delta=1e-4"] if name == "digits_dpzv" else []
    assert (
        fresh_noise(prepare(scenarios.load(name, ["data.train_rows=200", *delta, *changes])))
        is fresh
    )


@pytest.mark.parametrize("name", ["frozen", "digits_decomfl"])
def test_a_summary_reads_no_rows_back_that_the_run_has_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spec = scenarios.load(name, ["budget.updates=12", "record.checkpoint_updates=5"])
    read: list[Path] = []
    with monkeypatch.context() as patch:
        whole = store._read
        patch.setattr(store, "_read", lambda part, *given: read.append(part) or whole(part, *given))
        run = scenarios.run(spec, tmp_path / "run")
    assert read == []
    rows = RunFolder.open(tmp_path / "run").rows()
    assert rows["service"].num_rows >= 12
    assert run.tables.keys() == rows.keys() == SCHEMAS.keys()
    assert store.digest(run.tables, SCHEMAS) == store.digest(rows, SCHEMAS)


# Where rows go and who hears of them: each once, whatever is dropped and made again.


class Listening(Callback):
    """Keeps what it is told, by row type."""

    def __init__(self) -> None:
        self.told: dict[str, list[int]] = {"fault": [], "evaluation": []}

    def rows(self, rows: Rows) -> None:
        """Keep which rows these are."""
        for name, found in self.told.items():
            found += numbers(rows[name])


def recorded(writer: RowWriter, name: str) -> list[int]:
    return numbers(writer.all()[name])


@pytest.mark.parametrize("written", [False, True])
def test_rows_are_kept_and_told_in_their_order(folder: RunWriter, *, written: bool) -> None:
    watch = Listening()
    writer = RowWriter(folder if written else None, 1.0, Callbacks([watch]))
    writer.add(evaluations(0, 1))
    writer.hold(evaluations(2))
    size = writer.write_checkpoint(after(1))
    assert bool(size) == written
    writer.hold(beside(evaluations(3), faults(0)))
    writer.add(evaluations(4))
    assert recorded(writer, "evaluation") == watch.told["evaluation"] == [0, 1, 2, 3, 4]
    assert recorded(writer, "fault") == watch.told["fault"] == [0]
    assert all(
        table.num_rows == 0 for name, table in writer.all().items() if name not in watch.told
    )


def test_rows_that_are_made_again_are_told_once(folder: RunWriter) -> None:
    """Also where they come in other pieces, of which a part is known."""
    watch = Listening()
    writer = RowWriter(folder, 1.0, Callbacks([watch]))
    writer.add(evaluations(0))
    writer.hold(evaluations(1))
    writer.write_checkpoint(after(1))
    writer.add(evaluations(2, 3))
    for number in (0, 1):
        writer.go_back(fault(number))
        assert recorded(writer, "evaluation") == [0, 1]
        assert recorded(writer, "fault") == watch.told["fault"] == list(range(number + 1))
    writer.add(evaluations(2))
    writer.hold(evaluations(3, 4))
    writer.write_checkpoint(after(2))
    writer.add(evaluations(5))
    assert recorded(writer, "evaluation") == watch.told["evaluation"] == [0, 1, 2, 3, 4, 5]
    writer.go_back(fault(2))
    assert recorded(writer, "evaluation") == [0, 1, 2, 3, 4]
    assert recorded(writer, "fault") == watch.told["fault"] == [0, 1, 2]


def test_of_a_new_segment_all_is_told_but_what_the_segment_before_it_has_told_of_faults(
    folder: RunWriter,
) -> None:
    watch = Listening()
    writer = RowWriter(folder, 1.0, Callbacks([watch]))
    writer.add(beside(evaluations(0), faults(0)))
    writer.write_checkpoint(after(1))
    writer.add(beside(evaluations(1, 2), faults(1)))
    writer.go_back(fault(2), again=False)
    assert watch.told["fault"] == recorded(writer, "fault") == [0, 1, 2]
    writer.add(evaluations(1, 3))
    assert recorded(writer, "evaluation") == [0, 1, 3]
    assert watch.told["evaluation"] == [0, 1, 2, 1, 3]
    writer.write_checkpoint(after(2))
    writer.go_back(fault(3), again=False)
    writer.add(evaluations(4))
    assert watch.told["evaluation"] == [0, 1, 2, 1, 3, 4]
    assert watch.told["fault"] == recorded(writer, "fault") == [0, 1, 2, 3]


def test_who_watches_a_run_that_continues_is_not_told_what_was_before(folder: RunWriter) -> None:
    RowWriter(folder, 1.0, Callbacks()).add(evaluations(0, 1))
    watch = Listening()
    writer = RowWriter(folder, 1.0, Callbacks([watch]))
    writer.add(evaluations(2))
    assert watch.told["evaluation"] == [2]
    assert recorded(writer, "evaluation") == [0, 1, 2]


def test_rows_are_due_a_while_after_the_last(
    folder: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    writer = RowWriter(folder, 5.0, Callbacks())
    assert not writer.due()
    now = 105.0
    assert writer.due()
    writer.hold(evaluations(0))
    assert writer.due(), "what a checkpoint holds is no part yet"
    writer.add(evaluations(1))
    assert not writer.due()
    now = 109.0
    assert not writer.due()


def test_what_checkpoints_cost_is_said_with_what_it_took_to_take_them(
    folder: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, write = 0.0, RunWriter.write_checkpoint

    def slowly(self: RunWriter, checkpoint: Checkpoint) -> int:
        nonlocal now
        now += 0.25
        return write(self, checkpoint)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(RunWriter, "write_checkpoint", slowly)
    writer = RowWriter(folder, 5.0, Callbacks())
    sizes = [
        writer.write_checkpoint(Checkpoint(1, {"some": [0] * number}, None)) for number in (1, 100)
    ]
    assert 0 < sizes[0] < sizes[1]
    assert writer.checkpoint_seconds == 0.5
    said = writer.with_writing({"count": 2, "seconds": 1.0, "bytes": 0})
    assert said == {"count": 2, "seconds": 1.5, "bytes": sizes[1]}
