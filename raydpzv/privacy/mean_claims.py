"""Which ε holds against whom: the side-by-side table.

| adversary  | sees                                                                       |
|------------|----------------------------------------------------------------------------|
| `paper`    | nobody: what the DPZV papers' accountant states                            |
| `client`   | one client or all of them: every release, and which rows are in each batch |
| `external` | the released values and the final model; no ids, no batch sizes, no seed   |
| `server`   | everything: trusted, so that its ε is always infinite                      |

An ε is never given without mechanism, neighbouring relation, adversary, accountant and δ; the unit of privacy
is one record. The relations:
"replace" changes one record, its label included (labels only: the same bound); "add_remove" sets one record's
term to zero, the divisor and the schedule of batches staying as they are.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

from raydpzv.privacy.calibration import expected_participations, paper_epsilon
from raydpzv.privacy.claims import UNCHARGED, Claim, figure
from raydpzv.privacy.mean_accountant import (
    RELATIONS,
    Spending,
    participation_epsilon,
    poisson_epsilon,
    poisson_guess,
    whole_mean_epsilon,
)
from raydpzv.privacy.mean_setting import MeanSetting

_CLOSED = "closed form (GDP)"
_WHOLE = "closed form (GDP) of the whole mean"
_PLD = "PLD (dp-accounting), Poisson sampling"
_TOLERANCE = 1 + 1e-9
_BASIS = {"counted": "as counted", "planned bound": "bounded by the plan"}


def claims(setting: MeanSetting) -> tuple[Claim, ...]:
    """Return the table: paper, client and external under both relations, server."""
    if broken := defect(setting):
        rows = (("paper", "replace"), *itertools.product(("client", "external"), RELATIONS))
        return (
            *(_claim(setting, *row, f"{broken[0].upper()}{broken[1:]}.") for row in rows),
            _server(setting),
        )
    clients = tuple(_client(setting, relation) for relation in RELATIONS)
    external = tuple(_external(setting, relation) for relation in RELATIONS)
    return (_paper(setting, clients[0]), *clients, *external, _server(setting))


def obstacle(setting: MeanSetting) -> str:
    """Return why nothing private is made whatever the numbers of the table are, or nothing."""
    if (broken := defect(setting)) or not setting.hidden_state:
        return broken
    return (
        f'the server trains its head on labels without noise (server "{setting.server}"), which carries a record into '
        "every later release"
    )


def caveats(setting: MeanSetting) -> tuple[str, ...]:
    """Return what to print beside every ε of this setting, one clause each."""
    clauses = [
        f"never charged are {', '.join(UNCHARGED)}",
        "floating-point noise is not exactly Gaussian and can leak",
    ]
    if setting.delta * setting.rows > 1:
        excess = figure(setting.delta * setting.rows)
        clauses.append(
            f"δ = {setting.delta:g} is above 1/D (D·δ = {excess}) and permits revealing whole records"
        )
    return tuple(clauses)


def defect(setting: MeanSetting) -> str:
    """Return why no ε at all can be given, or nothing."""
    if setting.noise == "none" or setting.sigma == 0:
        return "no noise is added to the releases"
    if setting.noise == "seeded":
        return "the noise comes from a seed, and whoever has the seed subtracts it"
    if setting.noise == "recorded":
        return "the releases are another run's, and only that run's own table says what they cost"
    if setting.batchnorm:
        return "BatchNorm mixes the records of a batch and keeps their un-noised statistics in the model"
    return ""


def spending(setting: MeanSetting, relation: str = "replace") -> Spending:
    """Return an empty accountant for a run of this setting."""
    return Spending(
        rows=setting.rows,
        batch=setting.batch,
        clip=setting.clip,
        sigma=0.0 if defect(setting) else setting.sigma,
        delta=setting.delta,
        hidden_state=setting.hidden_state,
        batches=setting.batches,
        relation=relation,
    )


def _paper(setting: MeanSetting, client: Claim) -> Claim:
    """The paper's ε; it is true exactly where the bound proved against the clients is no larger."""
    epsilon = paper_epsilon(
        setting.releases, sigma=setting.sigma, clip=setting.clip, rows=setting.rows, delta=setting.delta
    )
    holds = client.epsilon <= epsilon * _TOLERANCE
    note = "The paper's claim (DPZV Theorem VI.5). "
    note += (
        "True here: no smaller than what is proved against the clients."
        if holds
        else "NOT proved: a client chooses its batches and knows them, so that sampling hides nothing from it."
    )
    if setting.hidden_state:
        note += " Besides, w_0 is trained without noise and carries a record into later releases."
    note += (
        " The printed clip is one-sided and bounds nothing, here it is two-sided. "
        "Hyper-parameter search and evaluation are not charged."
    )
    if setting.two_lambda:
        note += " In the papers' λ form, C is twice the one here, at the same ε."
    return _claim(setting, "paper", "replace", note, epsilon, _CLOSED, holds)


def _client(setting: MeanSetting, relation: str) -> Claim:
    direct = _direct(setting, relation, setting.participations)
    if setting.hidden_state:
        note = (
            "The server trains w_0 without noise, and through w_0 one record moves every later slope: only the "
            "range of the whole mean bounds a release."
        )
        return _claim(setting, "client", relation, note, _whole(setting), _WHOLE, True, direct)
    note = (
        f"A client knows its batches: all releases in which a record takes part count in full, at most "
        f"{setting.participations:,}, {_BASIS[setting.participations_kind]}; all clients' together, since the "
        "others' releases reach a client through the cached embeddings."
    )
    if setting.counted is None and setting.batches != "shuffle":
        note += _forecast(setting)
    return _claim(setting, "client", relation, note, direct, _CLOSED, True)


def _external(setting: MeanSetting, relation: str) -> Claim:
    why = (
        f'batches are "{setting.batches}", not "poisson"' if setting.batches != "poisson" else setting.exposed
    )
    amplified = not why
    epsilon = _direct(setting, relation, setting.participations)
    if amplified:
        epsilon = poisson_epsilon(**_sampled(setting, relation), delta=setting.delta)
    if setting.hidden_state:
        note = (
            "The final model holds w_0, trained on labels without noise, whose release no ε covers. While w_0 "
            f"is withheld, the clients' ε = {figure(_whole(setting))} holds ({_WHOLE})."
        )
        return _claim(setting, "external", relation, note, direct_only=epsilon)
    if not amplified:
        note = f"No amplification is proved, since {why}: the bound against clients holds here."
        return _claim(setting, "external", relation, note, epsilon, _CLOSED, True)
    note = "Valid while batch ids, batch sizes (also on the wire) and the coins stay secret: they are the operator's."
    chance = poisson_guess(**_sampled(setting, relation))
    return replace(_claim(setting, "external", relation, note, epsilon, _PLD, True), guess=chance)


def _server(setting: MeanSetting) -> Claim:
    note = "Trusted: it holds the labels and sees every value before the noise."
    return replace(_claim(setting, "server", "replace", note), mechanism="none")


def _direct(setting: MeanSetting, relation: str, participations: int) -> float:
    """ε where a record moves nothing but its own term."""
    return participation_epsilon(
        participations=participations,
        sensitivity=setting.sensitivity(relation),
        sigma=setting.sigma,
        delta=setting.delta,
    )


def _sampled(setting: MeanSetting, relation: str) -> dict[str, Any]:
    """What the accountant of secret Poisson batches reads; P releases on one batch are one with z/√P."""
    return {
        "noise_multiplier": setting.noise_multiplier / math.sqrt(setting.perturbations),
        "rate": setting.batch / setting.rows,
        "releases": -(-setting.releases // setting.perturbations),
        "relation": relation,
    }


def _whole(setting: MeanSetting) -> float:
    return whole_mean_epsilon(
        releases=setting.releases,
        clip=setting.clip,
        sigma=setting.sigma,
        delta=setting.delta,
        load=setting.load,
    )


def _forecast(setting: MeanSetting) -> str:
    """What the worst case may shrink to once participation is counted."""
    expected = expected_participations(releases=setting.releases, rows=setting.rows, batch=setting.batch)
    figures = [figure(_direct(setting, relation, math.ceil(expected))) for relation in RELATIONS]
    return (
        " A record may be drawn every time, and the run counts how often it was; FORECAST, no guarantee: the "
        f"average, {figure(expected)} releases, gives ε = {figures[0]} (replace) or {figures[1]} (add or "
        "remove), and the maximum is higher."
    )


def _claim(
    setting: MeanSetting,
    adversary: str,
    relation: str,
    note: str,
    epsilon: float = math.inf,
    accountant: str = "none",
    holds: bool = False,
    direct_only: float | None = None,
) -> Claim:
    """Complete a row; without an accountant nothing is proved and ε is infinite."""
    reach = _accounted(setting, relation, accountant)
    terms = (setting.delta, _mechanism(setting), reach, relation, accountant)
    return Claim(
        *(adversary, epsilon, *terms, holds, note, _scope(setting), direct_only),
        multiplier=None if math.isnan(reach) else setting.sigma / reach,
        measured="mean slope",
    )


def _mechanism(setting: MeanSetting) -> str:
    if setting.noise == "none" or setting.sigma == 0:
        return "none"
    return f"floating-point Gaussian, σ={figure(setting.sigma)} on the mean slope, {setting.noise} noise"


def _accounted(setting: MeanSetting, relation: str, accountant: str) -> float:
    """The sensitivity that the accountant reckons with."""
    if accountant == "none":
        return math.nan
    return 2 * setting.clip * setting.load if accountant == _WHOLE else setting.sensitivity(relation)


def _scope(setting: MeanSetting) -> str:
    releases = "1 release" if setting.releases == 1 else f"{setting.releases:,} releases"
    return (
        f"{releases} of a clipped batch mean, C={figure(setting.clip)}, B={setting.batch:,} of "
        f"D={setting.rows:,} records, {setting.batches} batches; unit: one record"
    )
