"""What privacy.mode = "proved" wants of a scenario: the premises of its proof, each looked at
before anything runs.

The proof speaks of the table as loaded. So nothing that is no release may depend on another
record's values: not the scaling, not the split, not the head, not which rows are drawn or when the
run ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydpzv.config.public_lists import fitted, read_off
from raydpzv.config.scenario import VerticalScenario
from raydpzv.config.timing import sizes_in_order
from raydpzv.methods.descriptor import NoisePlan

ALONE = (
    "noise_multiplier",
    "relation",
    "adversary",
    "head_clip",
    "head_share",
    "permit_large_delta",
)
"""Settings of [privacy] that have a meaning in this mode alone."""


def proof_contradictions(spec: VerticalScenario, noise: NoisePlan | None) -> Iterator[str]:
    """Yield a sentence for each setting that does not go with the mode, or with others in it."""
    if noise is not None and noise.memoized:
        yield from _memoized(spec)
        return
    if spec.privacy.adversary == "server":
        yield (
            'privacy.adversary: "server" wants frozen clients, whose rows are noised once '
            '(method.name = "frozen", method.server = "discriminant"); got clients that learn, '
            f'"{spec.method.name}", or no noise on their rows'
        )
        return
    if noise is None or not noise.proved_heads:
        yield (
            'privacy.mode: "proved" is for method.name = "dpzv", or "frozen" with method.server = '
            f'"dp_sgd" or "discriminant", got "{spec.method.name}"; use mode = '
            f'"{"none" if noise is None else "paper"}"'
        )
        return
    yield from _head(spec, noise)
    yield from _noise(spec)
    yield from _two_of_three(spec)
    yield from _table(spec)
    if spec.budget.adversary != "client":
        yield (
            'budget.adversary: wanted "client" with privacy.mode = "proved", got '
            f'"{spec.budget.adversary}"; whom the '
            "noise is for is privacy.adversary"
        )
    if spec.privacy.adversary == "external":
        yield from outsider_contradictions(spec, "privacy.adversary")


def _memoized(spec: VerticalScenario) -> Iterator[str]:
    """Frozen clients that noise every row once, against the server."""
    privacy = spec.privacy
    if privacy.adversary != "server":
        yield (
            f'privacy.adversary: wanted "server" with method.name = "{spec.method.name}", whose '
            f'clients add noise and get nothing back, got "{privacy.adversary or "client"}"'
        )
    if privacy.relation not in (None, "replace"):
        yield (
            'privacy.relation: wanted "replace" with privacy.adversary = "server", got '
            f'"{privacy.relation}": one '
            "record's features at one client are protected, labels are the server's"
        )
    yield from _noise(spec)
    if (privacy.epsilon is None) == (privacy.noise_multiplier is None):
        yield (
            'privacy: wanted either epsilon or noise_multiplier with adversary = "server" (rows '
            "are noised once, "
            "however many the updates); give exactly one"
        )
    for name in ("head_clip", "head_share"):
        if getattr(privacy, name) is not None:
            yield f'privacy.{name}: goes with method.server = "dp_sgd"; leave it out'
    if spec.budget.epsilon is not None:
        yield "budget.epsilon: rows are noised once, so that no update adds to ε; leave it out"
    yield from _table(spec)


def _head(spec: VerticalScenario, noise: NoisePlan) -> Iterator[str]:
    privacy, head = spec.privacy, noise.head
    if head not in noise.proved_heads:
        known = ", ".join(f'"{name}"' for name in noise.proved_heads)
        yield (
            f'method.server: "{head}" trains the head on labels without noise, so that nothing is '
            f'proved; with privacy.mode = "proved" use one of {known}'
        )
    if head == "frozen" and spec.model.head != "sum":
        yield (
            f'model.head: wanted "sum" with method.server = "frozen", got "{spec.model.head}", '
            'random weights that nobody trains; use model.head = "sum", or method.server = "joint"'
        )
    given = {"privacy.head_clip": privacy.head_clip, "privacy.head_share": privacy.head_share}
    if noise.head_alone:
        for name in (name for name, value in given.items() if value is not None):
            yield (
                f"{name}: the head's gradient is all that is released here, cut to privacy.clip; "
                "leave it out"
            )
        return
    for name in (name for name, value in given.items() if value is not None and head != "dp_sgd"):
        yield f'{name}: goes with method.server = "dp_sgd", not "{head}"; leave it out or set that'
    if head == "dp_sgd" and privacy.head_clip is None:
        yield (
            'privacy.head_clip: wanted with method.server = "dp_sgd"; give the norm of a gradient,'
            " above 0"
        )


def _noise(spec: VerticalScenario) -> Iterator[str]:
    privacy = spec.privacy
    if privacy.noise == "seeded":
        yield (
            "privacy.noise: seeded noise proves nothing, since anyone with the seed subtracts it;"
            ' use "system"'
        )
    if privacy.sigma is not None:
        yield (
            'privacy.sigma: has no meaning with mode = "proved"; give privacy.noise_multiplier, of'
            " one record"
        )
    if privacy.clip is None:
        yield (
            "privacy.clip: wanted a number above 0, since with noise nothing else bounds one "
            "record's part"
        )


def _two_of_three(spec: VerticalScenario) -> Iterator[str]:
    privacy = spec.privacy
    given = {
        "privacy.epsilon": privacy.epsilon,
        "privacy.noise_multiplier": privacy.noise_multiplier,
        "budget.updates": spec.budget.updates,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 2:
        got = ", ".join(named) or "none"
        yield f"privacy: wanted any two of {', '.join(given)} (the third is worked out), got {got}"


def _table(spec: VerticalScenario) -> Iterator[str]:
    data = spec.data
    listed = {found.setting for found in read_off(data, spec.goal)}
    public = data.scale == "public"
    missing = [*listed, *(["data.centre"] if public and data.centre is None else [])]
    missing += ["data.spread"] if public and data.spread is None else []
    for found in fitted(data, spec.goal):
        others = (
            [name for name in missing if name != found.setting] if found.setting in listed else []
        )
        also = f"; missing as well: {', '.join(others)}" if others else ""
        yield f"{found.setting}: {found.how}, so that one record moves others; {found.cure}{also}"


def outsider_contradictions(spec: VerticalScenario, setting: str) -> Iterator[str]:
    """Yield the premises that fail of amplification against anyone who sees no row numbers;
    setting: which names it.
    """
    method, who = spec.method, f'{setting}: "external" needs'
    if getattr(method, "batches", "") != "poisson":
        got = f', got "{method.batches}"' if hasattr(method, "batches") else ""
        yield f'{who} method.batches = "poisson"{got}; without secret coins it is the client\'s'
    elif getattr(method, "coins", "") == "seed":
        yield f'{who} method.coins = "system"; coins from the seed can be guessed with it'
    if limits := spec.budget.other_limits:
        yield f"{who} a run that ends by its number of updates; leave out {' and '.join(limits)}"
    if timed := sizes_in_order(spec):
        yield (
            f"{who} an order of updates that does not depend on how large batches are; leave out "
            f"{timed}"
        )
