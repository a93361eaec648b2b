"""What a whole search spends: the releases of all its trials composed, against one adversary.

Choosing the best trial by its results looks at all of them, so that its own ε alone may not be
claimed of it. Each trial whose accountant is the closed form is μ-GDP whatever the trials before it
released; such releases compose by adding their μ² (Dong, Roth, Su 2022), also if a trial's settings
depend on the results of earlier ones.

Where trials are cut short by their results, or break off as one does that diverges, how much was
released depends on what was released. The sum of what was made is then a count, no guarantee
(Rogers et al. 2016); what was planned is one, since it was fixed before the first release
(Whitehouse et al. 2023, fully adaptive composition).

No number is given where none is justified: a trial without a proved ε against this adversary, one
whose accountant is another (PLD of secret batches: it needs the trials' loss distributions, not
their ε), or trials that protect another unit, under another relation, or on other data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raydpzv.grouping import grouped
from raydpzv.privacy.claim_words import judge, unit
from raydpzv.privacy.claims import figure
from raydpzv.privacy.gdp import epsilon_of, guess_of, mu_of

_CLOSED = "closed form (GDP)"
_OTHER_DATA = (
    "the trials are not on the same data ([data] differs, or of users [users], [split] or the seed "
    "that says whose records are whose), so that their ε speak of other records"
)

_NOISE_CHOSEN = (
    "settings on which ε depends were chosen by the results of earlier trials, so that nothing was "
    "fixed before the first release"
)

Claims = Sequence[Mapping[str, Any]]
"""The rows of one run's privacy table, as summary.json has them; infinity is the number."""


@dataclass(frozen=True)
class Composed:
    """ε of a whole search against the adversary of one of the winner's claims; without a winner, of
    one of a trial's.

    winner: that claim's ε, NaN where nothing was chosen; spent: of all releases made; planned: of
    all that the trials might have made; NaN where no number is justified, and `missing` says why.
    runs: how many were started; possible: those among them of which nobody knows how far they came,
    and that count as planned. cut: may trials have been cut short by their results? unit: what is
    protected; premise: what its user states to be public.
    """

    adversary: str
    relation: str
    delta: float
    winner: float
    spent: float
    planned: float
    runs: int
    cut: bool
    missing: str = ""
    possible: int = 0
    unit: str = "one record"
    premise: str = ""

    @property
    def claimed(self) -> float:
        """What may be claimed of the winner: ε of what is fixed before the first release, or of
        what was made.
        """
        return self.planned if self.cut else self.spent

    @property
    def claim(self) -> dict[str, Any]:
        """The same as a claim of the search as a whole, for its verdict; it holds where a number is
        justified.
        """
        return {
            "adversary": self.adversary,
            "relation": self.relation,
            "epsilon": self.claimed,
            "delta": self.delta,
            "holds": not self.missing,
            "mechanism": "all trials composed",
            "accountant": _CLOSED,
            "scope": f"unit: {self.unit}",
            "premise": self.premise,
            "guess": None if self.missing else guess_of(mu_of(self.claimed, self.delta)),
        }

    def sentence(self) -> str:
        """Return what may be claimed of the winner, or of what was made where there is none."""
        if self.missing and math.isnan(self.winner):
            return (
                f"Against {self.adversary} no ε is justified of what the search released: "
                f"{self.missing}."
            )
        if self.missing:
            return (
                f"Against {self.adversary} nothing may be claimed of the winner, which was chosen "
                f"by the results of all trials: {self.missing}."
            )
        return f"{self.figures()} {self.reason()}"

    def figures(self) -> str:
        """Return what the winner spent, and what the search did; where a number is justified."""
        terms = f"{self.relation}, δ={self.delta:g}, {_CLOSED}"
        made = f"ε={figure(self.spent)} of all releases made"
        if self.possible:
            made += (
                f" or possibly made (nobody knows how far {self.possible} of them came: all of "
                "their plan counts)"
            )
        what = f"{made}; ε={figure(self.planned)} of all that were planned" if self.cut else made
        if math.isnan(self.winner):
            return (
                f"Against {self.adversary} the whole search of {self.runs} runs spent {what} "
                f"({terms})."
            )
        return (
            f"Against {self.adversary} the winner alone spent ε={figure(self.winner)}, the whole "
            f"search of {self.runs} runs {what} ({terms})."
        )

    def reason(self) -> str:
        """Return which of the numbers may be claimed, and why."""
        if math.isnan(self.winner):
            why = (
                "since results may have decided when trials ended, the plan's is the number to "
                "claim"
                if self.cut
                else "that is the number to claim"
            )
            return (
                f"No winner was chosen, but what was released stays released, and {why} of all "
                "trials together."
            )
        why = (
            "since results decided when trials ended, the plan's is the number to claim"
            if self.cut
            else "the whole search's ε is the number to claim"
        )
        return (
            f"The winner was chosen by the results of all, and {why}; the winner's own ε holds "
            "only if its settings had been fixed beforehand. The evaluation that chose it is never "
            "charged."
        )


def sentences(spent: Sequence[Composed]) -> list[str]:
    """Return what may be claimed of a winner: the verdict, then each number and each reason
    once.
    """
    if not spent:
        return []
    said = f"The search as a whole: {judge(one.claim for one in spent).headline()}"
    alike = grouped((replace(one, adversary="").sentence(), one) for one in spent)
    groups = [
        replace(found[0], adversary=_named([one.adversary for one in found]))
        for found in alike.values()
    ]
    proved = [one for one in groups if not one.missing]
    reasons = dict.fromkeys(one.reason() for one in proved)
    return [
        said,
        *(one.figures() for one in proved),
        *reasons,
        *(one.sentence() for one in groups if one.missing),
    ]


def _named(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@dataclass(frozen=True)
class SearchClaims:
    """What the runs of a search claim.

    winner: its claims, None where nothing was chosen; made: by run, its claims as made, those
    planned where nobody knows what it made; planned: the same of all that the search might run.
    same_data: do all runs have the same table?
    cut, possible: see `Composed`. adaptive: were settings chosen by the results of earlier runs?
    """

    winner: Claims | None
    made: Mapping[str, Claims]
    planned: Mapping[str, Claims]
    same_data: bool
    cut: bool
    adaptive: bool = False
    possible: int = 0


def compose(search: SearchClaims) -> list[Composed]:
    """Return ε of a whole search for each proved claim of the winner; without one, of any run that
    was started.
    """
    obstacle = "" if search.same_data else _OTHER_DATA
    if search.adaptive and len({_figures(claims) for claims in search.planned.values()}) > 1:
        obstacle = obstacle or _NOISE_CHOSEN
    found = _first_of_each(search.made if search.winner is None else {"the winner": search.winner})
    return [_composed(claim, whose, search, obstacle) for whose, claim in found]


def _first_of_each(runs: Mapping[str, Claims]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the proved claims of runs, for each adversary and relation those of the first run that
    has any.
    """
    found, known = list[tuple[str, Mapping[str, Any]]](), set[tuple[str, str]]()
    for run, claims in runs.items():
        proved = [c for c in claims if c["holds"] and c["adversary"] != "paper"]
        new = [c for c in proved if (c["adversary"], c["relation"]) not in known]
        found += [(run, claim) for claim in new]
        known |= {(c["adversary"], c["relation"]) for c in new}
    return found


def _composed(
    claim: Mapping[str, Any], whose: str, search: SearchClaims, obstacle: str
) -> Composed:
    both = (search.made, search.planned)
    missing = obstacle or next((why for runs in both for why in _obstacles(claim, whose, runs)), "")
    alike = [_alike(claim, runs) for runs in both]
    delta = min(float(c["delta"]) for c in (claim, *alike[0], *alike[1]))
    spent, whole = (
        (math.nan, math.nan) if missing else (_together(claims, delta) for claims in alike)
    )
    winner = math.nan if search.winner is None else float(claim["epsilon"])
    # a lost machine may have released more than the plan has
    whole = max(spent, whole)
    return Composed(
        claim["adversary"],
        claim["relation"],
        delta,
        winner,
        spent,
        whole,
        len(search.made),
        search.cut,
        missing,
        search.possible,
        unit(claim),
        str(claim.get("premise") or ""),
    )


def _figures(claims: Claims) -> tuple[Any, ...]:
    return tuple(
        (c["adversary"], c["relation"], float(c["epsilon"]), float(c["delta"])) for c in claims
    )


def _obstacles(claim: Mapping[str, Any], whose: str, runs: Mapping[str, Claims]) -> Iterator[str]:
    for run, claims in runs.items():
        own = _counterpart(claim, claims)
        if own is None:
            yield f"{run} has no proved ε against {claim['adversary']} ({claim['relation']})"
        elif why := _unlike(run, whose, claim, own):
            yield why


def _alike(claim: Mapping[str, Any], runs: Mapping[str, Claims]) -> list[Mapping[str, Any]]:
    return [own for claims in runs.values() if (own := _counterpart(claim, claims))]


def _counterpart(claim: Mapping[str, Any], claims: Claims) -> Mapping[str, Any] | None:
    terms = (claim["adversary"], claim["relation"])
    alike = (c for c in claims if (c["adversary"], c["relation"]) == terms)
    return next((c for c in alike if c["holds"] and math.isfinite(c["epsilon"])), None)


def _unlike(run: str, whose: str, claim: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return why a run's ε does not compose with that of the claim, or nothing; whose: the claim's
    run.
    """
    for accountant in (claim["accountant"], own["accountant"]):
        if not accountant.startswith(_CLOSED):
            return (
                f"the accountant is {accountant}, whose ε of single runs do not compose to one of "
                "its own"
            )
    if unit(own) != unit(claim):
        return f"{run} protects another unit ({unit(own)}, {whose} {unit(claim)})"
    return ""


def _together(claims: Claims, delta: float) -> float:
    """ε of releases composed: their μ² add up. A claim's μ is what its ε comes of."""
    squared = sum(mu_of(float(c["epsilon"]), float(c["delta"])) ** 2 for c in claims)
    return epsilon_of(math.sqrt(squared), delta)
