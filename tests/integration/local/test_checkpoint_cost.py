"""What counts as the cost of a checkpoint: what is done for it alone, so that it is taken as often
as that allows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scenarios
from raydpzv.records import checkpoint_policy as checkpoint_pace
from raydpzv.records.recorder import Recorder
from raydpzv.records.run_writer import RunWriter

RUNS = {
    "vertical": ("vafl_digits", ("budget.updates=20",)),
    "horizontal": ("digits_decomfl", ("budget.updates=6", "split.clients=12", "method.cohort=3")),
}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize(
    ("owner", "name", "counts"),
    [(Recorder, "drain", False), (RunWriter, "hold", False), (RunWriter, "write_checkpoint", True)],
)
def test_rows_that_are_written_without_checkpoints_too_are_no_cost_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, owner: type, name: str, counts: bool
) -> None:
    clock = 0.0
    monkeypatch.setattr(checkpoint_pace, "own_seconds", lambda: clock)
    plain: Callable[..., Any] = getattr(owner, name)

    def slow(*args: Any, **options: Any) -> Any:
        nonlocal clock
        clock += 100.0
        return plain(*args, **options)

    monkeypatch.setattr(owner, name, slow)
    scenario, changes = RUNS[kind]
    spec = scenarios.load(scenario, [*changes, "record.checkpoint_updates=2"])
    taken = scenarios.run(spec, tmp_path / "run").summary["checkpoints"]
    assert taken["count"] > 1
    assert taken["seconds"] == (100.0 * taken["count"] if counts else 0.0)
