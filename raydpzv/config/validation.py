"""Settings that contradict one another; what each setting may be alone is said in `settings` and in
the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from raydpzv.config.proved import ALONE, outsider_contradictions, proof_contradictions
from raydpzv.config.public_lists import of_numbers
from raydpzv.config.scenario import AnyScenario, HorizontalScenario, VerticalScenario
from raydpzv.config.timing import stands_still
from raydpzv.errors import SpecError, suggest
from raydpzv.foreign import is_foreign
from raydpzv.methods.descriptor import NoisePlan
from raydpzv.methods.schedule import unordered
from raydpzv.registry import DATA_SOURCES, METHODS
from raydpzv.settings.bounds import MOST
from raydpzv.settings.fields import Label, per_client
from raydpzv.settings.party_names import label
from raydpzv.settings.sections import ArrivalsSection, CommonSections
from raydpzv.settings.sections_horizontal import HorizontalPrivacySection

_OF_NOISE = ("epsilon", "multiplier", "delta", "against")


def check(spec: AnyScenario, origin: str) -> None:
    """Raise SpecError for the first contradiction; origin: "(from ...)"."""
    complaints = _COMPLAINTS[spec.kind](spec)
    for complaint in chain(unordered(spec.method), complaints):
        raise SpecError(f"{complaint} {origin}")


def _vertical(spec: VerticalScenario) -> Iterator[str]:
    noise = spec.descriptor.noise(spec.method)
    limits = (_updates(spec), spec.budget.seconds, spec.budget.bytes, spec.budget.epsilon)
    yield from _losses(spec)
    resources = {
        "client_cpus": spec.resources.client_cpus,
        "client_gpus": spec.resources.client_gpus,
    }
    if spec.loss == "cox":
        yield from _single_records(spec, noise)
    yield from _lengths(
        _per_client(spec) | {f"resources.{name}": value for name, value in resources.items()},
        spec.split.clients,
    )
    yield from _parties(spec)
    yield from _party_weights(spec)
    yield from spec.descriptor.contradictions(spec.method, spec)
    if spec.method.coins == "system" and spec.method.batches != "poisson":
        yield (
            'method.coins: "system" goes with method.batches = "poisson", got '
            f'"{spec.method.batches}"'
        )
    if spec.privacy.mode == "proved":
        yield from proof_contradictions(spec, noise)
    else:
        yield from _privacy(spec, noise)
        yield from _epsilon_budget(spec, noise)
    yield from _budget(limits)
    yield from _arrivals(spec)
    yield from _end(spec)
    yield from _scaling(spec)
    yield from _other(spec)
    yield from _cells(spec)


def _horizontal(spec: HorizontalScenario) -> Iterator[str]:
    limits = (spec.budget.updates, spec.budget.seconds, spec.budget.bytes, spec.budget.epsilon)
    yield from _losses(spec)
    yield from _of_own_models(spec, [spec.model.kind])
    yield from _engine(spec)
    yield from _users(spec)
    yield from user_contradictions(spec)
    yield from _lengths(_per_client(spec), spec.split.clients)
    yield from _budget(limits)
    yield from _end_of_rounds(spec)
    if spec.arrivals.kind == "immediate":
        yield (
            'arrivals.kind: "immediate" is for vertical methods (rounds know no activations, and '
            'clients that pull need a clock); use "poisson", "constant" or "trace"'
        )
    yield from _arrivals(spec)
    yield from _clock(spec)
    yield from spec.descriptor.contradictions(spec.method, spec)
    yield from _cohort(spec)
    yield from _scaling(spec)
    yield from _other(spec)
    yield from _cells(spec)


def _single_records(spec: VerticalScenario, noise: NoisePlan | None) -> Iterator[str]:
    """Complain of what wants the loss of a record by itself, with Cox's, which compares the records
    of a batch.

    One record moves the terms of all events before its own time. So a bound on each term bounds no
    record's part in their sum, and the smallest sensitivity that follows from a clip C is that of
    the whole batch.
    """
    if spec.privacy.mode != "none":
        yield (
            'privacy.mode: wanted "none" with survival times (model.loss = "cox"), got '
            f'"{spec.privacy.mode}": a '
            "record moves the losses of others in its batch, so that a clip of each does not bound "
            "its part and no ε follows"
        )
    elif spec.privacy.clip is not None and noise is not None and noise.on == "mean":
        yield (
            "privacy.clip: bounds the slope of each record, and with survival times (model.loss = "
            '"cox") slopes are '
            "the batch's; leave it out"
        )


def _losses(spec: CommonSections) -> Iterator[str]:
    """Complain of a loss that its data have no labels for, and of settings of functions that are
    not there.
    """
    usual = DATA_SOURCES[spec.data.source].loss
    if "cox" in (usual, spec.loss) and usual != spec.loss and not is_foreign(spec.data.source):
        has = "survival times" if usual == "cox" else "no survival times"
        yield (
            f'model.loss: data.source = "{spec.data.source}" has {has}, got "{spec.loss}"; '
            f"{'leave it out' if usual == 'cox' else 'use another loss, or such data'}"
        )
    if spec.targets and not is_foreign(spec.loss):
        yield (
            f'model.targets: goes with a loss of your own, "{spec.loss}" says what it takes; leave'
            " it out"
        )
    for word in getattr(getattr(spec, "privacy", None), "trust", None) or ():
        # one base scenario may compare methods, your own and others
        if word not in (*spec.premises, "method"):
            own = "model.weights" if word == "weights" else f"a {word} of your own"
            yield (
                f'privacy.trust: "{word}" goes with {own}, which this scenario does not have; leave'
                " it out"
            )
    timed = spec.loss == "cox"
    of_classes: dict[str, object] = {"data.classes": spec.data.labels}
    if timed or of_numbers(spec.goal):
        of_classes |= {} if timed else {"users.labels": _most_labels(spec)}
        for setting in (name for name, value in of_classes.items() if value is not None):
            kind = "times" if timed else "numbers"
            yield (
                f'{setting}: is about classes, and model.loss = "{spec.loss}" learns {kind}; leave'
                " it out"
            )
    if spec.evaluate.lower and not spec.evaluate.metrics:
        yield "evaluate.lower: names measures of evaluate.metrics, which is not given; leave it out"


def _most_labels(spec: CommonSections) -> int | None:
    return getattr(getattr(spec, "users", None), "labels", None)


def _users(spec: HorizontalScenario) -> Iterator[str]:
    """Complain of users without their split, and of the split without users."""
    if (spec.users is None) != (spec.split.how != "users"):
        yield (
            f'split.how: "users" goes with a table [users] and needs it, got "{spec.split.how}" '
            f"{'without' if spec.users is None else 'with'} one; give both or neither"
        )


def _parties(spec: VerticalScenario) -> Iterator[str]:
    """Complain of named parties that the rest of the scenario contradicts."""
    split, data = spec.split, spec.data
    if split.parties is None:
        return
    if split.how != "columns":
        yield f'split.parties: wanted split.how = "columns", got "{split.how}"; leave split.how out'
    if split.clients != len(split.parties):
        yield (
            f"split.clients: wanted {len(split.parties)}, the number of parties in split.parties, "
            f"got {split.clients}; leave split.clients out"
        )
    if split.columns is not None:
        yield "split.columns: wanted split.parties or split.columns, got both; leave one out"
    held_apart = [("data.target", column) for column in data.target_columns]
    for setting, apart in [*held_apart, ("data.time", data.time), ("data.groups", data.groups)]:
        for party, columns in split.parties.items():
            if apart in columns:
                yield (
                    f'split.parties: wanted features for "{party}", got "{apart}", which {setting} '
                    "names; take it out "
                    "of the party"
                )


def _party_weights(spec: VerticalScenario) -> Iterator[str]:
    """Complain of weights that belong to nobody, or that another setting overwrites."""
    given, clients = spec.model.weights or {}, range(spec.split.clients)
    known = [*(label(m, spec.party_names) for m in clients), *map(str, clients), "server"]
    for party in given:
        if party not in known:
            names = ", ".join(spec.party_names) or f"0 to {len(clients) - 1}"
            yield (
                f'model.weights: wanted {names} or server, got "{party}". {suggest(party, known)}'.rstrip()
            )
    if given.keys() - {"server"} and spec.model.initial != "random":
        yield (
            f'model.initial: wanted "random" with weights of a party, got "{spec.model.initial}";'
            " leave it out"
        )
    if spec.model.lora and spec.model.initial != "random":
        yield (
            f'model.initial: wanted "random" with model.lora, got "{spec.model.initial}"; leave it '
            "out"
        )
    for party in spec.model.integers if isinstance(spec.model.integers, tuple) else ():
        if party not in known[:-1]:
            hint = suggest(party, known[:-1])
            yield f'model.integers: wanted parties, got "{party}". {hint}'.rstrip()
    yield from _of_own_models(spec, [spec.model.bottom_of(m) for m in clients])
    yield from _engine(spec)


def _of_own_models(spec: AnyScenario, models: Sequence[str]) -> Iterator[str]:
    """Complain of settings of a user's models, for those of the program; models: their names."""
    for setting in ("lora", "folder", "integers"):
        if getattr(spec.model, setting) is not None and not any(map(is_foreign, models)):
            yield (
                f'model.{setting}: wanted a model of your own ("module:attribute"), got '
                f'"{models[0]}", which the program draws; leave it out'
            )


def _engine(spec: AnyScenario) -> Iterator[str]:
    if spec.model.weights and spec.model.engine == "compiled":
        yield 'model.engine: wanted "torch" with model.weights, got "compiled"; leave engine out'


def _per_client(spec: CommonSections) -> dict[str, Any]:
    return {
        "clock.compute": spec.clock.compute,
        "arrivals.rate": spec.arrivals.rate,
        "network.latency": spec.network.latency,
        "network.up": spec.network.up,
        "network.down": spec.network.down,
    }


def _lengths(values: Mapping[str, Any], clients: int) -> Iterator[str]:
    """Complain of lists that do not have one number per client."""
    for name, value in values.items():
        if isinstance(value, tuple) and len(value) != clients:
            yield (
                f"{name}: wanted one number or {clients} (split.clients), got a list of "
                f"{len(value)}"
            )


def _updates(spec: VerticalScenario) -> float | None:
    """The limit on updates, given or worked out of ε and the noise multiplier."""
    privacy = spec.privacy
    solved = privacy.mode == "proved" and None not in (privacy.epsilon, privacy.noise_multiplier)
    return 1 if solved else spec.budget.updates


def _privacy(spec: VerticalScenario, noise: NoisePlan | None) -> Iterator[str]:
    privacy = spec.privacy
    for name in ALONE:
        if getattr(privacy, name) is not None:
            or_proved = (
                " or set that"
                if noise is not None and (noise.proved_heads or noise.memoized)
                else ""
            )
            yield (
                f'privacy.{name}: goes with privacy.mode = "proved", not "{privacy.mode}"; leave it'
                f" out{or_proved}"
            )
    if privacy.mode == "none":
        for name in ("epsilon", "sigma", "delta"):
            if getattr(privacy, name) is not None:
                yield (
                    f'privacy.{name}: has no meaning with privacy.mode = "none";'
                    f" {_noised_or_without(noise)}"
                )
        return
    if noise is None:
        yield (
            f'privacy.mode: "{spec.method.name}" adds no noise; use mode = "none", or method.name ='
            ' "dpzv"'
        )
    elif noise.memoized:
        yield (
            f'privacy.mode: "{spec.method.name}" adds no noise with mode = "paper"; use "proved" or'
            ' "none"'
        )
    if (privacy.epsilon is None) == (privacy.sigma is None):
        yield 'privacy: wanted either epsilon or sigma with mode = "paper"; give exactly one'
    yield from _on_means(spec) if noise is None or noise.on == "mean" else _on_rows(spec, noise)
    if privacy.epsilon is not None and spec.budget.updates is None:
        yield (
            "budget.updates: wanted with privacy.epsilon (the calibration divides ε among the "
            "planned updates)"
        )


def _noised_or_without(noise: NoisePlan | None) -> str:
    """Return what helps a setting of noise in a run without: a mode in which the method adds some,
    if it has one.
    """
    paper = noise is not None and not noise.memoized
    return 'set mode = "paper" or leave it out' if paper else "leave it out"


def _on_means(spec: VerticalScenario) -> Iterator[str]:
    if spec.privacy.delta is None:
        yield (
            "privacy.delta: wanted with ε or σ (an ε without δ means nothing here); give a number "
            "below 1/rows"
        )
    if spec.privacy.clip is None:
        yield (
            "privacy.clip: wanted a number above 0, since with noise nothing else bounds one "
            "record's part"
        )


def _on_rows(spec: VerticalScenario, noise: NoisePlan) -> Iterator[str]:
    privacy = spec.privacy
    if privacy.epsilon is not None and privacy.clip is None:
        yield (
            "privacy.clip: wanted with privacy.epsilon (without a clip no ε follows); give a number"
            " above 0"
        )
    if privacy.epsilon is not None and spec.arrivals.kind == "trace" and noise.on == "embedding":
        yield (
            'privacy.epsilon: with arrivals.kind = "trace" no share of the updates is planned for '
            "any client, so "
            "that no noise on embeddings can be calibrated; give privacy.sigma"
        )
    if privacy.delta is None and (privacy.epsilon is not None or privacy.clip is not None):
        yield (
            "privacy.delta: wanted with a clip (an ε without δ means nothing here); give a number "
            "below 1/rows"
        )


def _budget(limits: Sequence[float | None]) -> Iterator[str]:
    """Complain of a run that never ends."""
    if all(limit is None for limit in limits):
        yield (
            "budget: wanted at least one limit (updates, seconds, bytes, ...); without one the run "
            "never ends"
        )


def _epsilon_budget(spec: VerticalScenario, noise: NoisePlan | None) -> Iterator[str]:
    budget, privacy = spec.budget, spec.privacy
    if noise is None or noise.on == "mean":
        yield from _budget_of_means(spec, noise)
    if budget.epsilon is None:
        return
    if privacy.mode == "none":
        yield (
            'budget.epsilon: has no meaning with privacy.mode = "none";'
            f" {_noised_or_without(noise)}"
        )
    if privacy.noise == "seeded":
        yield (
            'budget.epsilon: seeded noise proves no ε, so none can be kept; set noise = "system" or'
            " drop it"
        )
    if noise is not None and noise.on != "mean":
        yield from _budget_of_rows(spec, noise)


def _budget_of_means(spec: VerticalScenario, noise: NoisePlan | None) -> Iterator[str]:
    budget = spec.budget
    if budget.adversary == "server":
        yield (
            'budget.adversary: "server" is trusted by this method, no ε bounds it; use "client" or '
            '"paper"'
        )
    if (
        budget.epsilon is not None
        and budget.adversary == "external"
        and (noise is None or noise.hidden)
    ):
        yield (
            'budget.adversary: "external" sees the final head; only method.server = "frozen" leaves'
            " it an ε"
        )
    if budget.adversary == "external":
        yield from outsider_contradictions(spec, "budget.adversary")


def _budget_of_rows(spec: VerticalScenario, noise: NoisePlan) -> Iterator[str]:
    if spec.privacy.clip is None:
        yield (
            "budget.epsilon: without privacy.clip no ε follows, so none can be kept; set it or drop"
            " the budget"
        )
    wanted = "server" if noise.on == "embedding" else "client"
    if noise.hidden and wanted == "server":
        if spec.budget.adversary != "paper":
            yield (
                "budget.adversary: nothing is proved against anyone where held-out embeddings "
                "leave without noise, "
                'from models trained on raw features; use "paper"'
            )
    elif spec.budget.adversary not in (wanted, "paper"):
        yield (
            f'budget.adversary: noise on the {noise.on} is against "{wanted}"; use that or "paper"'
        )


def _arrivals(spec: CommonSections) -> Iterator[str]:
    """Complain of what contradicts itself in when clients activate and how long they compute."""
    given = spec.arrivals
    if (given.kind == "trace") != (given.file is not None):
        yield 'arrivals.file: goes with arrivals.kind = "trace", and a trace needs it'
    if given.kind == "immediate" and given.rate != ArrivalsSection().rate:
        yield (
            'arrivals.rate: has no meaning with arrivals.kind = "immediate", clock.compute sets the'
            " pace; drop it"
        )
    yield from _quantum(spec)


def _quantum(spec: CommonSections) -> Iterator[str]:
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
    limits = (_updates(spec), spec.budget.bytes, spec.budget.epsilon)
    if all(limit is None for limit in limits) and stands_still(spec):
        yield (
            "budget.updates: wanted, since this run never ends otherwise: clients that begin "
            "immediately and need no clock.compute, clock.service or network delays take no "
            "simulated time"
        )


def _end_of_rounds(spec: HorizontalScenario) -> Iterator[str]:
    """Complain of budgets that such a run never spends."""
    given, clock, network = spec.budget, spec.clock, spec.network
    if given.updates is not None or given.epsilon is not None:
        return
    delays = (clock.compute, clock.service, network.latency)
    instant = not any(max(d) if isinstance(d, tuple) else d for d in delays)
    timeless = (
        instant
        and network.up is None
        and network.down is None
        and not spec.descriptor.pulls(spec.method)
    )
    silent = spec.descriptor.agent
    if (given.seconds is None or timeless) and (given.bytes is None or silent):
        yield (
            "budget.updates: wanted, since this run never ends otherwise: rounds take no simulated "
            "time without clock.compute, clock.service or network delays, and an agent alone sends "
            "no bytes"
        )


def _scaling(spec: CommonSections) -> Iterator[str]:
    given = {"data.centre": spec.data.centre, "data.spread": spec.data.spread}
    public = spec.data.scale == "public"
    for name in (name for name, value in given.items() if (value is None) == public):
        if public:
            yield (
                f'{name}: wanted with data.scale = "public"; give one number, or one per column (a '
                "list, or a table by "
                "name)"
            )
        else:
            yield (
                f'{name}: goes with data.scale = "public", not "{spec.data.scale}"; leave it out or'
                " set that"
            )
    centre, spread = given.values()
    if (
        isinstance(centre, Mapping)
        and isinstance(spread, Mapping)
        and (odd := set(centre) ^ set(spread))
    ):
        yield (
            f'data.centre, data.spread: wanted the same columns in both, got "{min(odd)}" in one; '
            "add it to the other"
        )


def _is_listed(value: Label | float, values: Sequence[Label]) -> bool:
    return any(type(each) is type(value) and each == value for each in values)


def _cells(spec: CommonSections) -> Iterator[str]:
    """Complain of settings on a table's cells that contradict each other."""
    data = spec.data
    for column in data.dates or ():
        if column in data.category_columns:
            yield f'data.dates: "{column}" is in data.categories too; leave it out of either'
    for column, constant in data.constants.items():
        values = data.public_categories.get(column)
        if values is not None and not _is_listed(constant, values):
            yield (
                f"data.missing: wanted a value of data.categories.{column}, got {constant!r}; add "
                "it there"
            )


def _other(spec: CommonSections) -> Iterator[str]:
    """Complain of a value for all others that no public list has."""
    data, other = spec.data, spec.data.other
    lists = [*data.public_categories.values(), *([data.labels] if data.labels else [])]
    if other is not None and not any(_is_listed(other, values) for values in lists):
        yield (
            "data.other: wanted a value that data.classes or a list of data.categories has, got "
            f"{other!r}; add it there or leave it out"
        )


def _clock(spec: HorizontalScenario) -> Iterator[str]:
    if spec.clock.kind == "wall" and not spec.descriptor.pulls(spec.method):
        yield (
            'clock.kind: "wall" is for clients that wake by themselves (method.asynchronous = '
            'true); rounds wait for everybody, use "virtual" (with clock.compute and network for '
            "slow clients)"
        )


def _cohort(spec: HorizontalScenario) -> Iterator[str]:
    clients = spec.split.clients
    if (cohort := spec.descriptor.cohort(spec.method, clients)) > clients:
        yield (
            f"method.cohort: wanted at most {clients} (split.clients), got {cohort}; set "
            f"method.cohort={clients}"
        )


def user_contradictions(spec: HorizontalScenario) -> Iterator[str]:
    """Yield a sentence for each setting that does not go with the method, or with others."""
    privacy = spec.privacy or HorizontalPrivacySection()
    if spec.descriptor.users(spec.method) is None:
        yield from _unprotected(spec)
        return
    name = spec.method.name
    if spec.users is None:
        yield (
            f'users: wanted with method.name = "{name}", which protects users whose records lie in '
            'several silos; add the table, and split.how = "users"'
        )
    if privacy.clip is None:
        yield (
            f'privacy.clip: wanted with method.name = "{name}", whose vectors are clipped; give a'
            " number above 0"
        )
    if privacy.mode == "none":
        for setting in _OF_NOISE:
            if getattr(privacy, setting) is not None:
                yield (
                    f'privacy.{setting}: has no meaning with privacy.mode = "none"; set mode = '
                    '"user" or leave it out'
                )
        if spec.budget.epsilon is not None:
            yield (
                'budget.epsilon: has no meaning with privacy.mode = "none"; set mode = "user" or'
                " leave it out"
            )
        return
    yield from _noised(spec, privacy)


def _unprotected(spec: HorizontalScenario) -> Iterator[str]:
    known = ", ".join(name for name, method in METHODS.items() if method.users(method.config()))
    for table, given in (("privacy", spec.privacy), ("budget.epsilon", spec.budget.epsilon)):
        if given is not None:
            yield (
                f"{table}: goes with methods that protect users ({known}), got "
                f'"{spec.method.name}"; choose one of '
                "them, or leave it out"
            )


def _noised(spec: HorizontalScenario, privacy: HorizontalPrivacySection) -> Iterator[str]:
    if privacy.delta is None:
        yield (
            "privacy.delta: wanted with ε or a multiplier (an ε without δ means nothing); give a "
            "number below 1/users"
        )
    if (privacy.epsilon is None) == (privacy.multiplier is None):
        got = "neither" if privacy.epsilon is None else "both"
        yield (
            f'privacy: wanted either epsilon or multiplier with mode = "user", got {got}; give'
            " exactly one"
        )
    if privacy.epsilon is not None and spec.budget.updates is None:
        yield (
            "budget.updates: wanted with privacy.epsilon (the noise follows from the planned number"
            " of releases)"
        )
    if spec.budget.epsilon is not None and privacy.noise == "seeded":
        yield (
            'budget.epsilon: seeded noise proves no ε, so none can be kept; set noise = "system" or'
            " drop it"
        )


_COMPLAINTS: dict[str, Callable[[Any], Iterator[str]]] = {
    "vertical": _vertical,
    "horizontal": _horizontal,
}
