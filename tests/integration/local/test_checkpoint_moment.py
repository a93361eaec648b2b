"""A checkpoint is of one moment: what a run does after it was taken, and before it is written,
leaves it as it was.
"""

import hashlib
from typing import Any

import pytest

import scenarios
from raydpzv.experiment.finalize import RowWriter
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.checkpoint_codec import packed
from raydpzv.records.store import digest
from raydpzv.registry import METHODS
from raydpzv.sim.pull import Queue
from tests.helpers.changed_settings import scenario
from tests.helpers.sound_runs import sound, table

OFTEN = ("record.checkpoint_updates=1", "record.flush=1000")
MESSY = (
    "clock.compute=0.3",
    "clock.compute_law=exponential",
    "clock.service=0.02",
    "network.latency=0.05",
    "budget.updates=24",
    "evaluate.every=12",
)
VERTICAL = [name for name, found in METHODS.items() if found.kind == "vertical"]
LOADS = {"clients wait": 10, "clients idle": 0.1}
"""Epochs of each client in the time of a round trip."""
PULLING = {
    "decomfl": ("method.asynchronous=true", "method.local_steps=1"),
    "uldp_zo": ("method.asynchronous=true", "method.weights=uniform"),
}
WALL = ("clock.kind=wall", "clock.compute=0.005", "clock.service=0.001", "network.latency=0.002")
WITHOUT_NOISE = ("privacy.mode=none",)
"""Of methods that keep no ledger, whose private runs take no checkpoint under the wall clock."""
RUNS = [
    *[(name, ()) for name in METHODS],
    *[(name, (*more, *pulling)) for name, pulling in PULLING.items() for more in ((), WALL)],
    *[(name, (*WALL, *(() if name == "dpzv" else WITHOUT_NOISE))) for name in VERTICAL],
    ("vafl", ("method.query_first=true", "privacy.mode=none")),
    ("vafl", ("method.synchrony=t-synchronous", "method.wait_for=3", "method.noise_on=gradient")),
    ("dpzv", ("method.batches=poisson", "method.server=zo")),
]
CASES = [
    *[(name, overrides, "clients wait") for name, overrides in RUNS],
    # who waits for a round is never idle; a wall clock hands out what the virtual one does
    *[
        (name, overrides, "clients idle")
        for name, overrides in RUNS
        if "clock.kind=wall" not in overrides and (name in VERTICAL or overrides)
    ],
    # horizontal roles ask an objective, which keeps nothing: one of each kind of upload
    *[(name, ("model.engine=torch",), "clients wait") for name in (*VERTICAL, "decomfl", "fedavg")],
]


class Kept:
    """Checkpoints and their rows as they were handed over, and the digest of each at that
    moment.
    """

    def __init__(self) -> None:
        self._found: list[tuple[Any, str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def hold(self, writer: RowWriter, rows: Any) -> None:
        """Take rows in place of a run's writer."""
        self._found.append((rows, self._digest(rows)))

    def write_checkpoint(self, writer: RowWriter, checkpoint: Checkpoint) -> int:
        """Take a checkpoint in place of a run's writer."""
        self._found.append((checkpoint, self._digest(checkpoint)))
        return 0

    def changed(self) -> int:
        """Return how many of them are not what they were."""
        return sum(self._digest(kept) != was for kept, was in self._found)

    @staticmethod
    def _digest(kept: Any) -> str:
        if not isinstance(kept, Checkpoint):
            return digest(kept)
        tree, arrays = packed([kept.state, kept.weights])
        return hashlib.sha256(repr(tree).encode() + arrays).hexdigest()


@pytest.fixture
def kept(monkeypatch):
    found = Kept()
    monkeypatch.setattr(RowWriter, "hold", lambda writer, rows: found.hold(writer, rows))
    monkeypatch.setattr(
        RowWriter, "write_checkpoint", lambda writer, one: found.write_checkpoint(writer, one)
    )
    return found


def run_small(name, overrides, load, tmp_path):
    rate = LOADS[load] / (0.02 if "clock.kind=wall" in overrides else 0.5)
    spec = scenario(METHODS[name].kind, name, (*MESSY, f"arrivals.rate={rate}", *overrides, *OFTEN))
    assert scenarios.run(spec, tmp_path / "run").summary["status"] == "done"


@pytest.mark.parametrize(
    ("name", "overrides", "load"),
    CASES,
    ids=["-".join((name, *more, load)) for name, more, load in CASES],
)
def test_what_a_run_does_later_leaves_a_taken_checkpoint_as_it_was(
    tmp_path, kept, name, overrides, load
):
    run_small(name, overrides, load, tmp_path)
    assert len(kept) > 4
    assert kept.changed() == 0


def test_sums_that_wait_for_their_release_are_of_the_checkpoints_moment(tmp_path, kept):
    waiting = ("method.gather=4", "method.average=0.8", "method.server=joint", "budget.epsilon=1e6")
    spec = sound(table(tmp_path / "table.csv"), *waiting, *OFTEN)
    assert scenarios.run(spec, tmp_path / "run").summary["status"] == "done"
    assert len(kept) > 4
    assert kept.changed() == 0


def test_a_role_that_hands_out_a_live_list_is_found(tmp_path, kept, monkeypatch):
    """The control."""
    monkeypatch.setattr(Queue, "waiting", lambda queue: sorted(queue._waiting.items()))
    run_small("decomfl", PULLING["decomfl"], "clients wait", tmp_path)
    assert kept.changed() > 0
