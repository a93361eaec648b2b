"""The ledger of a vertical run on Ray: in the server's process, or beside a run folder on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.ledger_actor import ledger_actor
from actors.remote import get, lost
from actors.vertical.actor_set import ActorSet
from raydpzv.errors import Stalled
from raydpzv.experiment.initial_model import BottomPlan
from raydpzv.records.run_folder import RunFolder

_CONTROL_TIMEOUT = 60.0
"""Seconds a call about the ledger may take, beyond opening it."""


class LedgerControl:
    """The driver's side: where the ledger is kept, and what becomes of it.

    plan: None for methods without releases, which keep no ledger. timeout: seconds that opening it may take.
    """

    def __init__(
        self, actor_set: ActorSet, plan: BottomPlan | None, folder: RunFolder | None, timeout: float
    ) -> None:
        self._actor_set, self._plan, self._folder, self._timeout = actor_set, plan, folder, timeout
        self._relay: Any | None = None

    @property
    def kept(self) -> bool:
        """Whether there is a ledger, from which clients can be rebuilt."""
        return self._plan is not None

    def open(self) -> None:
        """Open the ledger, with all that was released before. Only the driver's machine has the run folder for sure."""
        if self._plan is None:
            return
        header = self._plan.header()
        path = self._folder.ledger.resolve() if self._folder else None
        there = get(self._actor_set.server.node.remote(), self._timeout, "the server's machine")
        if path is not None and there != _here():
            self._relay = ledger_actor(self._actor_set.place)
            get(self._relay.open.remote(path, header, False), self._timeout, "the ledger to open")
            path = None
        get(
            self._actor_set.server.keep.remote(path, header, self._relay), self._timeout, "the ledger to open"
        )

    def facts(self) -> Mapping[str, Any]:
        """Return what summary.json says about the ledger."""
        if not self.kept:
            return {}
        owner = self._relay or self._actor_set.server
        facts: Mapping[str, Any] = get(owner.facts.remote(), _CONTROL_TIMEOUT, "the ledger's size")
        return facts

    def parties(self) -> dict[str, Any]:
        """Return the ledger actor, by what it is called, if there is one."""
        return {} if self._relay is None else {"ledger": self._relay}

    def drop(self) -> None:
        """End the ledger actor, if there is one, without a word to the server: all actors are ended."""
        import ray

        if self._relay is not None:
            ray.kill(self._relay)

    def close(self) -> None:
        """Let another writer in; a process that was lost has done so."""
        if not self.kept:
            return
        import ray

        try:
            get(self._actor_set.server.leave.remote(), _CONTROL_TIMEOUT, "the ledger to close")
            if self._relay is not None:
                get(self._relay.close.remote(), _CONTROL_TIMEOUT, "the ledger to close")
                ray.kill(self._relay)
        except Exception as error:
            # one that does not answer is dismissed next, which closes its files
            if not (lost(error) or isinstance(error, Stalled)):
                raise


def _here() -> str:
    """Return the machine that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())
