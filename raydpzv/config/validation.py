"""Settings that contradict one another; what each setting may be alone is said in `spec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydpzv.config.scenario import Arrivals, Dpzv, Scenario, VerticalScenario
from raydpzv.config.timing import opponent, stands_still
from raydpzv.config.validation_rows import opponents
from raydpzv.data.sources import SOURCES
from raydpzv.errors import SpecError, suggest
from raydpzv.settings.fields import MOST, per_client


def check(spec: VerticalScenario, where: str) -> None:
    """Raise SpecError for the first contradiction."""
    limits = (spec.budget.updates, spec.budget.seconds, spec.budget.bytes, spec.budget.epsilon)
    shares = {
        "clock.compute": spec.clock.compute,
        "arrivals.rate": spec.arrivals.rate,
        "network.latency": spec.network.latency,
        "network.up": spec.network.up,
        "network.down": spec.network.down,
        "resources.client_cpus": spec.resources.client_cpus,
        "resources.client_gpus": spec.resources.client_gpus,
    }
    for complaint in (
        *data(spec),
        *lengths(shares, spec.split.clients),
        *(opponents(spec) if opponent(spec) else _privacy(spec)),
        *budget(limits),
        *_epsilon_budget(spec),
        *arrivals(spec),
        *_end(spec),
    ):
        raise SpecError(f"{complaint} in {where}")


def data(spec: Scenario) -> Iterator[str]:
    """Complain of an unknown data set."""
    name = spec.data.source
    if name not in SOURCES:
        yield f'data.source: unknown data set "{name}". {suggest(name, SOURCES)}Known: {", ".join(SOURCES)};'


def lengths(values: Mapping[str, Any], clients: int) -> Iterator[str]:
    """Complain of lists that do not have one number per client."""
    for name, value in values.items():
        if isinstance(value, tuple) and len(value) != clients:
            yield f"{name}: wanted one number or {clients} (split.clients), got a list of {len(value)}"


def _privacy(spec: VerticalScenario) -> Iterator[str]:
    privacy = spec.privacy
    if privacy.mode == "none":
        for name in ("epsilon", "sigma", "delta"):
            if getattr(privacy, name) is not None:
                yield f'privacy.{name}: has no meaning with privacy.mode = "none"; set mode = "paper" or leave it out'
        return
    if not isinstance(spec.method, Dpzv):
        yield f'privacy.mode: "{spec.method.name}" adds no noise; use mode = "none", or method.name = "dpzv"'
    if (privacy.epsilon is None) == (privacy.sigma is None):
        yield 'privacy: wanted either epsilon or sigma with mode = "paper"; give exactly one'
    if privacy.delta is None:
        yield "privacy.delta: wanted with ε or σ (an ε without δ means nothing here); give a number below 1/rows"
    if privacy.clip is None:
        yield "privacy.clip: wanted with noise (without a clip nothing bounds one record's part); give a number above 0"
    if privacy.epsilon is not None and spec.budget.updates is None:
        yield "budget.updates: wanted with privacy.epsilon (the calibration divides ε among the planned updates)"


def budget(limits: Sequence[float | None]) -> Iterator[str]:
    """Complain of a run that never ends."""
    if all(limit is None for limit in limits):
        yield "budget: wanted at least one limit (updates, seconds, bytes, ...); without one the run never ends"


def _epsilon_budget(spec: VerticalScenario) -> Iterator[str]:
    budget = spec.budget
    if opponent(spec):
        return
    if budget.adversary == "server":
        yield 'budget.adversary: "server" is trusted by this method, no ε bounds it; use "client" or "paper"'
    if budget.epsilon is not None and spec.privacy.mode == "none":
        yield 'budget.epsilon: has no meaning with privacy.mode = "none"; set mode = "paper" or leave it out'
    if budget.epsilon is not None and spec.privacy.mode != "none" and spec.privacy.noise == "seeded":
        yield 'budget.epsilon: seeded noise proves no ε, so none can be kept; set noise = "system" or drop it'
    if (
        budget.epsilon is not None
        and budget.adversary == "external"
        and getattr(spec.method, "server", "") != "frozen"
    ):
        yield 'budget.adversary: "external" sees the final head; only method.server = "frozen" leaves it an ε'
    if budget.adversary == "external" and getattr(spec.method, "batches", "") != "poisson":
        yield 'budget.adversary: "external" needs method.batches = "poisson"; without secret coins it is the client\'s'


def arrivals(spec: Scenario) -> Iterator[str]:
    """Complain of what contradicts itself in when clients activate and how long they compute."""
    given = spec.arrivals
    if (given.kind == "trace") != (given.file is not None):
        yield 'arrivals.file: goes with arrivals.kind = "trace", and a trace needs it'
    if given.kind == "immediate":
        if not isinstance(spec, VerticalScenario):
            yield (
                'arrivals.kind: "immediate" is for vertical methods (rounds know no activations, and clients that pull '
                'need a clock); use "poisson", "constant" or "trace"'
            )
        if given.rate != Arrivals().rate:
            yield 'arrivals.rate: has no meaning with arrivals.kind = "immediate", clock.compute sets the pace; drop it'
    yield from _quantum(spec)


def _quantum(spec: Scenario) -> Iterator[str]:
    clock = spec.clock
    if (clock.compute_law == "poisson") != (clock.compute_quantum is not None):
        yield 'clock.compute_quantum: goes with clock.compute_law = "poisson", which needs it'
    if clock.compute_quantum is None:
        return
    least = max(per_client(clock.compute, 1)) / MOST
    if clock.compute_quantum < least:
        yield (
            f"clock.compute_quantum: wanted at least {least:g} (clock.compute / {MOST:g}), "
            f"got {clock.compute_quantum:g}"
        )


def _end(spec: VerticalScenario) -> Iterator[str]:
    """Complain of a budget of seconds that is never spent."""
    limits = (spec.budget.updates, spec.budget.bytes, spec.budget.epsilon)
    if all(limit is None for limit in limits) and stands_still(spec):
        yield (
            "budget.updates: wanted, since this run never ends otherwise: clients that begin immediately and need no "
            "clock.compute, clock.service or network delays take no simulated time"
        )
