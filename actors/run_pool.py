"""Runs side by side: each whole in one actor, as many at a time as there are cores (and GPU shares) for."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.actor_reuse import end, start
from actors.cluster import connected
from actors.device import claim_device
from actors.driver import LOOK, translated
from actors.placement import whole_run_gpus
from actors.remote import get, lost
from actors.reservation import reserved
from actors.shares import Plan, Share, device_slots
from raydpzv.compare.plan import Planned
from raydpzv.compare.run_comparison import RUNS_FOLDER, run_planned
from raydpzv.errors import Unplaceable
from raydpzv.experiment.finalize import RunOptions
from raydpzv.records.callbacks import StatusCallback
from raydpzv.records.secrets_file import read_key
from raydpzv.sim.interfaces import Status

_TIMEOUT = 120.0
"""Seconds for an actor to come up, or to answer a control call."""


class RunSlot:
    """Makes one run after the other in its own process. Plain class; `side_by_side` wraps it."""

    CONTROL = ("status", "stop")

    def __init__(self, workplace: str, gpus: float) -> None:
        self._device = claim_device(gpus)
        if os.path.isdir(workplace):
            os.chdir(workplace)  # where the paths of a scenario's files begin
        self._status, self._stop = Status(), threading.Event()

    def run_planned(self, planned: Planned, folder: str, home: str, key: bytes) -> tuple[str, bytes]:
        """Make one run; return why there is no result, and its folder, packed, if this is not the machine `home`."""
        import ray

        self._status = Status()
        options = RunOptions(stop=self._stop, data_key=key, callbacks=[StatusCallback(self._keep)])
        reason = run_planned(planned, Path(folder), options)
        if ray.get_runtime_context().get_node_id() == home or not Path(folder).is_dir():
            return reason, b""
        return reason, pack(Path(folder))

    def status(self) -> Status:
        """Return where the run in progress stands."""
        return self._status

    def stop(self) -> None:
        """End the run in progress, cleanly."""
        self._stop.set()

    def _keep(self, status: Status) -> None:
        self._status = status


def side_by_side(
    todo: Iterable[Planned],
    root: Path,
    *,
    progress: Callable[[Mapping[str, Status]], None],
    ended: Callable[[Planned, str], None],
    stop: threading.Event,
    jobs: int | None = None,
    address: str | None = None,
    verbose: bool = False,
) -> None:
    """Make runs on Ray, until all are over or `stop` is set; as `raydpzv.compare.run_comparison.one_by_one`.

    jobs: most runs at a time (None: as many as fit); address, verbose: as in `actors.cluster.connected`. A run whose
    process dies has no result; the others go on. Raises Unplaceable if not even one run fits.
    """
    queue = list(todo)
    if not queue:
        return
    with connected(address, verbose=verbose):
        import ray

        there = ray.cluster_resources()
        gpus = max(whole_run_gpus(planned.spec, there) for planned in queue)
        count = slots(len(queue), jobs, gpus, there)
        each = Share(1.0, gpus)
        plan = Plan(each, (each,) * (count - 1), (), member="run", fewer="--jobs")
        with reserved(plan, RunOptions()) as place:
            _Slots(queue, root, place.group, each, count, progress, ended, stop).run()


class _Slots:
    """The actors, what each is at, and what is still to do."""

    def __init__(
        self,
        queue: Sequence[Planned],
        root: Path,
        group: Any,
        each: Share,
        count: int,
        progress: Callable[[Mapping[str, Status]], None],
        ended: Callable[[Planned, str], None],
        stop: threading.Event,
    ) -> None:
        import ray

        self._queue, self._root = list(queue), root.absolute()
        self._key = read_key(root)
        self._group, self._each = group, each
        self._progress, self._ended, self._stop = progress, ended, stop
        self._home = ray.get_runtime_context().get_node_id()
        self._free = list(range(count))
        self._actors: dict[int, Any] = {}
        self._busy: dict[Any, _Work] = {}
        self._told = False

    def run(self) -> None:
        """Hand out the work until there is none, or the user wants no more."""
        import ray

        well = False
        try:
            while self._queue or self._busy:
                if self._stop.is_set():
                    self._tell()
                while self._queue and self._free:
                    self._begin(self._free.pop(0), self._queue.pop(0))
                if self._busy:
                    for reference in ray.wait(list(self._busy), timeout=LOOK)[0]:
                        self._finish(reference)
                self._poll()
            well = True
        finally:
            end(list(self._actors.values()), well=well)

    def _begin(self, slot: int, planned: Planned) -> None:
        if slot not in self._actors:
            self._actors[slot], _ = start(
                *(RunSlot, {"ctl": RunSlot.CONTROL}, {"ctl": 1}),
                *(self._each.bundle(), self._group, slot),
                *(os.getcwd(), self._each.gpus),
            )
        folder = self._root / RUNS_FOLDER / planned.folder
        reference = self._actors[slot].run_planned.remote(planned, str(folder), self._home, self._key)
        self._busy[reference] = _Work(slot, planned, folder)

    def _finish(self, reference: Any) -> None:
        import ray

        work = self._busy.pop(reference)
        self._free.append(work.slot)
        try:
            reason, packed = ray.get(reference)
        except Exception as error:
            if lost(error):
                ray.kill(self._actors.pop(work.slot))
            reason, packed = str(translated(error)), b""
        if packed:
            unpack(packed, work.folder)
        self._ended(work.planned, reason)

    def _tell(self) -> None:
        self._queue = []
        if not self._told:
            self._told = True
            for work in self._busy.values():
                self._actors[work.slot].stop.remote()

    def _poll(self) -> None:
        found = {}
        for work in self._busy.values():
            try:
                status = get(
                    self._actors[work.slot].status.remote(), _TIMEOUT, f"the run {work.planned.folder}"
                )
            except Exception as error:
                if not lost(error):
                    raise
                continue  # its work ends with the same error, and is taken up there
            found[work.planned.folder] = status
        self._progress(found)


@dataclass(frozen=True)
class _Work:
    slot: int
    planned: Planned
    folder: Path


def slots(todo: int, jobs: int | None, gpus: float, there: Mapping[str, float]) -> int:
    """Return how many runs are made at a time: one per core, and per GPU share if the runs have one."""
    fits = int(there.get("CPU", 0.0))
    if gpus:
        fits = min(fits, device_slots(there.get("GPU", 0.0), gpus))
    if fits < 1:
        raise Unplaceable(
            f"resources: a run of the comparison asks 1 CPU and {gpus:g} GPU, the cluster has "
            f"{there.get('CPU', 0.0):g} and {there.get('GPU', 0.0):g}; lower the GPU shares in [resources]"
        )
    return max(1, min(todo, fits, jobs or fits))


def pack(folder: Path) -> bytes:
    """Return a run's folder as one archive, and remove it here."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, arcname=".", filter=lambda entry: None if entry.name.endswith(".lock") else entry)
    shutil.rmtree(folder)
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Put a packed folder in the place of what is there."""
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
