"""What a killed horizontal run continues from: the newest model beside its ledger, so that little
is replayed.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from raydpzv.errors import DataError
from raydpzv.experiment import model_evaluator
from raydpzv.experiment.finalize import Run
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.replica import Replica
from raydpzv.methods.roles import Metrics
from tests.helpers.ledger_samples import HEADER, fill
from tests.helpers.small_horizontal import OFTEN, resume, same, small

KINDS = ("decomfl", "secret", "per_client", "add_back", "asynchronous")
LAST = 20
"""Updates after which the copies are made: the one before is a round behind, as the checkpoint may
be.
"""


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_evaluator, "_FIRST_RESUMED", 4)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From which version on replicas are brought further."""
    seen: list[int] = []
    follow = Replica.follow

    def noted(self: Replica, updates: Any, tail: Any = None) -> None:
        seen.append(updates.first)
        follow(self, updates, tail)

    monkeypatch.setattr(Replica, "follow", noted)
    return seen


def killed(folder: Path, copy: Path, kind: str) -> Run:
    """Run to the end; return it, and in `copy` what a kill at `LAST` updates would have left."""

    def look(status: Any) -> None:
        if status.updates >= LAST and not copy.exists():
            shutil.copytree(folder, copy)

    return scenarios.run(small(kind, OFTEN), folder, progress=look)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_continues_from_the_newest_model_to_the_same_bits(
    tmp_path: Path, kind: str, replayed: list[int]
) -> None:
    whole = killed(tmp_path / "run", tmp_path / "copy", kind)
    kept = sorted((tmp_path / "copy" / "ledger" / "snapshots" / model_evaluator.RESUMED).iterdir())
    assert len(kept) == 2
    replayed.clear()
    same(resume(tmp_path / "copy"), whole)
    # others have models of clients' own, which begin at the start
    if kind in ("decomfl", "secret", "asynchronous"):
        assert min(replayed) >= int(kept[0].stem) > 0
    for folder in ("run", "copy"):
        assert not (tmp_path / folder / "ledger" / "snapshots" / model_evaluator.RESUMED).exists()


def test_without_such_a_model_all_is_replayed_to_the_same_bits(
    tmp_path: Path, replayed: list[int]
) -> None:
    whole = killed(tmp_path / "run", tmp_path / "copy", "decomfl")
    shutil.rmtree(tmp_path / "copy" / "ledger" / "snapshots")
    replayed.clear()
    same(resume(tmp_path / "copy"), whole)
    assert min(replayed) == 0


def test_another_model_in_its_place_would_be_noticed(tmp_path: Path) -> None:
    """The control: the model is used, so that another one leads elsewhere."""
    whole = killed(tmp_path / "run", tmp_path / "copy", "decomfl")
    with Ledger.open(tmp_path / "copy" / "ledger", write=True) as ledger:
        found = ledger.load_snapshot(model_evaluator.RESUMED, LAST)
        ledger.save_snapshot(model_evaluator.RESUMED, found[0], {"state": found[1]["state"] + 1})
    assert resume(tmp_path / "copy").summary["model_digest"] != whole.summary["model_digest"]


def test_a_damaged_one_is_named_before_a_row_is_dropped(tmp_path: Path) -> None:
    killed(tmp_path / "run", tmp_path / "copy", "decomfl")
    path = max((tmp_path / "copy" / "ledger" / "snapshots" / model_evaluator.RESUMED).iterdir())
    data = path.read_bytes()
    path.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
    before = {
        p: p.read_bytes()
        for p in (tmp_path / "copy").rglob("*")
        if p.is_file() and p.name != ".lock"
    }
    with pytest.raises(DataError, match=f"{path.name}: is damaged.*delete it"):
        resume(tmp_path / "copy")
    assert all(p.read_bytes() == data for p, data in before.items())
    path.unlink()
    resume(tmp_path / "copy")


class Scored:
    """A model whose state is its version."""

    def evaluate(self, version: int) -> Metrics:
        raise AssertionError("nobody scores it")

    def state(self, version: int) -> np.ndarray:
        return np.full((1, 3), version, np.float32)


def test_the_last_two_are_kept_each_a_quarter_later(tmp_path: Path) -> None:
    ledger = fill(Ledger.create(tmp_path / "ledger", HEADER), 30)
    point, seen = model_evaluator.ResumePoint(ledger, Scored()), []
    for version in range(1, 31):
        point.look(version)
        seen.append({version for version in range(31) if _at(ledger, version)})
    assert seen[2] == set()
    assert seen[3] == {4}
    times = {4: 1, 5: 2, 7: 2, 9: 3, 12: 3, 15: 4, 19: 5, 24: 6, 30: 1}
    assert [max(kept) for kept in seen[3:]] == [
        version for version in times for _ in range(times[version])
    ]
    assert all(len(kept) <= 2 for kept in seen)
    assert seen[-1] == {24, 30}
    ledger.close()


def _at(ledger: Ledger, version: int) -> bool:
    found = ledger.load_snapshot(model_evaluator.RESUMED, version)
    return found is not None and found[0] == version


@pytest.mark.parametrize("folder", [None, "ledger"])
def test_snapshots_of_a_name_are_forgotten_up_to_a_version(
    tmp_path: Path, folder: str | None
) -> None:
    ledger = fill(Ledger.create(tmp_path / folder if folder else None, HEADER), 30)
    for name in ("a", "b"):
        for version in (5, 10, 20):
            ledger.save_snapshot(name, version, {"x": np.zeros(1)})
    ledger.forget_snapshots("a", 10)
    assert ledger.load_snapshot("a", 9) is None
    assert (found := ledger.load_snapshot("a", 19)) is not None
    assert found[0] == 10
    assert ledger.load_snapshot("b", 9) is not None
    ledger.forget_snapshots("a", 31)
    assert ledger.load_snapshot("a", 30) is None
    ledger.close()
