"""Which ε holds against whom with privacy.mode = "user": the table. The unit of privacy is one user.

| adversary  | sees                                                                                     |
|------------|------------------------------------------------------------------------------------------|
| `paper`    | nobody: what the Uldp-FL paper's accountant states                                       |
| `external` | every released sum, and so every model                                                   |
| `client`   | one silo: the same, its own sum and its share of the noise; the others' records are kept |
| `server`   | the same, and what aggregation shows it of the silos; it draws the users' coins          |
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from raydpzv.privacy.claims import COUNTS_KNOWN, UNCHARGED, Claim, figure
from raydpzv.privacy.group_accountant import lemma_9_epsilon
from raydpzv.privacy.user_accountant import user_epsilon, user_epsilon_rdp, user_guess
from raydpzv.privacy.user_setting import ADVERSARIES, RELATIONS, UserSetting

_CLOSED = "closed form (GDP)"
_PLD = "PLD (dp-accounting), Poisson sampling"
_MIXTURE = "PLD (dp-accounting), mixture of Gaussians"
_RDP = "RDP"
_TOLERANCE = 1 + 1e-9


def user_claims(setting: UserSetting) -> tuple[Claim, ...]:
    """Return the table: the paper's row, then each adversary's under both relations."""
    rows = tuple(itertools.product(ADVERSARIES, RELATIONS))
    if broken := defect(setting):
        note = f"{broken[0].upper()}{broken[1:]}."
        return tuple(_claim(setting, *row, note) for row in (("paper", "add_remove"), *rows))
    return (*_paper(setting), *(_proved(setting, *row) for row in rows))


def caveats(setting: UserSetting) -> tuple[str, ...]:
    """Return what to print beside every ε of this setting, one clause each."""
    clauses = [f"never charged are {', '.join(UNCHARGED)}", "that a user is on the list is public"]
    if setting.drawn:
        clauses.append(setting.drawn)
    if setting.group_rule:
        clauses.append(_read_off(setting))
    if setting.late:
        clauses.append("every sum that a late upload opens is a release more, charged when it comes")
    if setting.delta * setting.users >= 1:
        clauses.append(
            f"δ = {setting.delta:g} is not below 1/U (U·δ = {figure(setting.delta * setting.users)}) and permits "
            "revealing whole users"
        )
    return tuple(clauses)


def defect(setting: UserSetting) -> str:
    """Return why no ε at all can be given, or nothing."""
    if setting.noise != "system":
        return "the noise comes from a seed, and whoever has the seed subtracts it"
    return ""


def _paper(setting: UserSetting) -> tuple[Claim, ...]:
    """The paper's ε; it is true where what is proved against outsiders is no larger. It has no asynchronous method."""
    if setting.asynchronous:
        return ()
    proved = user_epsilon(setting)
    if setting.kind == "group":
        epsilon, valid = (
            lemma_9_epsilon(
                multiplier=setting.multiplier,
                group=setting.group,
                rate=setting.rate,
                steps=setting.releases * setting.steps,
                delta=setting.delta,
                as_published=published,
            )
            for published in (True, False)
        )
        note = (
            f"The paper's Lemma 9 on k = {_power(setting.group)} of {setting.group} records, as published. "
        )
        if valid > epsilon * _TOLERANCE:
            note += (
                f"Its best order is below 2k, where the lemma does not hold: over orders that it holds for, it gives "
                f"{figure(valid)}. "
            )
        if _power(setting.group) < setting.group:
            note += "It says nothing of k that are no power of 2. "
        note += f"Exactly it is {figure(proved)}."
    elif setting.kind == "naive":
        epsilon = user_epsilon_rdp(replace(setting, kind="sum"))
        note = (
            "The paper's sensitivity C·S is wrong: without a user every silo's clipped update may lie anywhere in its "
            "ball, which moves their sum by up to 2C·S."
        )
    else:
        epsilon = user_epsilon_rdp(setting)
        note = "The paper's accounting, by Rényi divergences. True against outsiders; others may see more."
    holds = proved <= epsilon * _TOLERANCE
    return (_claim(setting, "paper", "add_remove", note, epsilon, _RDP, holds),)


def _proved(setting: UserSetting, adversary: str, relation: str) -> Claim:
    epsilon = user_epsilon(setting, adversary, relation)
    if setting.kind == "group":
        accountant = _CLOSED if setting.rate == 1 else _MIXTURE
        note = _of_group(setting)
    else:
        accountant = _PLD if setting.amplified(adversary) else _CLOSED
        note = " ".join(filter(None, (_sight(setting, adversary), _of_coins(setting, adversary))))
    if setting.remade:
        note += _of_remade(setting)
    elif setting.kind != "group" or adversary != "client":
        second = figure(user_epsilon_rdp(setting, adversary))
        note += f" By RDP, which holds for the discrete noise as it is, ε is {second} (add_remove)."
    if setting.group_rule:
        note += f" {_read_off(setting)}."
    if setting.weights == "records" and setting.aggregation != "private_weights" and setting.kind == "sum":
        note += " The counts n_su are known to the coordinator."
    if adversary == "client" and setting.change(adversary, "add_remove") != "add_remove":
        note += _of_counts(setting)
    claim = _claim(setting, adversary, relation, note, epsilon, accountant, True)
    return replace(claim, guess=user_guess(setting, adversary, relation))


def _of_group(setting: UserSetting) -> str:
    one = user_epsilon(replace(setting, group=1, group_rule=""))
    return (
        f"Every step of every silo is seen; of a user at most k = {setting.group} records are used, each drawn by a "
        f"coin that only its silo knows. For one record (k = 1) ε is {figure(one)} (add_remove). How many records "
        "each silo uses is public: it divides its steps by them."
    )


def _of_counts(setting: UserSetting) -> str:
    """What a user's records elsewhere do to a silo's own part, and what the silo is told of them."""
    own = "its weight of the user grows" if setting.kind == "sum" else "more of its own records are used"
    told = ""
    if setting.counts_known:
        what = "its weights" if setting.kind == "sum" else "which of its records are used"
        told = f" The silo is told {what}: how many records a user has elsewhere is not protected against it."
    return (
        f" Where the others' records of a user are missing, {own}: adding or removing them moves a release as far as "
        f"replacing them.{told}"
    )


def _of_remade(setting: UserSetting) -> str:
    noun = "releases" if setting.asynchronous else "rounds"
    return (
        f" {setting.remade:,} of the {noun} were lost by a kill, after they may have been seen, and made once more: "
        "counted twice, and as if no coins hid who was in them."
    )


def _sight(setting: UserSetting, adversary: str) -> str:
    """What the adversary sees beside the released sums, and what that does to the noise."""
    if setting.asynchronous:
        return "A silo's release has the noise of its share alone, σC/√S, and moves by C/S at most; all see them all."
    z = f"noise over what a user added or removed moves: {figure(setting.noise_multiplier(adversary, 'add_remove'))}."
    if adversary == "external":
        return f"Sees every released sum; {z}"
    if adversary == "client":
        if setting.silos == 1:
            return "There is no other silo."
        of = "" if setting.fewest is None else f", one of {setting.fewest} at the most"
        return (
            f"Knows its own sum and its share of the noise{of}; what the other silos hold is protected; {z}"
        )
    if setting.aggregation != "plain":
        return f"Sees the sum alone; {z}"
    return f"Sees every silo's own sum, with a share of the noise each; {z}"


def _of_coins(setting: UserSetting, adversary: str) -> str:
    if not setting.sampled:
        return ""
    if setting.amplified(adversary):
        return "Valid while the users' coins stay secret, and a number of updates alone ends the run."
    basis = "bounded by the plan" if setting.counted is None else "as counted"
    silos = (
        "silos' processes hold the coins' key"
        if setting.aggregation == "private_weights"
        else "silos know who is drawn"
    )
    why = "it draws the users' coins" if adversary == "server" else silos
    why = setting.exposed or why
    return f"No amplification, since {why}: a user takes part in at most {setting.participations:,} rounds, {basis}."


def _read_off(setting: UserSetting) -> str:
    return f"k = {setting.group} ({setting.group_rule} of users' records) is read off the data, which is not charged"


def _claim(
    setting: UserSetting,
    adversary: str,
    relation: str,
    note: str,
    epsilon: float = math.inf,
    accountant: str = "none",
    holds: bool = False,
) -> Claim:
    """Complete a row; without an accountant nothing is proved and ε is infinite."""
    changed, proved = setting.change(adversary, relation), accountant != "none"
    moved = setting.clip * setting.moved(changed) if proved else math.nan
    if adversary == "paper" and setting.kind == "naive":
        moved = setting.clip
    known = adversary in ("client", "server") and setting.counts_known
    return Claim(
        *(adversary, epsilon, setting.delta, _mechanism(setting), moved, relation, accountant, holds, note),
        scope=_scope(setting) + (COUNTS_KNOWN if known else ""),
        multiplier=setting.noise_multiplier(adversary, relation) if proved and adversary != "paper" else None,
        measured="gradients' norm" if setting.kind == "group" else "sum's norm",
    )


def _mechanism(setting: UserSetting) -> str:
    what = "each record's gradient" if setting.kind == "group" else "each vector"
    return (
        f"discrete Gaussian on whole numbers ({what} of norm C on a grid of {setting.bits} bits), "
        f"σ={figure(setting.multiplier)} times C, {setting.noise} noise"
    )


def _scope(setting: UserSetting) -> str:
    noun = "release" if setting.asynchronous else "round"
    count = f"{setting.releases:,} {noun}{'' if setting.releases == 1 else 's'}"
    what = {
        "sum": f"sums over users, {setting.weights} weights",
        "naive": "the silos' clipped updates",
        "group": f"{setting.steps} steps of DP-SGD in every silo, rate {figure(setting.rate)}, k={setting.group}",
    }[setting.kind]
    coins = f", users' coins q={figure(setting.sampling)}" if setting.sampled else ""
    away = "" if setting.fewest is None else f" (at least {setting.fewest} in a release)"
    return (
        f"{count} of {what}, C={figure(setting.clip)}, U={setting.users:,} users in S={setting.silos} "
        f"silos{away}{coins}, {setting.aggregation} aggregation; unit: one user"
    )


def _power(group: int) -> int:
    return 1 << (group.bit_length() - 1)
