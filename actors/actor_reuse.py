"""The processes of actors: each holds one actor's object at a time, and forwards calls to it.

A process of Ray takes a second of CPU to start and its libraries another two, so idle processes are kept. A run that
lost an actor keeps the processes of the others for its restart. Runs that share one Ray in a session
(`actors.cluster.connected(reuse=True)`) keep processes for the next run on the same machine. A process with a GPU share
is never kept: its memory and its device are bound to its place.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from raydpzv.sim.clock import WallClock
from raydpzv.zo.kernels import FirstCalls, first_calls

_MADE_WITHIN = 300.0
"""Seconds for which a call waits for the object: the caller may be another than the one that made it."""
_MAKING = "make"
"""The concurrency group in which objects are made and dropped, so that no other call blocks it."""
_DROP_TIMEOUT = 10.0
"""Seconds in which a process must have dropped its object; else it is ended."""
_SURVIVES_WITHIN = 3.0
"""Seconds in which a process of a run that lost others must have finished its calls; else it is ended."""
_MOST_IDLE = 16
"""Most processes that are kept: each takes as much memory as its libraries."""


class ActorProcess:
    """The object that runs in an actor's process; `remote_class` adds the methods of the class that it forwards to.

    The class is imported when its object is made.
    """

    def __init__(self) -> None:
        _pickle_without_arrow()
        self._made = threading.Event()
        self._object: Any = None
        self._failure: BaseException | None = None
        self._before = FirstCalls()

    def make(self, cls: type, *arguments: Any) -> None:
        """Make the object, before any other call is served."""
        try:
            self._before = first_calls()
            self._object, self._failure = cls(*arguments), None
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._made.set()

    def drop(self) -> None:
        """Drop the object."""
        self._made.clear()
        self._object = self._failure = None
        gc.collect()

    def node(self) -> str:
        """Return Ray's identifier of this actor's machine."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def host(self) -> str:
        """Return the address at which other machines of the cluster reach this one."""
        import ray

        return str(ray.util.get_node_ip_address())

    def real_time(self) -> float:
        """Return this machine's time: seconds since the epoch."""
        return WallClock(0.0).now()

    def first_calls(self) -> FirstCalls:
        """Return what first calls of kernels took here since the making of the object started."""
        return first_calls().since(self._before)

    def _wait_for_object(self) -> Any:
        """Wait for the object and return it, or raise the error of its making."""
        if not self._made.wait(_MADE_WITHIN):
            raise RuntimeError("this actor holds no object: it could not be made here, or it was dropped")
        if self._failure is not None:
            raise self._failure
        return self._object


def _pickle_without_arrow() -> None:
    """Keep Ray's pickler from loading pyarrow (29 MB) here: it looks for it once, at the first value.

    With it, slices of tables would be sent without the rest of their columns; here, tables of rows are sent whole.
    """
    import ray

    if "pyarrow" in sys.modules or not ray.is_initialized():
        return
    sys.modules["pyarrow"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        ray.put(None)
    finally:
        del sys.modules["pyarrow"]


@dataclass(frozen=True)
class _Kind:
    """Two idle processes of one kind are interchangeable. place: a machine, or a bundle of a placement group."""

    actor: str
    threads: tuple[tuple[str, int], ...]
    place: str


class _IdleProcesses:
    """Processes that hold nothing, by kind. shared: a session's runs leave them to one another."""

    def __init__(self) -> None:
        self.shared = False
        self._idle: dict[_Kind, list[Any]] = {}
        self._kinds: dict[Any, _Kind] = {}
        self._lock = threading.Lock()

    def pop(self, kind: _Kind) -> Any | None:
        """Return an idle process that answers, if there is one."""
        while True:
            with self._lock:
                processes = self._idle.get(kind)
                process = processes.pop() if processes else None
            if process is None or _succeeds(process.node.remote()):
                return process

    def note(self, process: Any, kind: _Kind) -> None:
        """Note that a process may be kept when it is idle."""
        with self._lock:
            self._kinds[process._actor_id] = kind

    def add(self, processes: Sequence[Any], within: float) -> list[Any]:
        """Empty the processes and keep those that answer in time, of a kind that is kept; return these."""
        return [process for process in _answering(processes, "drop", within) if self._add(process)]

    def end(self, processes: Sequence[Any]) -> None:
        """Kill processes."""
        import ray

        for process in processes:
            ray.kill(process)
            with self._lock:
                self._kinds.pop(process._actor_id, None)

    def end_all(self) -> None:
        """Kill all that are idle."""
        with self._lock:
            idle, self._idle = self._idle, {}
        self.end([process for processes in idle.values() for process in processes])

    def _add(self, process: Any) -> bool:
        with self._lock:
            kind = self._kinds.get(process._actor_id)
            if kind is None or sum(map(len, self._idle.values())) >= _MOST_IDLE:
                return False
            self._idle.setdefault(kind, []).append(process)
            return True


_pool = _IdleProcesses()


@contextmanager
def reused() -> Iterator[None]:
    """Let runs inside the block leave their processes to one another; those idle at its end are ended."""
    if _pool.shared:
        yield
        return
    _pool.shared = True
    try:
        yield
    finally:
        _pool.shared = False
        _pool.end_all()


def start(
    cls: type,
    groups: Mapping[str, Sequence[str]],
    threads: Mapping[str, int],
    share: Mapping[str, float],
    group: Any,
    bundle: int,
    *arguments: Any,
) -> tuple[Any, Any]:
    """Start an actor in a bundle of a placement group; return its handle, and the call that makes its object.

    cls: a plain class; groups: its methods by concurrency group; threads: each group's number of threads.
    """
    from ray.util.placement_group import placement_group_table
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if _pool.shared and not share.get("GPU"):
        node = placement_group_table(group)["bundles_to_node_id"][bundle]
        actor = _on_node(cls, groups, threads, str(node))
    else:
        kind = _kind(cls, threads, f"bundle {bundle} of {group.id.hex()}")
        if (actor := _pool.pop(kind)) is None:
            in_bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            actor = (
                remote_class(cls, groups, threads)
                .options(
                    num_cpus=share.get("CPU", 0),
                    num_gpus=share.get("GPU", 0),
                    scheduling_strategy=in_bundle,
                )
                .remote()
            )
            if not share.get("GPU"):
                _pool.note(actor, kind)
    return actor, actor.make.remote(cls, *arguments)


def start_here(cls: type, groups: Mapping[str, Sequence[str]], threads: Mapping[str, int]) -> tuple[Any, Any]:
    """Start an actor that asks for no share on this machine; as `start`."""
    import ray

    actor = _on_node(cls, groups, threads, ray.get_runtime_context().get_node_id())
    return actor, actor.make.remote(cls)


def end(processes: Sequence[Any], *, well: bool) -> None:
    """End actors. well: their run ended well, so that a session may reuse their processes."""
    kept = _pool.add(processes, _DROP_TIMEOUT) if well and _pool.shared else []
    _pool.end([process for process in processes if process not in kept])


def keep_survivors(processes: Sequence[Any]) -> list[Any]:
    """Empty the processes of a run that lost others, for actors that start in the same places next; return them.

    A process that still does an earlier call is not kept: nothing of the old run may continue beside the new one.
    """
    return _pool.add(_answering(processes, "node", _SURVIVES_WITHIN), _SURVIVES_WITHIN)


def end_survivors() -> None:
    """End the kept processes in which no actor has started, unless a session reuses them."""
    if not _pool.shared:
        _pool.end_all()


def _on_node(cls: type, groups: Mapping[str, Sequence[str]], threads: Mapping[str, int], node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kind = _kind(cls, threads, f"machine {node}")
    if (process := _pool.pop(kind)) is None:
        placed = NodeAffinitySchedulingStrategy(node, soft=False)
        process = remote_class(cls, groups, threads).options(num_cpus=0, scheduling_strategy=placed).remote()
        _pool.note(process, kind)
    return process


def _kind(cls: type, threads: Mapping[str, int], place: str) -> _Kind:
    return _Kind(f"{cls.__module__}.{cls.__qualname__}", tuple(sorted(threads.items())), place)


def _answering(processes: Sequence[Any], name: str, within: float) -> list[Any]:
    """Call a method of processes; return those whose calls succeed in time."""
    import ray

    calls = {getattr(process, name).remote(): process for process in processes}
    if not calls:
        return []
    done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=within)
    return [calls[reference] for reference in done if _succeeds(reference)]


def _succeeds(reference: Any) -> bool:
    """Return whether a process did a call; one that was lost, in its run or idle, does not."""
    import ray

    try:
        ray.get(reference, timeout=_DROP_TIMEOUT)
    except ray.exceptions.RayError:
        return False
    return True


def remote_class(cls: type, groups: Mapping[str, Sequence[str]], threads: Mapping[str, int]) -> Any:
    """Return an `ActorProcess` with the public methods of a plain class, each in its concurrency group."""
    import ray

    group_of = {name: group for group, names in groups.items() for name in names}
    methods = {
        name: ray.method(concurrency_group=_MAKING)(getattr(ActorProcess, name)) for name in ("make", "drop")
    }
    for name in dir(cls):
        if not name.startswith("_") and callable(getattr(cls, name)):
            group = group_of.get(name)
            forwarding = _forwarding(name)
            methods[name] = ray.method(concurrency_group=group)(forwarding) if group else forwarding
    options: dict[str, Any] = {"concurrency_groups": {**threads, _MAKING: 1}, "enable_task_events": False}
    return ray.remote(**options)(type(cls.__name__, (ActorProcess,), methods))


def _forwarding(name: str) -> Any:
    def call(self: ActorProcess, *arguments: Any, **named: Any) -> Any:
        return getattr(self._wait_for_object(), name)(*arguments, **named)

    call.__name__ = name
    return call
