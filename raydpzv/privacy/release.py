"""Every kind of release implements one protocol: its table, its verdict, and the account of a run
in progress.

`mean`, `rows`, `integers`, `memoized` and `users` each hold a plan and an account. Filters, tables
and summaries ask the protocol and never the kind. The model is dp_accounting's
`PrivacyAccountant.compose(DpEvent)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from raydpzv.errors import RunError, SpecError, suggest
from raydpzv.privacy.calibration import BATCHES, planned_participations
from raydpzv.privacy.claim_words import PAPER, Verdict, judge
from raydpzv.privacy.claims import UNCHARGED, Claim
from raydpzv.privacy.gdp import epsilon_of, guess_of, mu_of

NO_NOISE = "no noise is added in this run, and no ε is claimed"
"""Why a run without a plan of releases is not private."""
FLOATING_POINT = "floating-point noise is not exactly Gaussian and can leak"
"""A caveat of noise in floating-point numbers."""
CLOSED_FORM = "closed form (GDP)"
POISSON_PLD = "PLD (dp-accounting), Poisson sampling"
ROUNDING = 1 + 1e-9
"""An ε that noise was solved for may exceed its target by this factor, so that a run ends on its
budget.
"""

_TARGET_ROUNDING = (
    1 + 1e-6
)  # by how much an ε that noise was calibrated for may come out above its target
_BROKE_OFF = "the run ended before its budget was spent"
_UNPLANNED = (
    "no number of updates is planned (budget.updates), and each ε here is that of ONE update"
)


@dataclass(frozen=True)
class Spent:
    """What was released: how often, and the most releases that one record took part in.

    largest_batch: only where means over batches are released, whose bound depends on it. rows,
    uploads: only where rows
    of arrays are released: rows (each with its own noise) and uploads, of the client with most of
    them if every client
    releases its own. fewest: silos that took part in a release, at the least. remade: releases
    about users that a kill lost, and that were made once more on the same coins.
    """

    releases: int
    counted: int
    largest_batch: int = 0
    rows: int = 0
    uploads: int = 0
    fewest: int | None = None
    remade: int = 0


class PrivacyLoss(NamedTuple):
    """What was spent so far as μ of Gaussian differential privacy: claimed, and proved against the
    clients.

    ε follows from μ and δ and is computed where somebody reads it: that takes longer than all other
    accounting of an
    update. NaN: nothing is claimed; infinity: nothing is proved, whatever δ is. external, server:
    of accounts of users, whose `client` is one silo; of hidden coins, the μ that gives the same ε.
    """

    paper: float
    client: float
    delta: float = math.nan
    external: float = math.nan
    server: float = math.nan

    def epsilons(self) -> tuple[float, float]:
        """Return ε: claimed, and proved against the clients."""
        return self.epsilon(PAPER), self.epsilon("client")

    def user_epsilons(self) -> tuple[float, float, float] | None:
        """Return ε of one user against outsiders, one silo and the server; None of an account of
        records.
        """
        if math.isnan(self.external):
            return None
        return self.epsilon("external"), self.epsilon("client"), self.epsilon("server")

    def epsilon(self, adversary: str) -> float:
        """Return ε against an adversary, or that of `PAPER`; NaN where the loss does not say."""
        mu = float(getattr(self, adversary))
        return epsilon_of(mu, self.delta) if math.isfinite(mu) else mu


UNACCOUNTED = PrivacyLoss(math.nan, math.nan)
"""Of a run that accounts for nothing, or has released nothing yet."""


class RoundAttempt(Protocol):
    """One try at a round by a fixed set of silos (`raydpzv.secure.attempts.Attempt`)."""

    @property
    def round(self) -> int:
        """The round."""
        ...

    @property
    def number(self) -> int:
        """Which attempt at it."""
        ...

    @property
    def silos(self) -> tuple[int, ...]:
        """Those that take part."""
        ...


class ReleaseEvent(NamedTuple):
    """Releases made to or by a client on one batch.

    ids: rows of the batch, or users that were drawn; none if unknown. attempt: at a round, of
    silos' sums.
    """

    client: int
    ids: np.ndarray
    releases: int = 1
    attempt: RoundAttempt | None = None


class ReleaseAccount(ABC):
    """What was released so far: a fold over events, plain data that pickles whole."""

    @abstractmethod
    def charge(self, event: ReleaseEvent) -> PrivacyLoss:
        """Count releases; return what is spent. Raises InputError for a row twice or outside
        0..D-1.
        """

    @abstractmethod
    def would_exceed(self, event: ReleaseEvent, limit: float, adversary: str) -> bool:
        """Return, before a release, whether it would take ε above the limit; always, where nothing
        bounds that ε.
        """

    @abstractmethod
    def spent(self) -> Spent:
        """Return what was counted."""

    def state(self) -> dict[str, Any]:
        """Return what another account of the same plan resumes from, for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from the state of another account."""
        raise RunError("this account of privacy resumes from no checkpoint: start a new run")

    def charge_remade(self, releases: int) -> None:
        """Charge releases that a kill lost and that are made once more on the same coins."""
        raise RunError(
            "this account of privacy cannot charge releases that are made again: start a new run"
        )


@dataclass(frozen=True, kw_only=True)
class ReleasePlan(ABC):
    """What a run releases, planned or made, as far as privacy depends on it: all claims are made
    from it.

    delta: δ; noise: where noise comes from; target: the ε asked for, None where it follows from the
    noise. planned: is the number of releases planned, or made? Else every number is of one update.
    per_upload: releases of one upload.
    fitted: where one record, or user, moves what others are before any release (scaling, split),
    one clause each.
    supposed: what the proofs suppose of the user's own code and constants; unstated: what of it the
    user does not state; confirmed: what of the data the user states to be public; clauses.
    units: the letter and the word for what is protected.
    """

    delta: float
    noise: str = "system"
    target: float | None = None
    planned: bool = True
    per_upload: int = 1
    fitted: tuple[str, ...] = ()
    supposed: tuple[str, ...] = ()
    unstated: tuple[str, ...] = ()
    confirmed: tuple[str, ...] = ()
    units: ClassVar[tuple[str, str]] = ("D", "records")

    @property
    @abstractmethod
    def adversary(self) -> str:
        """Against whom the noise is meant."""

    @property
    @abstractmethod
    def protected(self) -> int:
        """How many units of privacy there are: D records, or U users."""

    @property
    def of_uploads(self) -> bool:
        """Whether it is the uploads that release something; then one that was sent counts, served
        or not.
        """
        return False

    @property
    def under_way(self) -> int:
        """Releases that a killed process may have made of which there is no record; those of
        records repeat.
        """
        return 0

    @property
    def noun(self) -> str:
        """What a budget of ε ends before."""
        return "release"

    @property
    def relation(self) -> str:
        """What neighbouring tables differ in, where a row of the table does not say it."""
        return "replace"

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """What adds noise to what, and how much; "none" without noise."""

    @property
    @abstractmethod
    def scope(self) -> str:
        """What the accounting spans; it ends with the unit of privacy."""

    @property
    @abstractmethod
    def measured(self) -> str:
        """What the sensitivity is of."""

    @abstractmethod
    def reach(self, adversary: str, relation: str, accountant: str) -> tuple[float, float | None]:
        """Return how far a neighbour moves a release in a row's accounting, and the noise over
        that.
        """

    @abstractmethod
    def table(self) -> tuple[Claim, ...]:
        """Return a row for each adversary, as if every premise of the proofs held."""

    def own_caveats(self) -> tuple[str, ...]:
        """Return what to print beside every ε of this kind, one clause each."""
        return ()

    @abstractmethod
    def calibration(self) -> str:
        """Return in a sentence or two where the noise comes from."""

    @abstractmethod
    def account(self) -> ReleaseAccount:
        """Return an empty account of a run of this plan."""

    @abstractmethod
    def first_event(self) -> ReleaseEvent:
        """Return what one update releases, to refuse a budget that is too small for it."""

    @abstractmethod
    def counted_as(self, spent: Spent) -> Self:
        """Return the plan with what was counted in place of what was planned."""

    def obstacle(self) -> str:
        """Return why nothing private is made whatever the table says, "" if nothing stands against
        it.
        """
        return ""

    def premises(self) -> tuple[str, ...]:
        """Return what the proofs suppose of the data and this run lacks, one clause each."""
        return self.fitted

    def public_counts(self) -> tuple[str, ...]:
        """Return which counts of records the proof takes as public by the scenario's word."""
        return ()

    def caveats(self) -> tuple[str, ...]:
        """Return what to print beside every ε, one clause each."""
        clauses = (f"never charged are {', '.join(UNCHARGED)}", *self.own_caveats(), *self.supposed)
        return tuple(filter(None, (*clauses, self.large_delta())))

    def row(
        self,
        adversary: str,
        note: str,
        epsilon: float = math.inf,
        accountant: str = "none",
        *,
        relation: str = "",
        direct_only: float | None = None,
    ) -> Claim:
        """Return a row of the table; without an accountant nothing is proved and ε is infinite."""
        proved, relation = accountant != "none", relation or self.relation
        sensitivity, multiplier = (
            self.reach(adversary, relation, accountant) if proved else (math.nan, None)
        )
        return Claim(
            adversary,
            epsilon,
            self.delta,
            self.mechanism,
            sensitivity,
            relation,
            accountant,
            proved,
            note,
            scope=self.scope,
            direct_only=direct_only,
            multiplier=multiplier,
            measured=self.measured,
        )

    def with_exposed_coins(self, why: str) -> Self:
        """Return the plan of a run whose secret coins hide nobody."""
        return self

    def budget_terms(self, adversary: str) -> tuple[str, str]:
        """Return whose ε a budget bounds, and what neighbours differ in, in words."""
        return f"adversary {adversary}", "replace one record"

    def unmet(self) -> tuple[str, ...]:
        """Return what the proofs suppose and this run lacks, from its first release on."""
        return (*self.premises(), *self.unstated)

    def missing_premises(self) -> tuple[str, ...]:
        """Return what the proofs suppose and this run lacks, its planned length included."""
        return (*self.unmet(), *(() if self.planned else (_UNPLANNED,)))

    def claims(self) -> tuple[Claim, ...]:
        """Return the side-by-side table: no row holds where a premise is missing."""
        found, missing = self.table(), self.missing_premises()
        if not missing:
            public = "; ".join((*self.confirmed, *self.public_counts()))
            premise = f"You state that these are public: {public}." if public else ""
            return tuple(_with_guess(replace(c, premise=premise * c.holds)) for c in found)
        said = f" NOT proved: {'; '.join(missing)}."
        return tuple(
            replace(c, holds=False, note=c.note + said, guess=None) if c.holds else c for c in found
        )

    def primary_claim(self) -> Claim:
        """Return the row against whom the noise is meant; of two relations the one that it
        meets.
        """
        return next(claim for claim in self.claims() if claim.adversary == self.adversary)

    def verdict(self) -> Verdict:
        """Return whether a useful ε of a record, or a user, is proved, against whom, and in
        words.
        """
        table, found, missing = self.table(), self.claims(), self.missing_premises()
        broken = missing and any(claim.holds for claim in table)
        reason = "; ".join(missing) if broken else self.obstacle()
        caveats = () if reason and not any(claim.holds for claim in found) else self.caveats()
        asides = tuple[str, ...]()
        if not reason and self.target is not None:
            met = self.primary_claim().epsilon <= self.target * _TARGET_ROUNDING
            asides = () if met else (f"This is not the target ε = {self.target:g}.",)
        return judge(map(vars, found), reason, asides=asides, caveats=caveats)

    def as_made(self, spent: Spent | None, *, done: bool, beyond_plan: bool = False) -> Self | None:
        """Return a finished run's plan: what was planned replaced by what was counted.

        done: did a budget end it? When a run breaks off, or its user stops it, may depend on what
        its batches held. spent is None where the account was lost. Then the plan still bounds what
        was released, if there was one. Else, or where more may have been released (beyond_plan),
        nothing does, and None is returned.
        """
        plan = self if done else self.with_exposed_coins(_BROKE_OFF)
        if spent is None:
            return None if beyond_plan or not self.planned else plan
        return plan.counted_as(spent) if spent.releases else plan

    def large_delta(self) -> str:
        """Return what is wrong with a δ that permits revealing whole records, or users; "" for one
        that does not.
        """
        bound, (letter, unit) = 1 / self.protected, self.units
        above = (
            f"δ = {self.delta:g} is not below 1/{letter} = {bound:g} and permits revealing whole "
            f"{unit}"
        )
        return above if self.delta >= bound else ""


@dataclass(frozen=True, kw_only=True)
class BatchReleasePlan(ReleasePlan):
    """A plan whose releases are about batches of records.

    rows: D; batch: B; batches: how they are drawn (`BATCHES`); clients: M. exposed: why secret
    Poisson batches hide no record from outsiders, "" if they do. made: what a finished run counted,
    None before.
    """

    rows: int
    batch: int
    batches: str = "shuffle"
    clients: int = 1
    exposed: str = ""
    made: Spent | None = None

    @property
    def protected(self) -> int:
        return self.rows

    def most_participations(self, releases: int, rows: int, clients: int) -> int:
        """Return the most releases one record takes part in: counted, or bounded for every arrival
        order.

        releases: as planned; rows: of a release; clients: whose passes may meet.
        """
        if self.made is not None:
            return self.made.counted
        return planned_participations(
            batches=self.batches,
            releases=releases,
            rows=self.rows,
            batch=rows,
            clients=clients,
            perturbations=self.per_upload,
        )

    @property
    def basis(self) -> str:
        """Whether the releases of one record were counted, in a note's words."""
        return "bounded by the plan" if self.made is None else "as counted"

    @property
    def premise(self) -> str:
        """Return which premise of amplification by secret batches fails, or nothing."""
        if self.batches != "poisson":
            return f'batches are "{self.batches}", not "poisson" (method.batches)'
        return self.exposed

    def first_event(self) -> ReleaseEvent:
        return ReleaseEvent(0, np.arange(self.batch), self.per_upload)

    def counted_as(self, spent: Spent) -> Self:
        return replace(self, made=spent, planned=True)

    def with_exposed_coins(self, why: str) -> Self:
        return replace(self, exposed=self.exposed or why)

    def require(self, *positive: str, **named: Iterable[str]) -> None:
        """Raise SpecError unless these numbers are positive and finite, and these names known."""
        for name, known in {"batches": BATCHES, **named}.items():
            value = getattr(self, name)
            if value not in known:
                raise SpecError(
                    f'privacy {name} "{value}": {suggest(value, known)}Known: {", ".join(known)}'
                )
        require_positive(self, *positive)
        if self.batch > self.rows:
            raise SpecError(f"a batch of {self.batch} needs as many rows, there are {self.rows}")


def require_positive(plan: object, *names: str) -> None:
    """Raise SpecError unless these numbers of a plan are positive and finite."""
    for name in names:
        if not 0 < getattr(plan, name) < math.inf:
            raise SpecError(
                f"privacy {name} must be positive and finite, not {getattr(plan, name)}"
            )


def require_provable(plan: ReleasePlan, *, permit_large_delta: bool) -> None:
    """Raise SpecError where privacy.mode = "proved" could prove nothing of a plan."""
    if missing := (*plan.fitted, *plan.unstated):
        raise SpecError(f'privacy.mode: "proved" proves nothing here: {"; ".join(missing)}')
    if plan.noise != "system":
        raise SpecError(
            f'privacy.noise: "{plan.noise}" noise proves nothing, since anyone with its source '
            'subtracts it; mode "proved" wants "system"'
        )
    if not 0 < plan.delta < 1:
        raise SpecError(f"privacy.delta: wanted a number between 0 and 1, got {plan.delta}")
    if (large := plan.large_delta()) and not permit_large_delta:
        raise SpecError(
            f"privacy.delta: {large}; lower it, or say privacy.permit_large_delta = true"
        )


def default_delta(rows: int) -> float:
    """Return δ = 1/(10 D)."""
    return 1 / (10 * rows)


def verdict(plan: ReleasePlan | None) -> Verdict:
    """Return the verdict on a run; None: it adds no noise."""
    return plan.verdict() if plan else judge((), NO_NOISE)


def _with_guess(claim: Claim) -> Claim:
    """Return a proved row with how often an attacker is right: of a closed form by its μ, which ε
    and δ give back.
    """
    closed = (
        claim.accountant.startswith(CLOSED_FORM)
        and claim.guess is None
        and claim.adversary != PAPER
    )
    if not (closed and claim.holds and math.isfinite(claim.epsilon)):
        return claim
    return replace(claim, guess=guess_of(mu_of(claim.epsilon, claim.delta)))
