"""Rényi accounting of Poisson-sampled Gaussian releases by dp-accounting: a second opinion, looser
than the PLD.

For add/remove only: its RdpAccountant omits a factor of 2 for replace-one (its issue 378).
"""

import dp_accounting
from dp_accounting import rdp


def poisson_epsilon_rdp(
    *, noise_multiplier: float, rate: float, releases: int, delta: float
) -> float:
    """Return ε (add or remove) of so many releases."""
    sampled = dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, releases))
    return float(accountant.get_epsilon(delta))
