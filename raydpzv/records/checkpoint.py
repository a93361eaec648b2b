"""Where a run can go on: its state at a moment, and the rows up to it.

The ledger holds the updates, the key the rest; so a checkpoint of rounds is a few numbers (and the weights, where a
method sends weights). One of a run without rounds holds the messages under way, too, and what its roles keep. It is
written after its rows, in one piece, beside the one before it, which is taken if it is damaged. Rows beyond it are
dropped when the run goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from raydpzv.errors import DataError
from raydpzv.files import write_atomically
from raydpzv.records.recorder import Recorder
from raydpzv.records.state_tree import packed, unpacked
from raydpzv.records.store import Rows

_FAULTS = (
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    IndexError,
    OSError,
    EOFError,
    RuntimeError,
    SyntaxError,
)
"""What zip and npy readers raise for bytes that are not theirs, beside BadZipFile."""


@dataclass(frozen=True)
class Checkpoint:
    """After how many updates; the run's state, see `raydpzv.records.state_tree`; the weights, float32 [d], or None."""

    round: int
    state: Mapping[str, Any]
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Written:
    """A checkpoint as it was found, and the rows that it stands for: how many parts and rows of each type.

    Those of before rows were counted have no number of rows.
    """

    checkpoint: Checkpoint
    parts: Mapping[str, int]
    rows: Mapping[str, int] = field(default_factory=dict)


Piece = tuple[Rows, Checkpoint | None]
"""Rows, and where the run can go on after them."""


class Cut:
    """Says when a checkpoint is due. every: seconds between two of them."""

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


def write_checkpoint(
    path: Path, checkpoint: Checkpoint, parts: Mapping[str, int], rows: Mapping[str, int]
) -> int:
    """Write a checkpoint that counts the parts and rows it stands for; return its size. The one before it is kept."""
    state, data = packed(checkpoint.state)
    facts = {"round": checkpoint.round, "state": state, "parts": dict(parts), "rows": dict(rows)}
    arrays = {"data": np.frombuffer(data, np.uint8)}
    if checkpoint.weights is not None:
        arrays["weights"] = checkpoint.weights
    facts |= {"weighted": checkpoint.weights is not None, "sha256": _sha256(facts, data, checkpoint.weights)}
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    if path.is_file():
        os.replace(path, before(path))
    write_atomically(path, buffer.getvalue(), mode=0o600)
    return buffer.tell()


def before(path: Path) -> Path:
    """Return where the checkpoint before the last one is."""
    return path.with_name(f"{path.stem}.before{path.suffix}")


def read_checkpoint(path: Path, *, only_last: bool = False) -> Written | None:
    """Return the last checkpoint that can be read, or None if there is none.

    Raises DataError if all are damaged, with `only_last` also if the last one is.
    """
    found, damage = None, None
    for place in (path, before(path)):
        if place.is_file() and not (damage and only_last):
            try:
                found = _read(place)
                break
            except DataError as error:
                damage = damage or error
    if found is None and damage is not None:
        raise damage
    return found


def _read(path: Path) -> Written:
    try:
        with np.load(path) as stored:
            facts = json.loads(stored["facts"].tobytes())
            data = stored["data"].tobytes() if "data" in stored.files else b""
            weights = stored["weights"] if facts["weighted"] else None
        signed = {name: facts[name] for name in ("round", "state", "parts", "rows") if name in facts}
        if facts["sha256"] != _sha256(signed, data, weights):
            raise ValueError("its sha256 does not fit its content")
        state = unpacked(facts["state"], data)
        parts, rows = (
            {str(name): int(count) for name, count in facts.get(kind, {}).items()}
            for kind in ("parts", "rows")
        )
        return Written(Checkpoint(facts["round"], state, weights), parts, rows)
    except (*_FAULTS, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:150]
        raise DataError(f"{path}: cannot be read ({reason}); the run cannot go on, start a new one") from None


def _sha256(facts: Mapping[str, Any], data: bytes, weights: np.ndarray | None) -> str:
    """The digest of the facts in their order, which is that of before rows were counted, and of the arrays."""
    held = b"" if weights is None else weights.tobytes()
    return hashlib.sha256(json.dumps(list(facts.values()), sort_keys=True).encode() + held + data).hexdigest()
