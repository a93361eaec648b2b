"""The least memory that the processes of a run's actors take on their machines.

A process's own memory was measured (Ray 2.60, torch 2.13, Linux, "Anonymous" of /proc/PID/smaps_rollup): a client's
after its first upload, a server's and a host's when made, the server's of hosts when it begins. A client's actor copies
its columns (measured too); hosts read rows in the object store. Models, their activations and tables of embeddings are
not included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from actors.shares import Plan
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.vertical import PreparedVertical

_MIB = 2**20
_CLIENT = {"compiled": 85 * _MIB, "torch": 203 * _MIB, "compiled_head": 203 * _MIB}
_SERVER = {"compiled": 70 * _MIB, "torch": 189 * _MIB, "compiled_head": 70 * _MIB}
_HOST = {"compiled": 61 * _MIB, "torch": 183 * _MIB}
_SERVER_OF_HOSTS = {"compiled": 72 * _MIB, "torch": 193 * _MIB}


def with_memory(plan: Plan, experiment: PreparedVertical) -> Plan:
    """Return the plan of a vertical run with each actor's memory, in bytes."""
    columns = [client.x_train.nbytes + client.x_held_out.nbytes for client in experiment.clients]
    held = [sum(columns[m] for m in clients) for clients in plan.clients]
    own = _CLIENT[experiment.engine]
    server = _SERVER[experiment.engine] + (0 if plan.actors else sum(columns))
    shares = zip(plan.actors, held, strict=True)
    return replace(
        plan,
        server=replace(plan.server, memory=server),
        actors=tuple(replace(share, memory=own + data) for share, data in shares),
    )


def with_hosts_memory(plan: Plan, engine: str) -> Plan:
    """Return the plan of a horizontal run with the memory of the server and each host, in bytes."""
    return replace(
        plan,
        server=replace(plan.server, memory=_SERVER_OF_HOSTS[engine]),
        actors=tuple(replace(share, memory=_HOST[engine]) for share in plan.actors),
    )


_NEEDS: dict[str, Callable[[Plan, Any], Plan]] = {
    "vertical": with_memory,
    "horizontal": lambda plan, prepared: with_hosts_memory(plan, prepared.engine),
}


def with_run_memory(plan: Plan, prepared: Prepared) -> Plan:
    """Return the plan of a run of either kind with each actor's memory, in bytes."""
    return _NEEDS[prepared.spec.kind](plan, prepared)
