"""The process of an actor: it holds the actor's object and forwards calls to it."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from raydpzv.sim.clock import WallClock
from raydpzv.zo.kernels import FirstCalls, first_calls

_MADE_WITHIN = 300.0
"""Seconds for which a call waits for the object: the caller may be another than the one that made
it.
"""
_MAKING = "make"
"""The concurrency group in which objects are made and dropped, so that no other call blocks it."""
_ANSWERS_WITHIN = 10.0
"""Seconds in which a process must have dropped its object; else it is killed."""
_MOST_IDLE = 16
"""Most processes that are kept: each takes as much memory as its libraries."""


class ActorProcess:
    """The object that runs in an actor's process; `remote_class` adds the methods of the class that
    it forwards to.

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
            raise RuntimeError(
                "this actor holds no object: it could not be made here, or it was dropped"
            )
        if self._failure is not None:
            raise self._failure
        return self._object


def _pickle_without_arrow() -> None:
    """Keep Ray's pickler from loading pyarrow (29 MB) here: it looks for it once, at the first
    value.

    With it, slices of tables would be sent without the rest of their columns; here, tables of rows
    are sent whole.
    """
    import ray

    if "pyarrow" in sys.modules or not ray.is_initialized():
        return
    sys.modules["pyarrow"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        ray.put(None)
    finally:
        del sys.modules["pyarrow"]


_Kind = tuple[Any, ...]
"""What makes two idle processes interchangeable: class, threads, machine."""
_kept: dict[_Kind, list[Any]] | None = None
"""Idle processes; None outside of `reused`."""
_kinds: dict[Any, _Kind] = {}
"""Kinds of the processes that may be kept, by Ray's identifier."""


@contextmanager
def reused() -> Iterator[None]:
    """Let runs that end well inside the block leave their processes to one another; those idle at
    its end are killed.

    A process of Ray takes a second of CPU to start, and its libraries another two.
    """
    global _kept
    if _kept is not None:
        yield
        return
    _kept = {}
    try:
        yield
    finally:
        idle, _kept = list(chain(*_kept.values())), None
        end(idle)


def start(
    cls: type,
    groups: Mapping[str, Sequence[str]],
    threads: Mapping[str, int],
    share: Mapping[str, float],
    group: Any,
    bundle: int,
    *arguments: Any,
) -> tuple[Any, Any]:
    """Start an actor in a bundle of a placement group; return its handle, and the call that makes
    its object.

    cls: a plain class; groups: its methods by concurrency group; threads: each group's number of
    threads.
    """
    from ray.util.placement_group import placement_group_table
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if _kept is not None and not share.get("GPU"):  # a process with a GPU is bound to its place
        actor = _on_node(
            cls, groups, threads, placement_group_table(group)["bundles_to_node_id"][bundle]
        )
    else:
        placed = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        actor = (
            remote_class(cls, groups, threads)
            .options(
                num_cpus=share.get("CPU", 0),
                num_gpus=share.get("GPU", 0),
                scheduling_strategy=placed,
            )
            .remote()
        )
    return actor, actor.make.remote(cls, *arguments)


def start_here(
    cls: type, groups: Mapping[str, Sequence[str]], threads: Mapping[str, int]
) -> tuple[Any, Any]:
    """Start an actor that asks for no share on this machine; as `start`."""
    import ray

    actor = _on_node(cls, groups, threads, ray.get_runtime_context().get_node_id())
    return actor, actor.make.remote(cls)


def end(actors: Iterable[Any], *, well: bool = False) -> None:
    """Kill actors. well: their run ended well, so that other runs may use their processes
    (`reused`).
    """
    import ray

    for actor in actors:
        kind = _kinds.pop(actor._actor_id, None)
        full = sum(map(len, (_kept or {}).values())) >= _MOST_IDLE
        if well and kind and _kept is not None and not full and _answers(actor.drop.remote()):
            _kept.setdefault(kind, []).append(actor)
        else:
            ray.kill(actor)


def _on_node(
    cls: type, groups: Mapping[str, Sequence[str]], threads: Mapping[str, int], node: str
) -> Any:
    """Return an idle process of this kind, else a new one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kind = cls.__module__, cls.__qualname__, *sorted(threads.items()), node
    idle = [] if _kept is None else _kept.get(kind, [])
    actor = None
    while idle and actor is None:
        found = idle.pop()
        actor = found if _answers(found.node.remote()) else None
    if actor is None:
        placed = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = (
            remote_class(cls, groups, threads)
            .options(num_cpus=0, scheduling_strategy=placed)
            .remote()
        )
    _kinds[actor._actor_id] = kind
    return actor


def _answers(reference: Any) -> bool:
    """Return whether a process did a call; one that was lost, in its run or idle, does not."""
    import ray

    try:
        ray.get(reference, timeout=_ANSWERS_WITHIN)
    except ray.exceptions.RayError:
        return False
    return True


def remote_class(cls: type, groups: Mapping[str, Sequence[str]], threads: Mapping[str, int]) -> Any:
    """Return an `ActorProcess` with the public methods of a plain class, each in its concurrency
    group.
    """
    import ray

    group_of = {name: group for group, names in groups.items() for name in names}
    making = ray.method(concurrency_group=_MAKING)
    methods = {"make": making(ActorProcess.make), "drop": making(ActorProcess.drop)}
    for name in dir(cls):
        if not name.startswith("_") and callable(getattr(cls, name)):
            group = group_of.get(name)
            forwarding = _forwarding(name)
            methods[name] = ray.method(concurrency_group=group)(forwarding) if group else forwarding
    options: dict[str, Any] = {
        "concurrency_groups": {**threads, _MAKING: 1},
        "enable_task_events": False,
    }
    return ray.remote(**options)(type(cls.__name__, (ActorProcess,), methods))


def _forwarding(name: str) -> Any:
    def call(self: ActorProcess, *arguments: Any, **named: Any) -> Any:
        return getattr(self._wait_for_object(), name)(*arguments, **named)

    call.__name__ = name
    return call
