"""Remote calls: results with a time limit, and whether the called actor died."""

from __future__ import annotations

from typing import Any

from raydpzv.errors import Stalled


def get(reference: Any, timeout: float, awaited: str) -> Any:
    """Return a remote result. Stalled names `awaited`, the result in words."""
    import ray

    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        raise stalled(timeout, awaited) from None


def stalled(timeout: float, awaited: str) -> Stalled:
    """Return the error of a result that did not come in time."""
    return Stalled(
        f"waited {timeout:g} s for {awaited}; raise resources.timeout if the work is that long"
    )


def actor_of(error: BaseException) -> str:
    """Return Ray's identifier of the actor whose death an error reports, "" if the error has
    none.
    """
    return str(getattr(error, "actor_id", None) or "")


def lost(error: BaseException) -> bool:
    """Return whether the called actor itself died; its error over another actor's death does not
    count.
    """
    import ray

    return isinstance(error, ray.exceptions.RayActorError) and not isinstance(
        error, ray.exceptions.RayTaskError
    )
