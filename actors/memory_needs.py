"""The least memory that the processes of a run's actors take on their machines.

A process's own memory was measured (Ray 2.60, torch 2.13, Linux, "Anonymous" of
/proc/PID/smaps_rollup): a client's after its first upload, a server's and a host's when made, the
server's of hosts when it begins. A client's actor copies its columns (measured too); hosts read
rows in the object store. Models, their activations and tables of embeddings are not included.
"""

from __future__ import annotations

from dataclasses import replace

from actors.shares import Plan
from raydpzv.experiment.prepare import Prepared

_MIB = 2**20
_OWN = {
    ("vertical", "compiled"): (70, 85),
    ("vertical", "compiled_head"): (70, 203),
    ("vertical", "torch"): (189, 203),
    ("horizontal", "compiled"): (72, 61),
    ("horizontal", "torch"): (193, 183),
}
"""MiB of a server's process, and of a client actor's or a host's, by kind of learning and
engine.
"""


def with_run_memory(plan: Plan, prepared: Prepared) -> Plan:
    """Return the plan of a run with each actor's memory, in bytes."""
    server, other = (mib * _MIB for mib in _OWN[prepared.spec.kind, prepared.engine])
    columns = prepared.client_bytes
    held = [sum(columns[m] for m in clients) for clients in plan.clients]
    shares = zip(plan.actors, held, strict=True)
    return replace(
        plan,
        server=replace(plan.server, memory=server + (0 if plan.actors else sum(columns))),
        actors=tuple(replace(share, memory=other + data) for share, data in shares),
    )
