"""What [privacy] comes to for a scenario and its rows: σ, each client's share of the updates, what
may be claimed.
"""

# D rows, B batch, P releases per upload, U users, S silos

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from raydpzv.config.public_lists import fitted
from raydpzv.config.scenario import HorizontalScenario, VerticalScenario
from raydpzv.config.timing import round_trips, sizes_in_order
from raydpzv.data.horizontal import Partition
from raydpzv.data.users import UserParts
from raydpzv.errors import SpecError
from raydpzv.foreign import is_foreign
from raydpzv.keys import Key
from raydpzv.methods.descriptor import NoiseParts, NoisePlan
from raydpzv.models.losses import MOST_CHECKED
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.integer_release import GRID, IntegerRelease
from raydpzv.privacy.integers import IntegerReleasePlan, solve
from raydpzv.privacy.mean import MeanReleasePlan
from raydpzv.privacy.mechanisms import GradientRelease, SystemNoise
from raydpzv.privacy.memoized import MemoizedReleasePlan, memoized_multiplier
from raydpzv.privacy.release import ReleasePlan, default_delta
from raydpzv.privacy.rows import RowReleasePlan
from raydpzv.privacy.user_release import UserNoiseParts, UserPlan, UserRelease
from raydpzv.privacy.users import UserReleasePlan
from raydpzv.settings.fields import per_client
from raydpzv.settings.sections_horizontal import UsersSection
from raydpzv.sim.privacy_filter import check_first_release

HEAD_SHARE = 0.2
"""Share of μ² for the head's gradient where none is given."""

_SUPPOSED = {
    "model": (
        "your own model was made without these records, and that its scores depend on one record "
        "alone and on no earlier call, which is checked on one batch of at most twice the planned "
        "size"
    ),
    "loss": (
        "your own loss gives each record a value of its own scores and label alone, which is "
        f"checked on at most {MOST_CHECKED} records with made-up scores"
    ),
    "method": "your own method releases only what its descriptor says, which is not checked",
    "weights": "model.weights were made without these records, which is not checked",
}
"""What proofs suppose of a user's own code, by the word of privacy.trust that states it."""
_CONSTANTS = {
    "classes": "data.classes",
    "categories": "data.categories",
    "centre": "data.centre",
    "spread": "data.spread",
    "missing": "data.missing",
    "smoothing": "method.smoothing",
    "clip": "privacy.clip",
}
"""What a proof takes as public, by its name in data.confirmed."""
Plan = TypeVar("Plan", bound=ReleasePlan)
_FEARED = {
    "model": "your own model may mix the records of a batch, or remember records",
    "loss": "your own loss may mix the records of a batch, or remember records",
    "method": "your own method may release more than its descriptor says",
    "weights": "model.weights may depend on these records",
}
"""What nobody can rule out of it."""


@dataclass(frozen=True)
class PrivacySetting:
    """The noise of a run: where it falls, its σ, and what the claims are made from (None: no noise
    is added).

    integers, gradient: how slopes and the head's gradient are released with privacy.mode =
    "proved"; updates: those planned, given or worked out.
    """

    plan: NoisePlan | None
    clip: float | None
    sigma: float
    seeded: bool
    claims: ReleasePlan | None
    key: Key
    updates: int | None = None
    integers: IntegerRelease | None = None
    gradient: GradientRelease | None = None

    def noise(self) -> NoiseParts:
        """Return what the parties that add noise get."""
        on = self.plan.on if self.plan and self.claims else ""
        return NoiseParts(
            self.key,
            on,
            self.clip,
            self.sigma,
            self.seeded,
            integers=self.integers,
            gradient=self.gradient,
        )


def privacy_setting(spec: VerticalScenario, rows: int) -> PrivacySetting:
    """Return a scenario's noise for D training rows. Raises InputError where no finite noise
    reaches (ε, δ).
    """
    found = _setting(spec, rows)
    return found if found.claims is None else replace(found, claims=_supposing(spec, found.claims))


def _supposing(spec: VerticalScenario | HorizontalScenario, plan: Plan) -> Plan:
    return replace(
        plan, supposed=supposed(spec), unstated=unstated(spec), confirmed=confirmed(spec)
    )


def confirmed(spec: VerticalScenario | HorizontalScenario) -> tuple[str, ...]:
    """Return what was read off the data and is public by its user's word, a clause each."""
    given = spec.data.confirmed or ()
    read = _listed([setting for name, setting in _CONSTANTS.items() if name in given])
    ids = ("which records all parties have (ids)",) if "ids" in given else ()
    return (f"{read} (read off the data)", *ids) if read else ids


def _constants(spec: VerticalScenario | HorizontalScenario) -> tuple[str, ...]:
    """Return a clause on constants that the scenario states and its user did not read off the
    data.
    """
    data = spec.data
    given = {
        "classes": data.labels,
        "categories": data.public_categories or None,
        "centre": data.centre,
        "spread": data.spread,
        "missing": data.constants or None,
    }
    own = [name for name, value in given.items() if value is not None]
    named = [_CONSTANTS[name] for name in own if name not in (data.confirmed or ())]
    verb = "is" if len(named) == 1 else "are"
    return (f"{_listed(named)} {verb} taken as known without the data",) if named else ()


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def supposed(spec: VerticalScenario | HorizontalScenario) -> tuple[str, ...]:
    """Return what the proofs suppose of a user's own data, models, weights, loss and method, and
    of the scenario's constants, one clause each.
    """
    rows = (
        "ε is of the rows as you hand them over, each of which is supposed to follow from one "
        "record"
    )
    stated = _stated(spec)
    clauses = [
        f"ε supposes{', as you state,' * (word in stated)} that {_SUPPOSED[word]}"
        for word in spec.premises
    ]
    return (*([rows] if is_foreign(spec.data.source) else []), *clauses, *_constants(spec))


def unstated(spec: VerticalScenario | HorizontalScenario) -> tuple[str, ...]:
    """Return the premises about a user's own code that the user does not state, with the setting
    that states them.
    """
    stated = _stated(spec)
    lacking = [_FEARED[word] for word in spec.premises if word not in stated]
    if not lacking:
        return ()
    listed = json.dumps([word for word in _FEARED if word in stated or word in spec.premises])
    pronoun = "it does not" if len(lacking) == 1 else "they do not"
    return (f"{'; '.join(lacking)} (privacy.trust = {listed} states that {pronoun})",)


def _stated(spec: VerticalScenario | HorizontalScenario) -> tuple[str, ...]:
    return (spec.privacy.trust if spec.privacy else None) or ()


def _setting(spec: VerticalScenario, rows: int) -> PrivacySetting:
    spec = with_batch(spec, rows)
    privacy, plan, updates = spec.privacy, spec.descriptor.noise(spec.method), spec.budget.updates
    seeded, key = privacy.noise == "seeded", Key(spec.seed)
    if plan is None or privacy.mode == "none":
        return PrivacySetting(plan, privacy.clip, privacy.sigma or 0.0, seeded, None, key, updates)
    if privacy.mode == "proved":
        return _memoized(spec, plan, rows) if plan.memoized else _of_integers(spec, plan, rows)
    found = _of_means(spec, plan, rows) if plan.on == "mean" else _of_rows(spec, plan, rows)
    return PrivacySetting(plan, privacy.clip, found.sigma, seeded, found, key, updates)


def with_batch(spec: VerticalScenario, rows: int) -> VerticalScenario:
    """Return a scenario whose method.batch is a number, D for "all". Raises SpecError for one above
    D.
    """
    batch = rows if spec.method.batch == "all" else spec.method.batch
    if batch > rows:
        raise SpecError(
            f"method.batch: wanted at most {rows}, the number of training rows, got {batch}"
        )
    return spec.model_copy(update={"method": replace(spec.method, batch=batch)})


def _of_means(spec: VerticalScenario, plan: NoisePlan, rows: int) -> MeanReleasePlan:
    method, privacy = spec.method, spec.privacy
    assert privacy.clip is not None
    assert privacy.delta is not None
    releases = (spec.budget.updates or 1) * plan.per_upload
    sigma = privacy.sigma or 0.0
    if privacy.epsilon is not None:
        sigma = paper_sigma(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            clip=privacy.clip,
            releases=releases,
            rows=rows,
        )
    return MeanReleasePlan(
        rows=rows,
        batch=method.batch,
        releases=releases,
        clip=privacy.clip,
        sigma=sigma,
        delta=privacy.delta,
        batches=method.batches,
        server=plan.head,
        noise=privacy.noise,
        target=privacy.epsilon,
        clients=spec.split.clients,
        per_upload=plan.per_upload,
        planned=spec.budget.updates is not None,
        exposed=_exposed(spec),
        fitted=_fitted(spec),
    )


def _fitted(spec: VerticalScenario | HorizontalScenario) -> tuple[str, ...]:
    """Return where one record moves what others are before any release, one clause each."""
    return tuple(found.how for found in fitted(spec.data, spec.goal))


def _exposed(spec: VerticalScenario) -> str:
    """Return why an outsider's ε is not amplified by secret batches, or nothing."""
    limits = ", ".join(spec.budget.other_limits)
    if spec.method.coins == "seed":
        return (
            "the coins of the batches come from the run's seed, which can be guessed (method.coins"
            ' = "seed")'
        )
    if limits:
        return f"when the run ends may depend on its batches ({limits})"
    timed = sizes_in_order(spec)
    return (
        f"the order of the ledger's updates reveals how large batches are ({timed})"
        if timed
        else ""
    )


def _of_rows(spec: VerticalScenario, plan: NoisePlan, rows: int) -> RowReleasePlan:
    method, privacy = spec.method, spec.privacy
    assert plan.on != "mean"
    found = RowReleasePlan(
        on=plan.on,
        rows=rows,
        batch=method.batch,
        updates=spec.budget.updates or 1,
        per_upload=plan.per_upload,
        clip=privacy.clip,
        sigma=privacy.sigma or 0.0,
        delta=math.nan if privacy.delta is None else privacy.delta,
        batches=method.batches,
        clients=spec.split.clients,
        noise=privacy.noise,
        shares=expected_shares(spec, plan),
        hidden=plan.hidden,
        width=spec.model.embedding,
        queries=plan.queries,
        exact_shares=plan.even_shares,
        calibrated_by=plan.calibration,
        planned=spec.budget.updates is not None,
        fitted=_fitted(spec),
    )
    return found if privacy.epsilon is None else found.with_sigma_for(privacy.epsilon)


def expected_shares(spec: VerticalScenario, plan: NoisePlan) -> tuple[float, ...]:
    """Return each client's expected share of the updates.

    Even with a trace or a barrier of all; else by its rate, or without an activation clock by one
    over its mean round trip. Waiting, for the server or at a barrier of some, only evens shares
    out, so that the largest is an upper end.
    """
    clients = spec.split.clients
    if spec.arrivals.kind == "trace" or plan.even_shares:
        return (1 / clients,) * clients
    immediate = spec.arrivals.kind == "immediate"
    rates = _immediate_rates(spec, plan) if immediate else per_client(spec.arrivals.rate, clients)
    return tuple(rate / sum(rates) for rate in rates)


def _immediate_rates(spec: VerticalScenario, plan: NoisePlan) -> list[float]:
    """Updates per second up to a factor; clients that need no time at all leave none for the
    others.
    """
    batch, width = spec.method.batch, spec.model.embedding
    trips = round_trips(spec, *(plan.traffic or _rows_both_ways)(batch, width))
    return [float(trip == 0) for trip in trips] if min(trips) == 0 else [1 / trip for trip in trips]


def _rows_both_ways(batch: int, width: int) -> tuple[int, int]:
    """Bytes of row ids with embeddings, and of a row per record."""
    return 4 * batch * (1 + width), 4 * batch * width


def _of_integers(spec: VerticalScenario, plan: NoisePlan, rows: int) -> PrivacySetting:
    """The setting of privacy.mode = "proved", with the third of ε, noise multiplier and updates
    worked out.
    """
    method, privacy = spec.method, spec.privacy
    assert privacy.clip is not None
    setting = solve(
        IntegerReleasePlan(
            updates=plan.gathered,
            noise_multiplier=1.0,
            rows=rows,
            batch=method.batch,
            delta=default_delta(rows) if privacy.delta is None else privacy.delta,
            clip=privacy.clip,
            batches=method.batches,
            gather=plan.gathered,
            clients=spec.split.clients,
            perturbations=plan.per_upload,
            grid=GRID,
            server=plan.head,
            head_share=_head_share(spec, plan),
            head_alone=plan.head_alone,
            relation=privacy.relation or "replace",
            adversary=privacy.adversary or "client",
            noise=privacy.noise,
            permit_large_delta=bool(privacy.permit_large_delta),
            exposed=_exposed(spec),
            fitted=_fitted(spec),
        ),
        epsilon=privacy.epsilon,
        noise_multiplier=privacy.noise_multiplier,
        updates=spec.budget.updates,
    )
    integers, gradient = None, None
    if plan.head_alone:
        how = (privacy.clip, setting.noise_multiplier, setting.release_rows)
        gradient = GradientRelease(*how, SystemNoise())
    else:
        integers = IntegerRelease(
            privacy.clip,
            plan.per_upload,
            setting.noise_multiplier,
            setting.release_rows,
            over=plan.clip_over or "vector",
        )
    if setting.head_multiplier is not None and privacy.head_clip is not None:
        how = (privacy.head_clip, setting.head_multiplier, setting.release_rows)
        gradient = GradientRelease(*how, SystemNoise())
    key, updates = Key(spec.seed), setting.updates
    return PrivacySetting(plan, privacy.clip, 0.0, False, setting, key, updates, integers, gradient)


def _head_share(spec: VerticalScenario, plan: NoisePlan) -> float | None:
    """The share of μ² that the head's releases get beside those of slopes, None without any of its
    own.
    """
    if plan.head_alone or plan.head != "dp_sgd":
        return None
    return spec.privacy.head_share or HEAD_SHARE


def _memoized(spec: VerticalScenario, plan: NoisePlan, rows: int) -> PrivacySetting:
    """The setting of clients that noise every row once, with z worked out of ε where that is
    given.
    """
    privacy = spec.privacy
    assert privacy.clip is not None
    delta = default_delta(rows) if privacy.delta is None else privacy.delta
    setting = MemoizedReleasePlan(
        rows=rows,
        clients=spec.split.clients,
        width=spec.model.embedding,
        clip=privacy.clip,
        delta=delta,
        noise_multiplier=privacy.noise_multiplier
        or memoized_multiplier(epsilon=privacy.epsilon or 0.0, delta=delta),
        grid=GRID,
        target=privacy.epsilon,
        noise=privacy.noise,
        permit_large_delta=bool(privacy.permit_large_delta),
        fitted=_fitted(spec),
    )
    how = IntegerRelease(privacy.clip, 1, setting.noise_multiplier, 1)
    updates = spec.budget.updates
    return PrivacySetting(plan, privacy.clip, 0.0, False, setting, Key(spec.seed), updates, how)


@dataclass(frozen=True)
class UserPrivacy:
    """How a run releases sums over users, and what the claims are made from (None: it adds no
    noise).

    secret: what the coins of users and records come from, for the operator alone; None: the run's
    seed.
    """

    noise: UserNoiseParts
    claims: UserReleasePlan | None
    secret: int | None = field(default=None, repr=False)

    def for_silos(self, *, coins: bool) -> UserPrivacy:
        """Return what silos' processes get; coins: whether they draw by them, and so have their
        key.
        """
        noise = self.noise if coins else replace(self.noise, coins=None)
        return replace(self, noise=noise, secret=None)

    def for_warm_up(self) -> UserPrivacy:
        """Return the same with coins of the run's seed, which hide nobody: what a warm-up draws is
        dropped.
        """
        return replace(self, noise=replace(self.noise, coins=self.noise.key), secret=None)


def user_privacy(
    spec: HorizontalScenario, parts: Partition, secret: int | None = None
) -> UserPrivacy | None:
    """Return a scenario's noise for these users and silos; None for a method that knows no users.

    secret: of a run that began before; None: a new one, if coins are to hide anybody. Raises
    SpecError where no noise reaches the ε asked for, or not one release fits into the budget's.
    """
    plan = spec.descriptor.users(spec.method)
    if plan is None or spec.privacy is None or not isinstance(parts, UserParts):
        return None
    claims = user_setting(spec, plan, parts)
    claims = claims and _supposing(spec, claims)
    if secret is None and spec.secret_coins:
        secret = secrets.randbits(256)
    assert spec.privacy.clip is not None
    release = UserRelease(
        spec.privacy.clip,
        plan.bits,
        claims.multiplier if claims else 0.0,
        reach=(
            parts.clients
            if plan.kind == "naive" or (plan.kind, plan.weights) == ("sum", "uniform")
            else 1
        ),
    )
    key = Key(spec.seed)
    seeded = spec.privacy.noise == "seeded"
    noise = UserNoiseParts(
        release, parts.users, key, key if secret is None else Key(secret), seeded
    )
    return UserPrivacy(noise, claims, secret)


def user_setting(
    spec: HorizontalScenario, plan: UserPlan, parts: UserParts
) -> UserReleasePlan | None:
    """Return what the claims are made from, with σ worked out of ε where that is given; None
    without noise.
    """
    privacy, updates = spec.privacy, spec.budget.updates
    if privacy is None or privacy.mode == "none":
        return None
    assert privacy.clip is not None
    assert privacy.delta is not None
    against = privacy.against or "external"
    found = UserReleasePlan(
        **vars(replace(plan, group=parts.most_records(plan.group))),
        group_rule=plan.group if isinstance(plan.group, str) else "",
        users=parts.users,
        silos=parts.clients,
        releases=_releases(plan, updates, parts.clients),
        clip=privacy.clip,
        delta=privacy.delta,
        multiplier=privacy.multiplier or 1.0,
        noise=privacy.noise,
        against=against,
        planned=updates is not None,
        exposed=_exposed_coins(spec, against),
        fitted=_fitted(spec),
        drawn=_drawn(spec.users),
    )
    if privacy.epsilon is not None:
        found = found.with_noise_for(privacy.epsilon)
    check_first_release(found, spec.budget.epsilon)
    return found


def _drawn(users: UsersSection | None) -> str:
    """Return what of the records decides whose they are, where the scenario draws that; "" for
    nothing.
    """
    if users is None or users.how == "column":
        return ""
    looked = [f"labels (users.labels = {users.labels})"] if users.labels is not None else []
    if users.silos in ("main", "column"):
        looked.append(f'silos (users.silos = "{users.silos}")')
    return (
        f"records are shared out by all {' and '.join(looked)}, so that whose they are is public"
        if looked
        else ""
    )


def _releases(plan: UserPlan, updates: int | None, silos: int) -> int:
    """Return the most releases that are planned; of single silos also those on their way when the
    run is over.
    """
    under_way = silos - 1 if plan.asynchronous and updates is not None else 0
    return (updates or 1) + under_way


def _exposed_coins(spec: HorizontalScenario, against: str) -> str:
    """Return why secret coins may hide nobody: when the run ends may depend on them."""
    limits = {"seconds": spec.budget.seconds, "bytes": spec.budget.bytes}
    if against != "external":
        limits["epsilon"] = spec.budget.epsilon
    named = ", ".join(f"budget.{name}" for name, limit in limits.items() if limit is not None)
    return f"when the run ends may depend on who is drawn ({named})" if named else ""
