"""Checkpoints that are changed by hand until they contradict their run's ledger, and what the run
says of them.
"""

from pathlib import Path
from typing import Any

from raydpzv.experiment import resuming
from raydpzv.records.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.virtual import Arrival


def forget_waiting(state: dict[str, Any]) -> dict[str, Any]:
    """The epochs that waited were served before the checkpoint was written: a list that was not
    copied.
    """
    assert any(epochs for _, epochs in state["waiting"])
    return state | {"waiting": [[client, []] for client, _ in state["waiting"]]}


def serve_backwards(state: dict[str, Any]) -> dict[str, Any]:
    """Uploads on their way arrive in another order than they did."""
    times = [time for time, event in state["events"] if isinstance(event, Arrival)][::-1]
    return state | {
        "events": [
            (times.pop(0) if isinstance(e, Arrival) else time, e) for time, e in state["events"]
        ]
    }


def late(state: dict[str, Any]) -> dict[str, Any]:
    """The last of the uploads on their way arrives much later than it did."""
    last = max(time for time, event in state["events"] if isinstance(event, Arrival))
    return state | {
        "events": [(time + 100 * (time == last), event) for time, event in state["events"]]
    }


def change(path: Path, how: Any) -> None:
    """Write a checkpoint anew with another state."""
    found = read_checkpoint(path, RunFolder(path.parent).identity, only_last=True)
    kept = found.checkpoint
    twin = path.with_name("twin.state")
    changed = Checkpoint(kept.round, how(dict(kept.state)), kept.weights)
    write_checkpoint(twin, changed, found.extents, found.log, found.run)
    twin.replace(path)


def contradictions(run: Any) -> list[str]:
    return [
        row["message"]
        for row in run.rows("fault").to_pylist()
        if row["kind"] == resuming.CONTRADICTION
    ]
