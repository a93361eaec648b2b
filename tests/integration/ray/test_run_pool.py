import threading

import pytest
import ray

from actors import run_pool as module
from actors.machines import Machine
from actors.run_pool import RunSlot, pack, side_by_side, slots, unpack
from actors.shares import Share
from raydpzv.compare.results import collect
from raydpzv.compare.run_comparison import RUNS_FOLDER, one_by_one, opened, unfinished
from raydpzv.errors import Unplaceable
from tests.helpers.gate import Gate, StopWaiting
from tests.helpers.small_comparisons import small_comparison, timeless

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def make(comparison, root, ended, stop=None, progress=lambda standing: None):
    with opened(root, comparison):
        side_by_side(
            unfinished(root, comparison),
            root,
            progress=progress,
            ended=ended,
            stop=stop or threading.Event(),
        )


def held_slot(gate):
    """A place for runs that wait at a gate."""

    class Held(RunSlot):
        def run_planned(self, *given):
            gate.hold_runs()
            return super().run_planned(*given)

    return Held


def test_a_stop_ends_the_runs_at_work_and_the_rest_is_made_later(tmp_path, monkeypatch):
    comparison, over, root = small_comparison(seeds=(0,)), [], tmp_path / "ray"
    look = StopWaiting(Gate(tmp_path / "gate", at=30), runs=2)
    monkeypatch.setattr(module, "RunSlot", held_slot(look.gate))
    make(comparison, root, lambda planned, why: over.append(planned.folder), look.stop, look)
    assert len(over) == 2
    stopped = [
        row for row in collect(comparison, root).runs.to_pylist() if row["status"] == "stopped"
    ]
    assert len(stopped) == len(over)
    assert all(30 <= row["updates"] < 60 for row in stopped)
    assert len(unfinished(root, comparison)) == len(list(comparison.runs()))


def test_side_by_side_has_the_rows_of_one_after_the_other_with_a_process_lost(
    tmp_path, monkeypatch
):
    """It costs its run alone, and a second call makes that run."""
    gate, comparison = Gate(tmp_path / "gate", at=20), small_comparison(seeds=(0,), epsilons=(1.0,))
    reasons, killed, made, at_work = {}, [], [], []
    folder, local = tmp_path / "ray", tmp_path / "local"

    class Watched(module._Slots):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    def kill_one(standing):
        at_work.append(len(standing))
        if not killed and gate.waiting() == 2:
            slot, planned = next(iter(made[0]._busy.values()))
            killed.append(planned.folder)
            ray.kill(made[0]._actors[slot])

    def ended(planned, why):
        reasons[planned.folder] = why
        if planned.folder in killed:
            gate.file.touch()  # a process that Ray kills works on for a moment

    monkeypatch.setattr(module, "_Slots", Watched)
    monkeypatch.setattr(module, "RunSlot", held_slot(gate))
    make(comparison, folder, ended, progress=kill_one)
    assert max(at_work) == 2
    assert len(reasons) == 4
    assert [name for name, why in reasons.items() if why] == killed
    assert "lost" in reasons[killed[0]]
    rows = collect(comparison, folder, reasons).runs.to_pylist()
    assert [row["run"] for row in rows if row["outcome"] == "failed"] == killed
    assert [planned.folder for planned in unfinished(folder, comparison)] == killed
    make(comparison, folder, ended)
    assert unfinished(folder, comparison) == []
    assert set(reasons.values()) == {""}
    with opened(local, comparison):
        todo = unfinished(local, comparison)
        one_by_one(
            todo, local, progress=lambda s: None, ended=lambda p, w: None, stop=threading.Event()
        )
    one, other = collect(comparison, folder), collect(comparison, local)
    assert timeless(one.runs) == timeless(other.runs)
    assert one.curves.equals(other.curves)
    assert str(one.claims.to_pylist()) == str(other.claims.to_pylist())


def test_a_folder_travels_whole(tmp_path):
    comparison = small_comparison(seeds=(0,), methods=())
    with opened(tmp_path, comparison):
        planned = unfinished(tmp_path, comparison)[:1]
        one_by_one(
            planned,
            tmp_path,
            progress=lambda s: None,
            ended=lambda p, w: None,
            stop=threading.Event(),
        )
    folder = tmp_path / RUNS_FOLDER / planned[0].folder
    before = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    packed = pack(folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "stale").write_text("from before")
    unpack(packed, folder)
    after = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert after == {path: data for path, data in before.items() if path.name != ".lock"}


@pytest.mark.parametrize(
    ("todo", "jobs", "gpus", "there", "count"),
    [
        (10, None, 0.0, [{"CPU": 4.0}], 4),
        (3, None, 0.0, [{"CPU": 4.0}], 3),
        (10, 2, 0.0, [{"CPU": 4.0}], 2),
        (10, None, 0.3, [{"CPU": 16.0, "GPU": 2.0}], 6),
        (10, 99, 1.0, [{"CPU": 16.0, "GPU": 2.0}], 2),
        (10, None, 2.0, [{"CPU": 16.0, "GPU": 5.0}], 2),
        (10, None, 0.5, [{"CPU": 1.0, "GPU": 1.0}, {"CPU": 16.0}, {"GPU": 4.0}], 1),
    ],
)
def test_slots_are_as_many_as_cores_and_gpu_shares_of_machines(todo, jobs, gpus, there, count):
    assert slots(todo, jobs, Share(1.0, gpus), [Machine(has) for has in there]) == count


def test_runs_that_fit_nowhere_are_refused_with_the_arithmetic():
    with pytest.raises(
        Unplaceable, match=r"asks 1 CPU and 0.5 GPU on one .* have 8 CPU and 0 GPU;"
    ):
        slots(3, None, Share(1.0, 0.5), [Machine({"CPU": 8.0})])
