"""CPU seconds and memory of an actor before its first work: Ray's share and ours.

One process of Ray after the other, each asked for its CPU seconds and resident memory: an actor of
Ray that has done nothing; one that was given an array, for which Ray loads numpy, pyarrow and
pydantic; a client's actor of `digits_dpzv` and a host of FedAvg on `digits_decomfl`, with their
objects made, on the compiled engine. What a client's actor needs for its first upload (numba,
kernels that are kept compiled) comes on top and is shown.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, median, options, show, verdict, write

from actors.actor_process import remote_class
from actors.cluster import connected
from actors.horizontal.client_group_actor import ClientGroupActor
from actors.transport.peers import order_task
from actors.vertical.client_actor import ClientActor
from raydpzv.config.toml import load
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.methods.roles import Order
from raydpzv.wire.messages import Start

SCENARIOS = Path(__file__).parents[1] / "scenarios"
CPU_TARGET, MB_TARGET = 1.0, 120.0
TARGETED = ("a client's actor", "a horizontal host")


def cost() -> tuple[float, float]:
    """Return this process's CPU seconds and resident megabytes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return used.ru_utime + used.ru_stime, pages * resource.getpagesize() / 1e6


class Empty:
    """An actor of Ray that has nothing of this program."""

    def take(self, array: np.ndarray | None = None) -> tuple[float, float]:
        """Return the process's cost."""
        return cost()


def of_ray(*arguments: Any) -> tuple[float, float]:
    """Return the cost of an actor of Ray that was given these."""
    import ray

    actor = ray.remote(num_cpus=0)(Empty).remote()
    found: tuple[float, float] = ray.get(actor.take.remote(*arguments))
    ray.kill(actor)
    return found


class Client(ClientActor):
    """A client's actor that can be asked for its process's cost."""

    def do(self, frame: Sequence[bytes]) -> Sequence[bytes]:
        """Do one task of the server."""
        task = self._task(memoryview(b"".join(frame)))
        assert task is not None
        return task()

    def cost(self) -> tuple[float, float]:
        """Return the process's cost."""
        return cost()


class Host(ClientGroupActor):
    """A horizontal host that can be asked for its process's cost."""

    def cost(self) -> tuple[float, float]:
        """Return the process's cost."""
        return cost()


def of_ours(cls: type, *made_of: Any, work: Any = None) -> list[tuple[float, float]]:
    """Return the cost of one of the program's actors with its object made, and after a first piece
    of work.
    """
    import ray

    actor = remote_class(cls, {}, {}).options(num_cpus=0).remote()
    ray.get(actor.make.remote(cls, *made_of))
    found: list[tuple[float, float]] = [ray.get(actor.cost.remote())]
    if work is not None:
        ray.get(actor.do.remote(work))
        found.append(ray.get(actor.cost.remote()))
    ray.kill(actor)
    return found


def turn() -> dict[str, tuple[float, float]]:
    """Measure every kind of process once."""
    vertical = prepare_vertical(load(SCENARIOS / "digits_dpzv.toml"))
    horizontal = prepare_horizontal(
        load(SCENARIOS / "digits_decomfl.toml", ("method.name=fedavg",))
    )
    work = order_task(Order(0, Start())).frame
    before, after = of_ours(Client, [vertical.clients[0]], 0.0, work=work)
    return {
        "Ray alone": of_ray(),
        "Ray alone, given an array": of_ray(np.zeros(3)),
        "a client's actor": before,
        "a client's actor after its first upload": after,
        "a horizontal host": of_ours(Host, horizontal, 0.0, None)[0],
    }


def main() -> None:
    """Run the benchmark."""
    import ray

    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    before = environment()
    ray.cloudpickle.register_pickle_by_value(
        sys.modules[__name__]
    )  # actors cannot import from this folder
    with connected(num_cpus=1):
        turns = [turn() for _ in range(chosen.repeats or (1 if chosen.quick else 5))]
    found = {name: [median([t[name][n] for t in turns]) for n in (0, 1)] for name in turns[0]}
    rows = []
    for name, (seconds, megabytes) in found.items():
        cpu, mb = (CPU_TARGET, MB_TARGET) if name in TARGETED else (None, None)
        judged = verdict(seconds, cpu, at_most=True), verdict(megabytes, mb, at_most=True)
        rows.append([name, f"{seconds:.2f}", judged[0], f"{megabytes:.0f}", judged[1]])
    show(
        "A process of Ray before its first work",
        ["process", "CPU s", "target", "MB", "target"],
        rows,
    )
    write("actor_start", {"turns": turns, "environment": before}, chosen.json)


if __name__ == "__main__":
    main()
