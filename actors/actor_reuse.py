"""The processes of actors: each holds one actor's object at a time, and forwards calls to it.

A process of Ray takes a second of CPU to start and its libraries another two. Where several runs share one Ray
(`actors.cluster.connected(reuse=True)`: tests, a notebook, a sweep), a run that ended well leaves its processes,
emptied, to the next one that wants such actors on the same machine. Idle processes hold no share of the
cluster, so that they are in nobody's way; one with a GPU share is never reused, since its memory and its device are
bound to its place.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from raydpzv.lazy_import import defer
from raydpzv.sim.clock import WallClock
from raydpzv.zo.kernels import FirstCalls, first_calls

_MADE_WITHIN = 300.0
"""Seconds for which a call waits until the object has been made: who calls may be another than who had it made."""
_MAKING = "make"
"""The concurrency group in which objects are made and dropped, so that no call can stand in the way."""
_DROP_TIMEOUT = 10.0
"""Seconds in which a process must answer that it holds nothing any more; else it is ended."""
_ARROW = (
    "RAY_DISABLE_CUSTOM_ARROW_DATA_SERIALIZATION",
    "RAY_DISABLE_CUSTOM_ARROW_JSON_OPTIONS_SERIALIZATION",
)
"""Ray's switches for what it teaches its pickler about Arrow before it reads a first argument, which loads pyarrow's
29 MB: to send slices of tables without the rest of their columns. Tables of rows go whole here."""
_SURVIVES_WITHIN = 3.0
"""Seconds in which a process of a run that lost others must have ended what it does; else it is ended."""
_MOST_IDLE = 16
"""Processes that are kept at most: each takes as much memory as its libraries."""


class ActorProcess:
    """What runs in an actor's process; `remote_class` gives it the methods of the class whose object it holds.

    The class is imported when its object is made, after torch and pyarrow were deferred: an actor that computes without
    torch or makes no tables never loads them, and what Ray unpickles on the way is imported lightly as well.
    """

    def __init__(self) -> None:
        os.environ.update(dict.fromkeys(_ARROW, "1"))
        for library in ("torch", "pyarrow"):
            defer(library)
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
        """Hold nothing any more."""
        self._made.clear()
        self._object = self._failure = None
        gc.collect()

    def node(self) -> str:
        """Return Ray's number of the machine that this actor is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def host(self) -> str:
        """Return the address at which other machines of the cluster reach this one."""
        import ray

        return str(ray.util.get_node_ip_address())

    def real_time(self) -> float:
        """Return what this machine's clock shows: seconds since the epoch."""
        return WallClock(0.0).now()

    def first_calls(self) -> FirstCalls:
        """Return what first calls of kernels took here since the object was to be made."""
        return first_calls().since(self._before)

    def held(self) -> Any:
        """Wait for the object and return it, or raise what its making raised."""
        if not self._made.wait(_MADE_WITHIN):
            raise RuntimeError("this actor holds no object: it could not be made here, or it was dropped")
        if self._failure is not None:
            raise self._failure
        return self._object


@dataclass(frozen=True)
class _Kind:
    """What makes one idle process as good as another."""

    actor: str
    threads: tuple[tuple[str, int], ...]
    node: str


@dataclass
class _IdleProcesses:
    idle: dict[_Kind, list[Any]] = field(default_factory=dict)
    kinds: dict[Any, _Kind] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, kind: _Kind) -> Any | None:
        with self.lock:
            there = self.idle.get(kind)
            return there.pop() if there else None

    def note(self, process: Any, kind: _Kind) -> None:
        with self.lock:
            self.kinds[process._actor_id] = kind

    def forget(self, process: Any) -> None:
        with self.lock:
            self.kinds.pop(process._actor_id, None)

    def keep(self, process: Any) -> bool:
        """Take a process that holds nothing; False if it is not of a kind that is kept, or there are enough."""
        with self.lock:
            kind = self.kinds.get(process._actor_id)
            if kind is None or sum(map(len, self.idle.values())) >= _MOST_IDLE:
                return False
            self.idle.setdefault(kind, []).append(process)
            return True

    def all(self) -> list[Any]:
        """Take all."""
        with self.lock:
            idle, self.idle = self.idle, {}
            return [process for processes in idle.values() for process in processes]


_survivors = _IdleProcesses()
"""Of runs that lost actors and go on."""
_idle: _IdleProcesses | None = None
"""Of the session that reuses processes; None: every actor has a process of its own."""


@contextmanager
def reused() -> Iterator[None]:
    """Let runs inside the block leave their processes to one another; those idle at its end are ended."""
    global _idle
    if _idle is not None:
        yield
        return
    _idle = _IdleProcesses()
    try:
        yield
    finally:
        session, _idle = _idle, None
        _end(session.all())


def start(
    cls: type,
    groups: Mapping[str, Sequence[str]],
    threads: Mapping[str, int],
    share: Mapping[str, float],
    group: Any,
    bundle: int,
    *arguments: Any,
) -> tuple[Any, Any]:
    """Start an actor in a bundle of a placement group; return its handle, and what is there when its object is.

    cls: a plain class; groups: its methods by concurrency group; threads: each group's number of threads.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    kind = _Kind(_named(cls), tuple(sorted(threads.items())), f"bundle {bundle} of {group.id.hex()}")
    if (survivor := _survivors.take(kind)) is not None:
        actor = survivor
    elif _idle is not None and not share.get("GPU"):
        actor = _on_node(cls, groups, threads, _node_of(group, bundle))
    else:
        options = {
            "num_cpus": share.get("CPU", 0),
            "num_gpus": share.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=bundle
            ),
        }
        actor = remote_class(cls, groups, threads).options(**options).remote()
        if not share.get("GPU"):
            _survivors.note(actor, kind)
    return actor, actor.make.remote(cls, *arguments)


def start_here(cls: type, groups: Mapping[str, Sequence[str]], threads: Mapping[str, int]) -> tuple[Any, Any]:
    """Start an actor that asks for no share on this machine; as `start`."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    kind = _Kind(_named(cls), tuple(sorted(threads.items())), f"machine {node}")
    if (actor := _survivors.take(kind)) is None:
        actor = _on_node(cls, groups, threads, node)
        if _idle is None:
            _survivors.note(actor, kind)
    return actor, actor.make.remote(cls)


def end(processes: Sequence[Any], *, well: bool) -> None:
    """End actors; well: their run did, and nothing of it goes on in them, so that they may serve another."""
    import ray

    if well and _idle is not None:
        dropping = {process.drop.remote(): process for process in processes}
        done, _ = ray.wait(list(dropping), num_returns=len(dropping), timeout=_DROP_TIMEOUT)
        kept = [
            dropping[reference]
            for reference in done
            if _answers(reference) and _idle.keep(dropping[reference])
        ]
        processes = [process for process in processes if process not in kept]
    _end(processes)


def keep_survivors(processes: Sequence[Any]) -> list[Any]:
    """Empty those of a run that lost others, for whoever starts such actors in the same place next; return them.

    One that still does what it was asked before is none: nothing of the old run may go on beside the new.
    """
    free = [p for p, answer in _asked(processes, "node").items() if _answers(answer)]
    pool = _idle or _survivors
    return [p for p, answer in _asked(free, "drop").items() if _answers(answer) and pool.keep(p)]


def end_survivors() -> None:
    """End the processes that nobody has started an actor in."""
    _end(_survivors.all())


def _asked(processes: Sequence[Any], name: str) -> dict[Any, Any]:
    """Call a method of processes; return those calls that have ended in time."""
    import ray

    calls = {getattr(process, name).remote(): process for process in processes}
    if not calls:
        return {}
    done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_SURVIVES_WITHIN)
    return {calls[reference]: reference for reference in done}


def _named(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _answers(reference: Any) -> bool:
    """Tell whether a process did what it was asked; one that was lost, in its run or idle, does not."""
    import ray

    try:
        ray.get(reference, timeout=_DROP_TIMEOUT)
    except ray.exceptions.RayError:
        return False
    return True


def _end(processes: Sequence[Any]) -> None:
    import ray

    for process in processes:
        ray.kill(process)
        _survivors.forget(process)


def _on_node(cls: type, groups: Mapping[str, Sequence[str]], threads: Mapping[str, int], node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kind = _Kind(_named(cls), tuple(sorted(threads.items())), node)
    while _idle is not None and (process := _idle.take(kind)):
        if _answers(process.node.remote()):
            return process
    placed = NodeAffinitySchedulingStrategy(node, soft=False)
    process = remote_class(cls, groups, threads).options(num_cpus=0, scheduling_strategy=placed).remote()
    if _idle is not None:
        _idle.note(process, kind)
    return process


def _node_of(group: Any, bundle: int) -> str:
    """Return the machine on which a bundle was reserved."""
    from ray.util.placement_group import placement_group_table

    return str(placement_group_table(group)["bundles_to_node_id"][bundle])


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
        return getattr(self.held(), name)(*arguments, **named)

    call.__name__ = name
    return call
