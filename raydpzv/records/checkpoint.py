"""Where a run of rounds can go on: the counts and clocks after a round, and the rows up to it.

The ledger holds the updates, the key the rest; so a checkpoint is a few numbers (and the weights, where a method sends
weights). It is written after its rows, in one piece; rows beyond it are dropped when the run goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raydpzv.errors import DataError
from raydpzv.files import write_atomically
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows

_FAULTS = (ValueError, TypeError, AttributeError, KeyError, OSError, EOFError, RuntimeError, SyntaxError)
"""What zip and npy readers raise for bytes that are not theirs, beside BadZipFile."""


@dataclass(frozen=True)
class Checkpoint:
    """After which round; the run's state (see `VirtualRun.state`); the weights, float32 [d], or None."""

    round: int
    state: Mapping[str, Any]
    weights: np.ndarray | None = None


class Cut:
    """Takes checkpoints between rounds, at most every so many seconds."""

    def __init__(self, recorder: Recorder, every: float) -> None:
        self._recorder, self._every = recorder, every
        self._last = time.monotonic()

    def due(self) -> bool:
        """Tell whether a checkpoint should be taken by now."""
        return time.monotonic() - self._last >= self._every

    def rows(self) -> Rows:
        """Return the rows since the last checkpoint."""
        self._last = time.monotonic()
        return self._recorder.drain()


def write_checkpoint(path: Path, checkpoint: Checkpoint, parts: Mapping[str, int]) -> None:
    """Write a checkpoint that counts the parts of rows it stands for."""
    facts = {"round": checkpoint.round, "state": dict(checkpoint.state), "parts": dict(parts)}
    facts |= {"weighted": checkpoint.weights is not None, "sha256": _sha256(checkpoint, parts)}
    arrays = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
    if checkpoint.weights is not None:
        arrays["weights"] = checkpoint.weights
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def read_checkpoint(path: Path) -> tuple[Checkpoint, dict[str, int]] | None:
    """Return a checkpoint and its counts of parts, or None if there is no such file. Raises DataError."""
    if not path.is_file():
        return None
    try:
        with np.load(path) as stored:
            facts = json.loads(stored["facts"].tobytes())
            weights = stored["weights"] if facts["weighted"] else None
        found = Checkpoint(facts["round"], facts["state"], weights)
        parts = {str(name): int(count) for name, count in facts["parts"].items()}
        if facts["sha256"] != _sha256(found, parts):
            raise ValueError("its sha256 does not fit its content")
        return found, parts
    except (*_FAULTS, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:150]
        raise DataError(f"{path}: cannot be read ({reason}); the run cannot go on, start a new one") from None


def _sha256(checkpoint: Checkpoint, parts: Mapping[str, int]) -> str:
    facts = [checkpoint.round, dict(checkpoint.state), dict(parts)]
    weights = b"" if checkpoint.weights is None else checkpoint.weights.tobytes()
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + weights).hexdigest()
