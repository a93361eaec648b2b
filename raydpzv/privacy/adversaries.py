"""Which ε holds against whom: the side-by-side table, and the verdict.

| adversary  | sees                                                                       |
|------------|----------------------------------------------------------------------------|
| `paper`    | what the DPZV papers claim, whoever looks                                  |
| `client`   | one client or all of them: every release, and which rows are in each batch |
| `external` | the released values and the final model; no ids, no batch sizes, no seed   |
| `server`   | everything: trusted, so that its ε is always infinite                      |

An ε is never given without mechanism, neighbouring relation, adversary, accountant and δ. The relations:
"replace" changes one record, its label included (labels only: the same bound); "add_remove" sets one record's
term to zero, the divisor and the schedule of batches staying as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raydpzv.privacy.accountant import (
    RELATIONS,
    Spending,
    participation_epsilon,
    poisson_epsilon,
    whole_mean_epsilon,
)
from raydpzv.privacy.calibrate import expected_participations, paper_epsilon
from raydpzv.privacy.setting import Setting

UNCHARGED = (
    "hyper-parameter search",
    "evaluation (every accuracy and loss that is shown)",
    "standardisation fitted on the data",
    "the choice of the best model",
    "the timing of messages",
)
"""What no ε here ever includes."""

_CLOSED = "closed form (GDP)"
_WHOLE = "closed form (GDP), whole-mean bound"
_PLD = "PLD (dp-accounting), Poisson sampling"
_TOLERANCE = 1 + 1e-9
_WEAK = 20.0  # e^20: the odds of a guess may grow by nine digits
_CONDITIONAL = "direct_only is no guarantee, it is what ε would be if the server kept no hidden state"


@dataclass(frozen=True)
class Claim:
    """One row of the table. `holds`: is ε proved against this adversary? `note`: why, or on what condition.

    `direct_only` is no guarantee: it is what ε would be if the server kept no hidden state, None where the
    question does not arise.
    """

    adversary: str
    epsilon: float
    delta: float
    mechanism: str
    relation: str
    accountant: str
    holds: bool
    note: str
    direct_only: float | None = None


def claims(setting: Setting) -> tuple[Claim, ...]:
    """Return the table: paper, client and external under both relations, server."""
    clients = tuple(_client(setting, relation) for relation in RELATIONS)
    external = tuple(_external(setting, relation) for relation in RELATIONS)
    return (_paper(setting, clients[0]), *clients, *external, _server(setting))


def verdict(setting: Setting) -> tuple[bool, str]:
    """Return whether a per-record ε is proved against the clients, and why, in one or two plain sentences."""
    broken = defect(setting)
    if broken:
        return False, f"NOT PRIVATE: {broken}."
    client = _client(setting, "replace")
    proved = f"ε={_figure(client.epsilon)} at δ={setting.delta:g}"
    if setting.hidden_state:
        return False, (
            f'NOT PRIVATE: server "{setting.server}" trains w_0 on labels without noise, and w_0 carries a '
            f"record into every later release. All that is proved is {proved}."
        )
    above = setting.target is not None and client.epsilon > setting.target * _TOLERANCE
    missed = f", not the target ε={_figure(setting.target or 0.0)}" if above else ""
    weak = ", which promises next to nothing" if client.epsilon > _WEAK else ""
    return True, (
        f"Proved against the clients (replace one record, {setting.participations_kind} of participation): "
        f"{proved}{missed}{weak}. Mind: {'; '.join(caveats(setting))}."
    )


def caveats(setting: Setting) -> tuple[str, ...]:
    """Return what to print beside every ε of this setting, one clause each."""
    clauses = [
        f"never charged are {', '.join(UNCHARGED)}",
        "floating-point noise is not exactly Gaussian and can leak",
    ]
    if setting.delta * setting.rows > 1:
        excess = _figure(setting.delta * setting.rows)
        clauses.append(
            f"δ={setting.delta:g} is above 1/D (D·δ = {excess}) and permits revealing whole records"
        )
    return tuple(clauses)


def defect(setting: Setting) -> str:
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


def spending(setting: Setting, relation: str = "replace") -> Spending:
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


def _paper(setting: Setting, client: Claim) -> Claim:
    """The paper's ε; it is true exactly where the bound proved against the clients is no larger."""
    if defect(setting):
        return _claim(setting, "paper", "replace", defect(setting))
    epsilon = paper_epsilon(
        setting.releases, sigma=setting.sigma, clip=setting.clip, rows=setting.rows, delta=setting.delta
    )
    holds = client.epsilon <= epsilon * _TOLERANCE
    truth = (
        "here no smaller than what is proved against the clients, hence true"
        if holds
        else "NOT proved: a client chose its batches and knows them, so that nothing amplifies its privacy"
    )
    hidden = (
        "; w_0, trained without noise, carries a record into later releases" if setting.hidden_state else ""
    )
    form = "; papers' λ form: twice this C, same ε" if setting.two_lambda else ""
    note = (
        f"as claimed by the paper (DPZV Theorem VI.5); {truth}{hidden}; the printed clip is one-sided "
        f"and bounds nothing, here it is two-sided; search and evaluation are not charged{form}"
    )
    return _claim(setting, "paper", "replace", note, epsilon, _CLOSED, holds)


def _client(setting: Setting, relation: str) -> Claim:
    if defect(setting):
        return _claim(setting, "client", relation, defect(setting))
    direct = _direct(setting, relation, setting.participations)
    if setting.hidden_state:
        note = (
            f'server "{setting.server}" keeps un-noised state, by which one record moves every later '
            f"slope: only the range of the whole mean bounds a release; {_CONDITIONAL}"
        )
        return _claim(setting, "client", relation, note, _whole(setting), _WHOLE, True, direct)
    note = (
        f"knows its batches: a record's {setting.participations} releases ({setting.participations_kind}) "
        "count in full, all clients' together, since others' releases reach a client by the cached embeddings"
    )
    if setting.counted is None and setting.batches != "shuffle":
        note += _forecast(setting, relation)
    return _claim(setting, "client", relation, note, direct, _CLOSED, True)


def _external(setting: Setting, relation: str) -> Claim:
    if defect(setting):
        return _claim(setting, "external", relation, defect(setting))
    poisson = setting.batches == "poisson"
    epsilon = _poisson(setting, relation) if poisson else _direct(setting, relation, setting.participations)
    if setting.hidden_state:
        note = (
            "the final model has a w_0 trained on labels without noise, whose release no ε covers; "
            f"while w_0 is withheld the client's ε={_figure(_whole(setting))} holds; {_CONDITIONAL}"
        )
        return _claim(setting, "external", relation, note, direct_only=epsilon)
    if not poisson:
        note = f'"{setting.batches}" batches: no amplification is proved; the client\'s bound holds here too'
        return _claim(setting, "external", relation, note, epsilon, _CLOSED, True)
    note = (
        "valid while batch ids, batch sizes (also on the wire) and the run's seed stay secret (the coins "
        "come from the seed, which must not be published) and the run's length does not depend on the batches"
    )
    return _claim(setting, "external", relation, note, epsilon, _PLD, True)


def _server(setting: Setting) -> Claim:
    note = "trusted: it holds the labels and sees every value before the noise"
    return Claim("server", math.inf, setting.delta, "none", "replace", "none", False, note)


def _direct(setting: Setting, relation: str, participations: int) -> float:
    """ε where a record moves nothing but its own term."""
    return participation_epsilon(
        participations=participations,
        sensitivity=setting.sensitivity(relation),
        sigma=setting.sigma,
        delta=setting.delta,
    )


def _poisson(setting: Setting, relation: str) -> float:
    """ε of secret Poisson batches; P releases on one batch are one with z/√P."""
    return poisson_epsilon(
        noise_multiplier=setting.noise_multiplier / math.sqrt(setting.perturbations),
        rate=setting.batch / setting.rows,
        releases=-(-setting.releases // setting.perturbations),
        delta=setting.delta,
        relation=relation,
    )


def _whole(setting: Setting) -> float:
    return whole_mean_epsilon(
        releases=setting.releases,
        clip=setting.clip,
        sigma=setting.sigma,
        delta=setting.delta,
        load=setting.load,
    )


def _forecast(setting: Setting, relation: str) -> str:
    """What the worst case may shrink to once participation is counted."""
    expected = expected_participations(releases=setting.releases, rows=setting.rows, batch=setting.batch)
    epsilon = _direct(setting, relation, math.ceil(expected))
    return (
        f"; a record may be drawn every time, and the run counts how often it was: FORECAST, no guarantee: "
        f"{_figure(expected)} releases on average give ε={_figure(epsilon)}, the maximum is higher"
    )


def _claim(
    setting: Setting,
    adversary: str,
    relation: str,
    note: str,
    epsilon: float = math.inf,
    accountant: str = "none",
    holds: bool = False,
    direct_only: float | None = None,
) -> Claim:
    """Complete a row; without an accountant nothing is proved and ε is infinite."""
    reach = 2 * setting.clip * setting.load if accountant == _WHOLE else setting.sensitivity(relation)
    mechanism = (
        f"floating-point Gaussian on the clipped batch mean, σ={_figure(setting.sigma)} ({setting.noise}), "
        f"sensitivity {_figure(reach)}"
    )
    if setting.noise == "none" or setting.sigma == 0:
        mechanism = "none"
    return Claim(adversary, epsilon, setting.delta, mechanism, relation, accountant, holds, note, direct_only)


def _figure(value: float) -> str:
    return "∞" if value == math.inf else f"{value:.4g}"
