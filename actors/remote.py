"""Remote calls: results with a time limit, and whether the called actor died."""

from __future__ import annotations

from typing import Any

from raydpzv.errors import Stalled


def get(reference: Any, timeout: float, what: str) -> Any:
    """Return a remote result; Stalled says what was waited for."""
    import ray

    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        raise Stalled(
            f"waited {timeout:g} s for {what}; raise resources.timeout if the work is that long"
        ) from None


def actor_of(error: BaseException) -> str:
    """Return Ray's number of the actor whose death an error tells of, "" if it does not say."""
    return str(getattr(error, "actor_id", None) or "")


def lost(error: BaseException) -> bool:
    """Tell whether the called actor itself died, as opposed to an error it raised over the death of another."""
    import ray

    return isinstance(error, ray.exceptions.RayActorError) and not isinstance(
        error, ray.exceptions.RayTaskError
    )
