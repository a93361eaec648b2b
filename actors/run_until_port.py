"""The calls of a server actor by which its driver says how far the run may go for now."""

from __future__ import annotations

from raydpzv.sim.run_until import RunUntil


class RunUntilPort:
    """A server actor's horizon: none, until the driver sets one."""

    HORIZON_CALLS = ("allow", "deny")

    def __init__(self) -> None:
        self._horizon = RunUntil()

    def allow(self, limit: int | None) -> None:
        """Let the run make so many updates in all; None: any number."""
        self._horizon.allow(limit)

    def deny(self, why: str) -> None:
        """Let the run make no update more, for this reason."""
        self._horizon.deny(why)
