"""Runs side by side: each whole in one actor, as many at a time as the cores and GPU shares
allow.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.actor_process import end, start
from actors.cluster import connected
from actors.device import claim_device
from actors.driver import LOOK, translated
from actors.machines import Machine, cluster_machines
from actors.own_objects import check_travel, put_data, take_data
from actors.packing import Room
from actors.placement import whole_run_gpus
from actors.placement_errors import listed
from actors.remote import get, lost
from actors.reservation import reserved
from actors.shares import Plan, Share
from raydpzv.compare.plan import Planned
from raydpzv.compare.run_comparison import RUNS_FOLDER, PoolOptions, run_planned
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import Unplaceable
from raydpzv.experiment.finalize import RunOptions
from raydpzv.records.callbacks import StatusCallback
from raydpzv.records.secrets_file import read_key
from raydpzv.sim.interfaces import Status

_TIMEOUT = 120.0
"""Seconds for an actor to come up, or to answer a control call."""


class RunSlot:
    """Does one run after the other in its own process. Plain class; `side_by_side` wraps it."""

    CONTROL = ("status", "stop")

    def __init__(self, workplace: str, gpus: float, data: Mapping[str, Any]) -> None:
        self._device = claim_device(gpus)
        take_data(data)
        if os.path.isdir(workplace):
            os.chdir(workplace)  # a scenario's relative paths start there
        self._status, self._stop = Status(), threading.Event()

    def run_planned(
        self, planned: Planned, folder: str, home: str, key: bytes, _: None
    ) -> tuple[str, bytes]:
        """Do one run; return why it has no result, and its folder, packed, if this is not the
        machine `home`.
        """
        import ray

        self._status = Status()
        options = RunOptions(stop=self._stop, data_key=key, callbacks=[StatusCallback(self._note)])
        reason = run_planned(planned, Path(folder), options)
        if ray.get_runtime_context().get_node_id() == home or not Path(folder).is_dir():
            return reason, b""
        return reason, pack(Path(folder))

    def status(self) -> Status:
        """Return the status of the run in progress."""
        return self._status

    def stop(self) -> None:
        """End the run in progress, cleanly."""
        self._stop.set()

    def _note(self, status: Status) -> None:
        self._status = status


def on_ray(options: PoolOptions, specs: Sequence[AnyScenario]) -> Callable[..., None]:
    """Return the function that makes runs on Ray. Raises SpecError for objects that cannot travel
    to its processes.
    """
    check_travel(specs)

    def make(todo: Iterable[Planned], root: Path, **watch: Any) -> None:
        with connected(options.address, verbose=options.verbose):
            side_by_side(todo, root, jobs=options.jobs, **watch)

    return make


def side_by_side(
    todo: Iterable[Planned],
    root: Path,
    *,
    progress: Callable[[Mapping[str, Status]], None],
    ended: Callable[[Planned, str], None],
    stop: threading.Event,
    jobs: int | None = None,
) -> None:
    """Do runs on Ray, until all are over or `stop` is set; inside `actors.cluster.connected`.

    Other parameters as of `raydpzv.compare.run_comparison.one_by_one`. jobs: most runs at a time
    (None: as many as fit). A run whose process dies has no result; the others continue. Raises
    Unplaceable if not even one run fits.
    """
    import ray

    queue = list(todo)
    if not queue:
        return
    machines = cluster_machines()
    each = Share(1.0, max(whole_run_gpus(planned.spec, machines) for planned in queue))
    count = slots(len(queue), jobs, each, machines)
    plan = Plan(each, (each,) * (count - 1), (), member="run", fewer="--jobs")
    with reserved(plan, RunOptions()) as place:
        home = ray.get_runtime_context().get_node_id()
        data = put_data(planned.spec for planned in queue)
        below, key = root.absolute() / RUNS_FOLDER, read_key(root)

        made: dict[Any, Any] = {}

        def started(slot: int) -> Any:
            actor, made[actor] = start(
                RunSlot,
                {"ctl": RunSlot.CONTROL},
                {"ctl": 1},
                each.bundle(),
                place.group,
                slot,
                os.getcwd(),
                each.gpus,
                data,
            )
            return actor

        def run(actor: Any, planned: Planned) -> Any:
            # once the actor is made: two threads would import an own module at once
            return actor.run_planned.remote(
                planned, str(below / planned.folder), home, key, made[actor]
            )

        _Slots(started, run, below, queue, count).run(progress, ended, stop)


class _Slots:
    """The actors, their runs, and the runs that are still to do.

    started: starts the actor of a slot; make: starts a run in an actor, and returns the call;
    below: the runs' folder.
    """

    def __init__(
        self,
        started: Callable[[int], Any],
        make: Callable[[Any, Planned], Any],
        below: Path,
        queue: Sequence[Planned],
        count: int,
    ) -> None:
        self._started, self._make, self._below, self._queue = started, make, below, list(queue)
        self._free = list(range(count))
        self._actors: dict[int, Any] = {}
        self._busy: dict[Any, tuple[int, Planned]] = {}

    def run(
        self,
        progress: Callable[[Mapping[str, Status]], None],
        ended: Callable[[Planned, str], None],
        stop: threading.Event,
    ) -> None:
        """Hand out the runs until all are over or the user stops them."""
        import ray

        well = stopping = False
        try:
            while self._queue or self._busy:
                if stop.is_set() and not stopping:
                    stopping = True
                    self._stop()
                while self._queue and self._free:
                    self._begin(self._free.pop(0), self._queue.pop(0))
                if self._busy:
                    for call in ray.wait(list(self._busy), timeout=LOOK)[0]:
                        ended(*self._result(call))
                progress(self._statuses())
            well = True
        finally:
            end(self._actors.values(), well=well)

    def _begin(self, slot: int, planned: Planned) -> None:
        if slot not in self._actors:
            self._actors[slot] = self._started(slot)
        self._busy[self._make(self._actors[slot], planned)] = slot, planned

    def _result(self, call: Any) -> tuple[Planned, str]:
        """Return a run that is over, and why it has no result; free its slot."""
        import ray

        slot, planned = self._busy.pop(call)
        self._free.append(slot)
        try:
            reason, packed = ray.get(call)
        except Exception as error:
            if lost(error):
                ray.kill(self._actors.pop(slot))
            reason, packed = str(translated(error)), b""
        if packed:
            unpack(packed, self._below / planned.folder)
        return planned, reason

    def _stop(self) -> None:
        self._queue = []
        for slot, _ in self._busy.values():
            self._actors[slot].stop.remote()

    def _statuses(self) -> dict[str, Status]:
        found = {}
        for slot, planned in self._busy.values():
            try:
                call = self._actors[slot].status.remote()
                found[planned.folder] = get(call, _TIMEOUT, f"the run {planned.folder}")
            except Exception as error:
                if not lost(error):
                    raise
                continue  # its run ends with the same error, which `_result` returns
        return found


def slots(todo: int, jobs: int | None, each: Share, machines: Sequence[Machine]) -> int:
    """Return how many runs fit at a time: one per core of a machine, and per GPU share if the runs
    have one.
    """
    fits = sum(Room(machine.has).fits(each.bundle(), todo) for machine in machines)
    if fits < 1:
        raise Unplaceable(
            f"resources: a run of the comparison asks {listed(each.bundle())} on one machine, the "
            f"cluster's machines have {'; '.join(listed(machine.has) for machine in machines)}; "
            "lower the GPU shares in [resources]"
        )
    return min(todo, fits, jobs or fits)


def pack(folder: Path) -> bytes:
    """Return a run's folder as one archive, and remove it here."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(
            folder,
            arcname=".",
            filter=lambda entry: None if entry.name.endswith(".lock") else entry,
        )
    shutil.rmtree(folder)
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Replace a folder by a packed one."""
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        if hasattr(tarfile, "data_filter"):  # since Python 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
