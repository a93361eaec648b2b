"""Sums over users (privacy.mode = "user"): the plan, its table, and its account. The unit of
privacy is one user.

| adversary  | sees                                                                                     |
|------------|------------------------------------------------------------------------------------------|
| `paper`    | nobody: what the Uldp-FL paper's accountant states                                       |
| `external` | every released sum, and so every model                                                   |
| `client`   | one silo: the same, its own sum and its share of the noise; the others' records are kept |
| `server`   | the same, and what aggregation shows it of the silos; it draws the users' coins          |
"""

# U users, S silos, T releases

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from raydpzv.privacy.claims import COUNTS_KNOWN, Claim, figure
from raydpzv.privacy.gdp import mu_of
from raydpzv.privacy.group_accountant import lemma_9_epsilon
from raydpzv.privacy.participations import Participations, Rows
from raydpzv.privacy.release import (
    CLOSED_FORM,
    POISSON_PLD,
    ROUNDING,
    UNACCOUNTED,
    PrivacyLoss,
    ReleaseAccount,
    ReleaseEvent,
    ReleasePlan,
    RoundAttempt,
    Spent,
    require_positive,
)
from raydpzv.privacy.user_mechanism import (
    ADVERSARIES,
    RELATIONS,
    UserMechanism,
    least_multiplier,
    user_epsilon,
    user_epsilon_rdp,
    user_guess,
)

_MIXTURE = "PLD (dp-accounting), mixture of Gaussians"
_RDP = "RDP"
_EVERY = 32  # releases whose ε is worked out one by one; of more, 16 an e-fold


@dataclass(frozen=True, kw_only=True)
class UserReleasePlan(UserMechanism, ReleasePlan):
    """A run with its length and its noise, planned or made. SpecError where it cannot be.

    users: U, those who have records; clip: C; group_rule: what k was read off the data by ("max",
    "median"), if it was: nothing is proved then.
    against: whose ε the target is. drawn: what of the records the program looked at when it shared
    them out among users, and takes as public, a clause; "" for nothing.
    """

    users: int
    clip: float
    group_rule: str = ""
    against: str = "external"
    drawn: str = ""
    units: ClassVar[tuple[str, str]] = ("U", "users")

    def __post_init__(self) -> None:
        require_positive(self, "users", "clip")
        super().__post_init__()

    @property
    def adversary(self) -> str:
        return self.against

    @property
    def protected(self) -> int:
        return self.users

    @property
    def of_uploads(self) -> bool:
        return True

    @property
    def under_way(self) -> int:
        return self.silos if self.asynchronous else 1

    @property
    def noun(self) -> str:
        return "release" if self.asynchronous else "round"

    def with_noise_for(self, epsilon: float) -> Self:
        """Return the plan with the least σ (to 0.01 %) whose ε against `against`, add_remove, is
        this.
        """
        return replace(
            self, multiplier=least_multiplier(self, epsilon, self.against), target=epsilon
        )

    def account(self) -> UserAccount:
        return UserAccount(self)

    def first_event(self) -> ReleaseEvent:
        return ReleaseEvent(0, np.arange(self.users))

    def counted_as(self, spent: Spent) -> Self:
        return replace(
            self,
            releases=spent.releases,
            counted=spent.counted,
            fewest=spent.fewest,
            remade=spent.remade,
            late=False,
            planned=True,
        )

    def with_exposed_coins(self, why: str) -> Self:
        return replace(self, exposed=self.exposed or why)

    def budget_terms(self, adversary: str) -> tuple[str, str]:
        return f"adversary {adversary}", "add or remove one user"

    def obstacle(self) -> str:
        if self.noise != "system":
            return "the noise comes from a seed, and anyone with the seed subtracts it"
        return ""

    def own_caveats(self) -> tuple[str, ...]:
        late = (
            "every sum that a late upload opens is a release more, charged when it comes"
            if self.late
            else ""
        )
        return tuple(filter(None, ("that a user is on the list is public", self.drawn, late)))

    def public_counts(self) -> tuple[str, ...]:
        if self.kind != "group":
            return ()
        return (f"k = {self.group} (method.group)", "how many records each silo uses")

    def premises(self) -> tuple[str, ...]:
        if not self.group_rule:
            return self.fitted
        # one user's records move the rule's k, and with it how many of the others' are used
        read_off = (
            f"k = {self.group} is the {self.group_rule} of users' record counts, read off the data "
            "(method.group); give a public number"
        )
        return (*self.fitted, read_off)

    def calibration(self) -> str:
        sigma = f"σ = {figure(self.multiplier)}"
        if self.target is None:
            return f"{sigma}, the noise in units of C, is given by the scenario; ε follows from it."
        return (
            f"Calibration: {sigma}, the noise in units of C, for ε = {figure(self.target)} at δ = "
            f"{figure(self.delta)} (add or remove one user, adversary {self.against}) over "
            f"{self.releases:,} {self.noun}s: by μ, the Gaussian DP that gives this ε and δ, in "
            "closed form; by PLD where coins hide users or records."
        )

    def table(self) -> tuple[Claim, ...]:
        rows = tuple(itertools.product(ADVERSARIES, RELATIONS))
        if broken := self.obstacle():
            note = f"{broken[0].upper()}{broken[1:]}."
            return tuple(self._row(*row, note) for row in (("paper", "add_remove"), *rows))
        return (*self._paper(), *(self._proved(*row) for row in rows))

    def _paper(self) -> tuple[Claim, ...]:
        """The paper's ε, which is true where what is proved against outsiders is no larger.

        The paper has no asynchronous method.
        """
        if self.asynchronous:
            return ()
        proved = user_epsilon(self)
        if self.kind == "group":
            epsilon, note = self._lemma_9(proved)
        elif self.kind == "naive":
            epsilon = user_epsilon_rdp(replace(self, kind="sum"))
            note = (
                "The paper's sensitivity C·S is wrong: without a user every silo's clipped update "
                "may lie anywhere in its ball, which moves their sum by up to 2C·S."
            )
        else:
            epsilon = user_epsilon_rdp(self)
            note = (
                "The paper's accounting, by Rényi divergences. True against outsiders; others may "
                "see more."
            )
        claim = self._row("paper", "add_remove", note, epsilon, _RDP)
        return (replace(claim, holds=proved <= epsilon * ROUNDING),)

    def _lemma_9(self, proved: float) -> tuple[float, str]:
        epsilon, valid = (
            lemma_9_epsilon(**self.steps_of_group, delta=self.delta, as_published=published)
            for published in (True, False)
        )
        power = 1 << (self.group.bit_length() - 1)
        note = f"The paper's Lemma 9 on k = {power} of {self.group} records, as published. "
        if valid > epsilon * ROUNDING:
            note += (
                "Its best order is below 2k, where the lemma does not hold: over orders that it "
                f"holds for, it gives {figure(valid)}. "
            )
        if power < self.group:
            note += "It says nothing of k that are no power of 2. "
        return epsilon, f"{note}Exactly it is {figure(proved)}."

    def _proved(self, adversary: str, relation: str) -> Claim:
        epsilon = user_epsilon(self, adversary, relation)
        if self.kind == "group":
            accountant = CLOSED_FORM if self.rate == 1 else _MIXTURE
            note = self._of_group()
        else:
            accountant = POISSON_PLD if self.amplified(adversary) else CLOSED_FORM
            note = " ".join(filter(None, (self._sight(adversary), self._of_coins(adversary))))
        if self.remade:
            note += self._of_remade()
        elif self.kind != "group" or adversary != "client":
            second = figure(user_epsilon_rdp(self, adversary))
            note += (
                f" By RDP, which holds for the discrete noise as it is, ε is {second} (add_remove)."
            )
        if (
            self.weights == "records"
            and self.aggregation != "private_weights"
            and self.kind == "sum"
        ):
            note += " The counts n_su are known to the coordinator."
        if adversary == "client" and self.change(adversary, "add_remove") != "add_remove":
            note += self._of_counts()
        claim = self._row(adversary, relation, note, epsilon, accountant)
        return replace(claim, guess=user_guess(self, adversary, relation))

    def _of_group(self) -> str:
        one = user_epsilon(replace(self, group=1, group_rule=""))
        return (
            f"Every step of every silo is seen; of a user at most k = {self.group} records are "
            "used, each drawn by a coin that only its silo knows. For one record (k = 1) ε is "
            f"{figure(one)} (add_remove). How many records each silo uses is public: it divides "
            "its steps by them."
        )

    def _of_counts(self) -> str:
        """What a user's records elsewhere do to a silo's own part, and what the silo knows of
        them.
        """
        own = (
            "its weight of the user grows"
            if self.kind == "sum"
            else "more of its own records are used"
        )
        told = ""
        if self.counts_shared:
            what = "its weights" if self.kind == "sum" else "which of its records are used"
            told = (
                f" The silo knows {what}: how many records a user has elsewhere is not protected "
                "against it."
            )
        return (
            f" Where the others' records of a user are missing, {own}: adding or removing them "
            f"moves a release as far as replacing them.{told}"
        )

    def _of_remade(self) -> str:
        noun = "releases" if self.asynchronous else "rounds"
        return (
            f" {self.remade:,} of the {noun} were lost by a kill, after they may have been seen, "
            "and made once more: counted twice, and as if no coins hid who was in them."
        )

    def _sight(self, adversary: str) -> str:
        """What the adversary sees beside the released sums, and what that does to the noise."""
        if self.asynchronous:
            alone = (
                "A silo's release has the noise of its share alone, σC/√S, and moves by C/S at most"
            )
            return f"{alone}; all see them all."
        z = (
            "noise over what a user added or removed moves: "
            f"{figure(self.noise_multiplier(adversary, 'add_remove'))}."
        )
        if adversary == "external":
            return f"Sees every released sum; {z}"
        if adversary == "client":
            if self.silos == 1:
                return "There is no other silo."
            of = "" if self.fewest is None else f", one of {self.fewest} at the most"
            return (
                f"Knows its own sum and its share of the noise{of}; what the other silos hold is "
                f"protected; {z}"
            )
        if self.aggregation != "plain":
            return f"Sees the sum alone; {z}"
        return f"Sees every silo's own sum, with a share of the noise each; {z}"

    def _of_coins(self, adversary: str) -> str:
        if not self.sampled:
            return ""
        if self.amplified(adversary):
            return (
                "Valid while the users' coins stay secret, and a number of updates alone ends the "
                "run."
            )
        basis = "bounded by the plan" if self.counted is None else "as counted"
        silos = (
            "silos' processes hold the coins' key"
            if self.aggregation == "private_weights"
            else "silos know who is drawn"
        )
        why = "it draws the users' coins" if adversary == "server" else silos
        why = self.exposed or why
        return (
            f"No amplification, since {why}: a user takes part in at most {self.participations:,} "
            f"rounds, {basis}."
        )

    @property
    def mechanism(self) -> str:
        what = "each record's gradient" if self.kind == "group" else "each vector"
        return (
            f"discrete Gaussian on whole numbers ({what} of norm C on a grid of {self.bits} bits), "
            f"σ={figure(self.multiplier)} times C, {self.noise} noise"
        )

    @property
    def measured(self) -> str:
        return "gradients' norm" if self.kind == "group" else "sum's norm"

    def reach(self, adversary: str, relation: str, accountant: str) -> tuple[float, float | None]:
        if adversary == "paper":
            return self.clip * (1 if self.kind == "naive" else self.moved(relation)), None
        moved = self.clip * self.moved(self.change(adversary, relation))
        return moved, self.noise_multiplier(adversary, relation)

    def _row(self, adversary: str, relation: str, note: str, *bound: Any) -> Claim:
        claim = self.row(adversary, note, *bound, relation=relation)
        known = adversary in ("client", "server") and self.counts_shared
        return replace(claim, scope=claim.scope + COUNTS_KNOWN) if known else claim

    @property
    def scope(self) -> str:
        count = f"{self.releases:,} {self.noun}{'' if self.releases == 1 else 's'}"
        what = {
            "sum": f"sums over users, {self.weights} weights",
            "naive": "the silos' clipped updates",
            "group": (
                f"{self.steps} steps of DP-SGD in every silo, rate {figure(self.rate)}, "
                f"k={self.group}"
            ),
        }[self.kind]
        coins = f", users' coins q={figure(self.sampling)}" if self.sampled else ""
        away = "" if self.fewest is None else f" (at least {self.fewest} in a release)"
        return (
            f"{count} of {what}, C={figure(self.clip)}, U={self.users:,} users in S={self.silos} "
            f"silos{away}{coins}, {self.aggregation} aggregation; unit: one user"
        )


class UserAccount(ReleaseAccount):
    """Counts rounds (or single silos' releases) and how often each user was drawn.

    A round counts with the first silo's sum that is sent, and again if a silo sends a second one
    for it: anyone who sees that has two sums. Of sums that are masked it counts once for each
    attempt that is open (`OpenSums`).
    """

    def __init__(self, plan: UserReleasePlan) -> None:
        self._plan, self._proves = plan, not plan.obstacle() and not plan.unmet()
        self._drawn = Participations(plan.users) if plan.sampled else None
        self._releases = self._remade = 0
        self._sent = np.zeros(plan.silos, np.int64)
        self._sums = OpenSums(hidden=plan.aggregation != "plain")
        self._fewest = plan.silos
        self._loss = UNACCOUNTED

    @property
    def participations(self) -> int:
        """The most releases that one user was drawn in."""
        return self._drawn.most if self._drawn else self._releases

    def charge(self, event: ReleaseEvent) -> PrivacyLoss:
        """Count a silo's sum, for which these users were drawn; return what is spent so far."""
        if self._opens(event):
            self._count(self._users(event))
            self._loss = self._spent_so_far()
        if event.attempt is not None:
            self._sums.add(event.client, event.attempt)
            self._fewest = min(self._fewest, len(event.attempt.silos))
        self._sent[event.client] += 1
        return self._loss

    def charge_remade(self, releases: int) -> None:
        """Charge releases that are on no record, and that are made once more for the users that
        their coins drew.
        """
        for _ in range(releases):
            self._count(np.arange(self._plan.users))
            self._fewest = min(self._fewest, self._plan.fewest or self._fewest)
        self._remade += releases
        self._sent[:] = self._releases

    def would_exceed(self, event: ReleaseEvent, limit: float, adversary: str) -> bool:
        if not self._opens(event):
            return False
        drawn = self._drawn.after(self._users(event), 1) if self._drawn else self._releases + 1
        most, releases = limit * ROUNDING, self._releases + 1
        return (
            self._rounded_epsilon(adversary, releases, drawn)
            > most
            < self._exact(adversary, releases, drawn)
        )

    def spent(self) -> Spent:
        fewest = None if self._plan.fewest is None else self._fewest
        return Spent(self._releases, self.participations, fewest=fewest, remade=self._remade)

    def state(self) -> dict[str, Any]:
        drawn = {"drawn": self._drawn.counts.tolist()} if self._drawn else {}
        remade = {"remade": self._remade} if self._remade else {}
        return {"releases": self._releases, **remade, **drawn, "fewest": self._fewest}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._releases, self._remade = int(state["releases"]), int(state.get("remade", 0))
        if self._drawn:
            self._drawn.restore(np.array(state["drawn"], np.int64))
        self._fewest = int(state.get("fewest", self._plan.silos))
        self._sent[:] = self._releases

    def epsilon(self, adversary: str) -> float:
        """Return ε (add_remove) so far; of hidden coins rounded up to a number of releases that was
        worked out.
        """
        return self._rounded_epsilon(adversary, self._releases, self.participations)

    def _opens(self, event: ReleaseEvent) -> bool:
        """Return whether this sum is a release more."""
        if self._plan.asynchronous:
            return True
        if event.attempt is not None:
            return self._sums.more(event.client, event.attempt)
        return bool(self._sent[event.client] == self._releases)

    def _users(self, event: ReleaseEvent) -> Rows:
        """The users that were drawn; all of them where nothing says who."""
        return event.ids if len(event.ids) else np.arange(self._plan.users)

    def _count(self, users: Rows) -> None:
        if self._drawn:
            self._drawn.add(users, 1)
        self._releases += 1

    def _spent_so_far(self) -> PrivacyLoss:
        delta = self._plan.delta
        if not self._proves:
            return PrivacyLoss(math.nan, math.inf, delta, math.inf, math.inf)
        external, client, server = (
            mu_of(self.epsilon(adversary), delta) for adversary in ADVERSARIES
        )
        return PrivacyLoss(math.nan, client, delta, external, server)

    def _rounded_epsilon(self, adversary: str, releases: int, drawn: int) -> float:
        if self._plan.kind == "group" or self._plan.amplified(adversary):
            releases = _rung(releases)
        return self._exact(adversary, releases, drawn)

    def _exact(self, adversary: str, releases: int, drawn: int) -> float:
        if releases == 0:
            return 0.0
        made = replace(self._plan, releases=releases, counted=drawn, remade=self._remade)
        return user_epsilon(made, adversary)


def _rung(releases: int) -> int:
    """Return the first number of releases from here on whose ε is worked out."""
    if releases <= _EVERY:
        return releases
    step = math.ceil(16 * math.log(releases / _EVERY))
    return max(releases, math.ceil(_EVERY * math.exp(step / 16)))


class OpenSums:
    """How many releases rounds come to: one for each attempt whose sum is open, or may yet be.

    Attempts before a round's newest have been given up: they count once every upload of theirs has
    come. hidden: sums are masked; else each silo's own is seen, and a second one of a silo in an
    attempt is a release more.
    """

    def __init__(self, *, hidden: bool) -> None:
        self._hidden = hidden
        self._releases = self._repeated = 0
        self._begin(0)

    def more(self, silo: int, attempt: RoundAttempt) -> bool:
        """Return whether an upload, if it is sent, makes for one release more."""
        return copy.deepcopy(self).add(silo, attempt)

    def add(self, silo: int, attempt: RoundAttempt) -> bool:
        """Count an upload that is sent; return whether it makes for one release more."""
        if attempt.round != self._round:
            self._begin(attempt.round)
        came = self._came.setdefault(attempt.number, set())
        if silo in came:
            self._repeated += not self._hidden
            came.clear()  # it has new keys, with which all begin the attempt anew
        came.add(silo)
        if len(came) == len(attempt.silos):
            self._open.add(attempt.number)
        before = self._releases
        self._releases = max(before, len(self._open | {max(self._came)}) + self._repeated)
        return self._releases > before

    def _begin(self, round: int) -> None:
        self._round = round
        self._came: dict[int, set[int]] = {}
        self._open: set[int] = set()
        self._releases = self._repeated = 0
