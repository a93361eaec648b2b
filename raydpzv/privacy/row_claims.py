"""Which ε holds against whom where rows of arrays are noised: VAFL, ZOO-VFL, VFL-CZOFO.

Noise on embeddings is against the server: what is protected is one record's features at one client. The clients get
answers made from labels without noise, so nothing is proved against them. Noise on gradients is against the clients, of
whom one or all may look; what is protected is one record, its label included.

Hidden state: a client that backpropagates trains w_m on its own raw features, and w_0 is trained on raw labels. A
record used once moves them, and through them every later row, of other records too. All that is proved then is the
range of each row: R rows released, each within S, are (2S√R/σ)-GDP whatever came before them. Against the server not
even that holds: evaluation sends it h(w_m) of the held-out rows without noise. A ZOO-VFL client learns from its own
releases and the server's answers to them alone, so that each record's own rows are all that depends on it, and what it
embeds of held-out rows is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import replace

from raydpzv.privacy.claims import UNCHARGED, Claim, figure
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.row_accountant import claimed_mu, proved_mu
from raydpzv.privacy.row_setting import RowSetting

_CLOSED = "closed form (GDP)"
_WHOLE = "closed form (GDP) of all rows"
_TOLERANCE = 1 + 1e-9
_HIDDEN = (
    "the server trains w_0 on labels without noise and the clients w_m on raw features, and they carry a record into "
    "every later gradient"
)
_HELD_OUT = (
    "every evaluation sends the server embeddings of held-out rows without noise, and the clients' models that make "
    "them are trained on raw features"
)


def row_defect(setting: RowSetting) -> str:
    """Return why no ε at all can be given, or nothing."""
    what = setting.on
    if setting.sigma == 0:
        return f"no noise is added to the {what}s"
    if setting.clip is None:
        return f"the {what}s are not clipped, so that nothing bounds one record's part in them"
    if setting.noise == "seeded":
        return "the noise comes from a seed, and whoever has the seed subtracts it"
    return ""


def row_claims(setting: RowSetting) -> tuple[Claim, ...]:
    """Return the table: paper, the adversary that the noise is meant for, and the others, who see more."""
    broken = row_defect(setting)
    if broken:
        note = f"{_sentence(broken)}."
        return tuple(_claim(setting, who, note) for who in ("paper", "client", "external", "server"))
    proved = _proved(setting)
    rows = {"paper": _paper(setting, proved), setting.adversary: proved, "external": _external(setting)}
    rows.setdefault("client", _claim(setting, "client", "Its answers are made from labels without noise."))
    rows.setdefault(
        "server", _claim(setting, "server", "Trusted: it holds the labels and sees all before the noise.")
    )
    return tuple(rows[who] for who in ("paper", "client", "external", "server"))


def obstacle(setting: RowSetting) -> str:
    """Return why nothing private is made whatever the numbers of the table are."""
    if broken := row_defect(setting):
        return broken
    if setting.hidden:
        return _HELD_OUT if setting.on == "embedding" else _HIDDEN
    return "labels are not protected: the clients' answers are made from them without noise"


def caveats(setting: RowSetting) -> tuple[str, ...]:
    """Return what to print beside every ε of this setting, one clause each."""
    exact = "floating-point noise is not exactly Gaussian and can leak"
    return (f"never charged are {', '.join(UNCHARGED)}", exact)


def _paper(setting: RowSetting, proved: Claim) -> Claim:
    n = setting.expected_participations if setting.counted is None else setting.counted
    uploads = setting.expected_uploads
    epsilon = epsilon_of(claimed_mu(setting, n, uploads), setting.delta)
    argument = (
        f"counted participation, {n:,} releases of one record's rows"
        if setting.calibration == "counted"
        else f"the DPZV papers' argument of sampling, {uploads * setting.per_upload:,} releases at rate B/D"
    )
    plan = "" if setting.counted is not None else " if every client makes its expected share of the updates"
    note = f"What this calibration claims ({argument}{plan}); the DPZV papers do not state theirs for this method."
    holds = proved.epsilon <= epsilon * _TOLERANCE
    if not holds:
        note += " NOT proved."
    return _claim(setting, "paper", note, epsilon, _CLOSED, holds)


def _proved(setting: RowSetting) -> Claim:
    n, rows = setting.participations, setting.released
    basis = "bounded by the plan" if setting.counted is None else "as counted"
    epsilon = epsilon_of(proved_mu(setting, n, rows), setting.delta)
    if not setting.hidden:
        note = (
            f"Each record's own rows are all that depends on it: {n:,} releases of them at one client, {basis}. "
            "Labels are not protected."
        )
        return _claim(setting, setting.adversary, note, epsilon, _CLOSED, True)
    direct = epsilon_of(proved_mu(replace(setting, hidden=False), n, rows), setting.delta)
    if setting.on == "embedding":
        return _claim(setting, "server", f"{_sentence(_HELD_OUT)}.", direct_only=direct)
    note = (
        f"{_sentence(_HIDDEN)}: only the range of each of the {rows:,} rows released ({basis}) bounds one record's "
        "part."
    )
    return _claim(setting, setting.adversary, note, epsilon, _WHOLE, True, direct)


def _external(setting: RowSetting) -> Claim:
    return _claim(setting, "external", "The final model holds parts that were trained without noise.")


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}"


def _unit(setting: RowSetting) -> str:
    return "one record's features at one client" if setting.on == "embedding" else "one record"


def _claim(
    setting: RowSetting,
    adversary: str,
    note: str,
    epsilon: float = math.inf,
    accountant: str = "none",
    holds: bool = False,
    direct_only: float | None = None,
) -> Claim:
    """Complete a row; without an accountant nothing is proved and ε is infinite."""
    mechanism = "none"
    if setting.sigma > 0:
        mechanism = (
            f"floating-point Gaussian, σ={figure(setting.sigma)} per coordinate, {setting.noise} noise"
        )
    reach = math.nan if accountant == "none" else setting.sensitivity
    return Claim(
        adversary,
        epsilon,
        setting.delta,
        mechanism,
        reach,
        "replace",
        accountant,
        holds,
        note,
        _scope(setting),
        direct_only,
        multiplier=None if math.isnan(reach) else setting.sigma / reach,
        measured="row norm",
    )


def _scope(setting: RowSetting) -> str:
    clip = "unbounded" if setting.clip is None else f"clipped to norm {figure(setting.clip)}"
    uploads = f"{setting.updates:,} updates"
    return (
        f"{uploads}, {setting.per_upload} release(s) of {setting.batch:,} {setting.on} rows each, {clip}, of "
        f"D={setting.rows:,} records, {setting.batches} batches; unit: {_unit(setting)}"
    )
