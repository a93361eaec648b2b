"""Which ε holds against whom with privacy.mode = "sound": the table.

| adversary     | sees                                                                               |
|---------------|------------------------------------------------------------------------------------|
| `external`    | all releases and the final model; no row numbers, no batch sizes, no coins          |
| `client`      | one client: all releases, and which rows are in each of its own                     |
| `all_clients` | all clients together: all releases, and which rows are in each                      |
| `server`      | everything before the noise: trusted, nothing is proved                             |

The unit of privacy is one record. A lone client is not counted on its own releases only, since the others' reach it
through the cached embeddings. Whatever cannot be proved was refused when the setting was made.
"""

from __future__ import annotations

import math
from dataclasses import replace

from raydpzv.privacy.claims import UNCHARGED, Claim, figure
from raydpzv.privacy.sound_accountant import clients_epsilon, external_epsilon, external_guess
from raydpzv.privacy.sound_setting import SoundSetting

_CLOSED = "closed form (GDP)"
_PLD = "PLD (dp-accounting), Poisson sampling"
_TABLE = "The guarantee is about the table as loaded, and about training rows."


def sound_claims(setting: SoundSetting) -> tuple[Claim, ...]:
    """Return the table: external, one client, all clients, server; beside adding and removing what replacing costs."""
    replaced = (replace(setting, relation="replace"),) if setting.relation == "add_remove" else ()
    return (
        *(row for one in (setting, *replaced) for row in _proved(one)),
        _claim(
            setting,
            "server",
            "Trusted: it holds the labels and sees every value before the noise. Nothing is proved.",
        ),
    )


def _proved(setting: SoundSetting) -> tuple[Claim, ...]:
    return (
        _external(setting),
        _clients(setting, "client", "The others' releases reach it through the cached embeddings, so that "),
        _clients(setting, "all_clients", "Together they know which rows are in each release, so that "),
    )


def caveats(setting: SoundSetting) -> tuple[str, ...]:
    """Return what to print beside every ε of this setting, one clause each."""
    clauses = [f"never charged are {', '.join(UNCHARGED)}"]
    if setting.server == "dp_sgd":
        clauses.append("the head's noise is floating-point, not exactly Gaussian, and can leak")
    if setting.delta * setting.rows >= 1:
        clauses.append(
            f"δ = {setting.delta:g} is not below 1/D (D·δ = {figure(setting.delta * setting.rows)}) and permits "
            "revealing whole records"
        )
    return tuple(clauses)


def _clients(setting: SoundSetting, adversary: str, why: str) -> Claim:
    basis = "bounded by the plan for every order of arrival" if setting.counted is None else "as counted"
    counts = f"all releases of a record count in full, at most {setting.participations:,}, {basis}"
    note = f"{why}{counts}. {_TABLE}"
    note = note[0].upper() + note[1:]
    return _claim(setting, adversary, note, clients_epsilon(setting), _CLOSED)


def _external(setting: SoundSetting) -> Claim:
    if setting.premise:
        note = (
            f"No amplification is proved, since {setting.premise}: the clients' number holds here. {_TABLE}"
        )
        return _claim(setting, "external", note, clients_epsilon(setting), _CLOSED)
    note = (
        "Amplified by secret Poisson batches. Valid while row numbers, batch sizes (also on the wire) and the coins "
        f"stay with the operator, and a number of updates alone ends the run. {_TABLE}"
    )
    claim = _claim(setting, "external", note, external_epsilon(setting), _PLD)
    return replace(claim, guess=external_guess(setting))


def _claim(
    setting: SoundSetting, adversary: str, note: str, epsilon: float = math.inf, accountant: str = "none"
) -> Claim:
    """Complete a row; without an accountant nothing is proved and ε is infinite."""
    proved = accountant != "none"
    return Claim(
        adversary=adversary,
        epsilon=epsilon,
        delta=setting.delta,
        mechanism=_mechanism(setting) if proved else "none",
        sensitivity=_sensitivity(setting) if proved else math.nan,
        relation=setting.relation,
        accountant=accountant,
        holds=proved,
        note=note,
        scope=_scope(setting),
        multiplier=setting.effective_multiplier / setting.change if proved else None,
        measured="mean gradient" if setting.head_alone else "mean slopes",
    )


def _mechanism(setting: SoundSetting) -> str:
    noise = f"z={figure(setting.noise_multiplier)} over one record's term"
    if setting.head_alone:
        return f"Gaussian on the head's gradient, {noise}, system noise"
    slopes = f"rounded Gaussian on integers, {noise}"
    if setting.head_multiplier is None:
        return f"{slopes}, system noise"
    return (
        f"{slopes}, and Gaussian on the head's gradient, z_0={figure(setting.head_multiplier)}, system noise"
    )


def _sensitivity(setting: SoundSetting) -> float:
    """How far one record moves the released mean of slopes, in Euclidean norm: c V / (Q B)."""
    return setting.change * setting.clip * math.sqrt(setting.perturbations) / setting.release_rows


def _scope(setting: SoundSetting) -> str:
    releases = "1 release" if setting.releases == 1 else f"{setting.releases:,} releases"
    if setting.head_alone:
        what = f"the head's gradient, of norm {figure(setting.clip)} at most a record"
        return (
            f"{releases} of {what}, {setting.release_rows:,} of D={setting.rows:,} records, {setting.batches} batches; "
            "unit: one record"
        )
    return (
        f"{releases} of {setting.perturbations} slopes, one vector of norm {figure(setting.clip)}·√"
        f"{setting.perturbations} at most a record, {setting.release_rows:,} of D={setting.rows:,} records, "
        f"{setting.batches} batches; unit: one record"
    )
