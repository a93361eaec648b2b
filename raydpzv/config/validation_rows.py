"""Settings of DPZV's opponents that contradict one another."""

from __future__ import annotations

from collections.abc import Iterator

from raydpzv.config.scenario import VerticalScenario
from raydpzv.config.spec_opponents import Vafl
from raydpzv.config.timing import noised, opponent


def opponents(spec: VerticalScenario) -> Iterator[str]:
    """Complain of what does not go together."""
    if isinstance(spec.method, Vafl):
        yield from _synchrony(spec.method, spec.split.clients)
    yield from _noise(spec)
    yield from _budget(spec)


def _synchrony(method: Vafl, clients: int) -> Iterator[str]:
    if (method.synchrony == "t-synchronous") != (method.wait_for is not None):
        yield 'method.wait_for: goes with synchrony = "t-synchronous", which needs it'
    if method.wait_for is not None and method.wait_for > clients:
        yield f"method.wait_for: wanted at most {clients} (split.clients), got {method.wait_for}"
    if method.max_delay is not None and method.synchrony != "asynchronous":
        yield 'method.max_delay: goes with synchrony = "asynchronous"'


def _noise(spec: VerticalScenario) -> Iterator[str]:
    privacy, method = spec.privacy, spec.method
    layers = isinstance(method, Vafl) and bool(method.layer_noise)
    if privacy.mode == "none":
        for name in ("epsilon", "sigma", "delta"):
            if getattr(privacy, name) is not None:
                yield f'privacy.{name}: has no meaning with privacy.mode = "none"; set mode = "paper" or leave it out'
        if layers:
            yield 'method.layer_noise: has no meaning with privacy.mode = "none"; set mode = "paper" or leave it out'
        return
    if isinstance(method, Vafl) and layers and method.noise_on == "gradient":
        yield 'method.layer_noise: goes with method.noise_on = "embedding"'
    if (privacy.epsilon is None) == (privacy.sigma is None):
        yield 'privacy: wanted either epsilon or sigma with mode = "paper"; give exactly one'
    if privacy.epsilon is not None:
        if privacy.clip is None:
            yield "privacy.clip: wanted with privacy.epsilon (without a clip no ε follows); give a number above 0"
        if spec.budget.updates is None:
            yield "budget.updates: wanted with privacy.epsilon (the calibration divides ε among the planned updates)"
        found = opponent(spec)
        if spec.arrivals.kind == "trace" and found is not None and noised(found) == "embedding":
            yield (
                'privacy.epsilon: with arrivals.kind = "trace" no share of the updates is planned for any client, so '
                "that no noise on embeddings can be calibrated; give privacy.sigma"
            )
        if isinstance(method, Vafl) and method.max_delay is not None and method.noise_on == "embedding":
            yield "privacy.epsilon: queries (method.max_delay) add releases that no plan counts; give privacy.sigma"
    if privacy.delta is None and (privacy.epsilon is not None or privacy.clip is not None):
        yield "privacy.delta: wanted with a clip (an ε without δ means nothing here); give a number below 1/rows"


def _budget(spec: VerticalScenario) -> Iterator[str]:
    budget, privacy, method = spec.budget, spec.privacy, opponent(spec)
    if budget.epsilon is None or method is None:
        return
    if privacy.mode == "none":
        yield 'budget.epsilon: has no meaning with privacy.mode = "none"; set mode = "paper" or leave it out'
    if privacy.noise == "seeded":
        yield 'budget.epsilon: seeded noise proves no ε, so none can be kept; set noise = "system" or drop it'
    if privacy.clip is None:
        yield "budget.epsilon: without privacy.clip no ε follows, so none can be kept; set it or drop the budget"
    place = noised(method)
    wanted = "server" if place == "embedding" else "client"
    if budget.adversary not in (wanted, "paper"):
        yield f'budget.adversary: noise on the {place} is against "{wanted}"; use that or "paper"'
    if place == "gradient" and isinstance(method, Vafl) and method.synchrony != "asynchronous":
        yield 'budget.epsilon: with method.noise_on = "gradient" goes with synchrony = "asynchronous"'
    if place == "gradient" and isinstance(method, Vafl) and method.max_delay is not None:
        yield 'budget.epsilon: with method.noise_on = "gradient" goes without method.max_delay'
