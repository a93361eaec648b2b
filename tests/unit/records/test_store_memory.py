"""What writing rows takes of memory goes back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from raydpzv.records.recorder import Recorder
from raydpzv.records.store import append_rows


def test_each_write_gives_back_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = 0

    class Pool:
        def release_unused(self) -> None:
            nonlocal given
            given += 1

    recorder, extents = Recorder(), {}
    recorder.emit("fault", time=0.0, party="run", kind="Lost", message="")
    rows = recorder.drain()
    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    append_rows(tmp_path, rows, extents=extents)
    append_rows(tmp_path, rows, extents=extents)
    assert given == 2
    assert extents["fault"].rows == 2
