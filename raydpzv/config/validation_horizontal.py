"""Settings of a horizontal scenario that contradict one another."""

from __future__ import annotations

from collections.abc import Iterator

from raydpzv.config.scenario_horizontal import Decomfl, HorizontalScenario, Mezo
from raydpzv.config.validation import arrivals, budget, data, lengths
from raydpzv.errors import SpecError
from raydpzv.keys import SERVER_PARTY


def check(spec: HorizontalScenario, where: str) -> None:
    """Raise SpecError for the first contradiction."""
    links = {
        "clock.compute": spec.clock.compute,
        "arrivals.rate": spec.arrivals.rate,
        "network.latency": spec.network.latency,
        "network.up": spec.network.up,
        "network.down": spec.network.down,
    }
    limits = (spec.budget.updates, spec.budget.seconds, spec.budget.bytes)
    for complaint in (
        *data(spec),
        *lengths(links, spec.split.clients),
        *budget(limits),
        *_end(spec),
        *arrivals(spec),
        *_clock(spec),
        *_cohort(spec),
        *_decomfl(spec),
    ):
        raise SpecError(f"{complaint} in {where}")


def asynchronous(spec: HorizontalScenario) -> bool:
    """Tell whether clients wake by themselves; else there are rounds."""
    return isinstance(spec.method, Decomfl) and spec.method.asynchronous


def _end(spec: HorizontalScenario) -> Iterator[str]:
    """Complain of budgets that such a run never spends."""
    given, clock, network = spec.budget, spec.clock, spec.network
    if given.updates is not None:
        return
    delays = (clock.compute, clock.service, network.latency)
    instant = not any(max(d) if isinstance(d, tuple) else d for d in delays)
    timeless = instant and network.up is None and network.down is None and not asynchronous(spec)
    silent = isinstance(spec.method, Mezo)
    if (given.seconds is None or timeless) and (given.bytes is None or silent):
        yield (
            "budget.updates: wanted, since this run never ends otherwise: rounds take no simulated time without "
            "clock.compute, clock.service or network delays, and an agent alone sends no bytes"
        )


def _clock(spec: HorizontalScenario) -> Iterator[str]:
    if spec.clock.kind == "wall" and not asynchronous(spec):
        yield (
            'clock.kind: "wall" is for clients that wake by themselves (method.asynchronous = true); rounds wait for '
            'everybody, use "virtual" (with clock.compute and network for slow clients)'
        )


def _cohort(spec: HorizontalScenario) -> Iterator[str]:
    method, clients = spec.method, spec.split.clients
    if isinstance(method, Mezo):
        if clients != 1:
            yield f"split.clients: mezo is one agent with all rows, wanted 1, got {clients}"
    elif method.cohort > clients and not asynchronous(spec):
        yield f"method.cohort: wanted at most {clients} (split.clients), got {method.cohort}"


def _decomfl(spec: HorizontalScenario) -> Iterator[str]:
    method = spec.method
    if not isinstance(method, Decomfl):
        return
    for name in ("lr_at", "perturbations_at"):
        rounds = [round for round, _ in getattr(method, name)]
        if rounds != sorted(set(rounds)):
            yield f"method.{name}: wanted ascending rounds, got {rounds}"
    if method.asynchronous:
        for name, usual in (("local_steps", 1), ("perturbations_at", ()), ("weights", "uniform")):
            if getattr(method, name) != usual:
                yield f"method.{name}: has no meaning with method.asynchronous = true; leave it out"
        if spec.split.clients >= SERVER_PARTY:
            yield f"split.clients: wanted fewer than {SERVER_PARTY}, each client needs seeds of its own"
    if method.pull_after is not None and not method.server_model:
        yield "method.server_model: wanted true with method.pull_after (clients pull the server's model)"
    if method.private_seed_shift and method.server_model:
        yield "method.server_model: the server cannot follow privately shifted seeds; set one of the two to false"
    if method.revert == "add_back":
        if method.replicas != "per_client":
            yield 'method.replicas: wanted "per_client" with revert = "add_back" (every client drifts by itself)'
        if method.momentum:
            yield 'method.momentum: wanted 0 with revert = "add_back" (Eq. (10) is for plain SGD)'
