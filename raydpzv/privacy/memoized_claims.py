"""Which ε holds against whom where every row is noised once, by clients that never learn: the table.

The server sees the noised rows and nothing else of the features; whatever it makes of them, the head included, is
post-processing, so that its ε holds against everybody. Labels are the server's own and are not protected.
"""

from __future__ import annotations

from raydpzv.privacy.claims import UNCHARGED, Claim
from raydpzv.privacy.memoized_setting import MemoizedSetting

_CLOSED = "closed form (GDP)"
_UNIT = "one record's features at one client"


def memoized_claims(setting: MemoizedSetting) -> tuple[Claim, ...]:
    """Return the table: external, one client, all clients, server."""
    whole = f"ε = {setting.record_epsilon:.4g} (replace, {_CLOSED}, δ = {setting.delta:g})"
    server = (
        f"It holds the labels, which are not protected, and sees each row as it was noised once, however often. Of a "
        f"record's features at all {setting.clients} clients together: {whole}. Held-out rows are not protected: their "
        "embeddings are sent without noise to be scored, by models that depend on no record."
    )
    others = (
        "Sees no more of the features than the server, whose head is made from noised rows: post-processing."
    )
    return tuple(
        _claim(setting, adversary, server if adversary == "server" else others)
        for adversary in ("external", "client", "all_clients", "server")
    )


def obstacle(setting: MemoizedSetting) -> str:
    """Return why nothing private is made, whatever is proved of features."""
    return "labels are not protected: the head is made from them without noise"


def caveats(setting: MemoizedSetting) -> tuple[str, ...]:
    """Return what to print beside every ε of this setting, one clause each."""
    return (f"never charged are {', '.join(UNCHARGED)}",)


def _claim(setting: MemoizedSetting, adversary: str, note: str) -> Claim:
    return Claim(
        adversary=adversary,
        epsilon=setting.epsilon,
        delta=setting.delta,
        mechanism=f"rounded Gaussian on rows, once, z={setting.noise_multiplier:.4g} times S, system noise",
        sensitivity=2 * setting.clip,
        relation="replace",
        accountant=_CLOSED,
        holds=True,
        multiplier=setting.noise_multiplier / 2,
        measured="row norm",
        note=note,
        scope=(
            f"each embedding of {setting.width} coordinates clipped to norm {setting.clip:.4g} and noised once, of "
            f"D={setting.rows:,} records at {setting.clients} clients; unit: {_UNIT}"
        ),
    )
