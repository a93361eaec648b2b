"""Remote classes and calls: options of an actor, results with a time limit, and whether the called actor died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydpzv.errors import Stalled


def wrapped(cls: type, groups: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> Any:
    """Wrap a plain class: its methods by concurrency group, and each group's number of threads."""
    import ray

    methods = {
        name: ray.method(concurrency_group=group_name)(getattr(cls, name))
        for group_name, names in groups.items()
        for name in names
    }
    options: dict[str, Any] = {"concurrency_groups": dict(sizes), "enable_task_events": False}
    return ray.remote(**options)(type(cls.__name__, (cls,), methods))


def placed(share: Mapping[str, float], group: Any, bundle: int) -> dict[str, Any]:
    """Return the options that put an actor into a bundle of a placement group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return {
        "num_cpus": share.get("CPU", 0),
        "num_gpus": share.get("GPU", 0),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
    }


def get(reference: Any, timeout: float, what: str) -> Any:
    """Return a remote result; Stalled says what was waited for."""
    import ray

    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        raise Stalled(
            f"waited {timeout:g} s for {what}; raise resources.timeout if the work is that long"
        ) from None


def lost(error: BaseException) -> bool:
    """Tell whether the called actor itself died, as opposed to an error it raised over the death of another."""
    import ray

    return isinstance(error, ray.exceptions.RayActorError) and not isinstance(
        error, ray.exceptions.RayTaskError
    )
