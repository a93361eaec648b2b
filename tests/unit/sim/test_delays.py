"""Poisson delays: VAFL's rule for logistic regression, Section G.2."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from raydpzv.keys import Key
from raydpzv.sim.delays import DelayModel

CLIENTS, DRAWS = 4, 4000
MEANS = [m / CLIENTS for m in range(1, CLIENTS + 1)]
QUANTUM = 1 / (2 * CLIENTS)


@cache
def draws(law="poisson", quantum=QUANTUM, seed=11):
    delays = DelayModel(MEANS, law, Key(seed), quantum)
    return np.array([[delays.of(m, k) for k in range(DRAWS)] for m in range(CLIENTS)])


def mean_score(found, mean, variance):
    """How many standard errors the sample's mean is off."""
    return abs(found.mean() - mean) / np.sqrt(variance / len(found))


def variance_score(found, mean, quantum):
    """The same of the variance q²λ, whose estimate has the variance q⁴(λ + 2λ²)/n."""
    count = mean / quantum
    return abs(found.var(ddof=1) / quantum**2 - count) / np.sqrt(
        (count + 2 * count**2) / len(found)
    )


@pytest.mark.parametrize("client", range(CLIENTS))
def test_mean_and_variance_are_those_of_the_papers_rule(client):
    found, mean = draws()[client], MEANS[client]
    assert mean_score(found, mean, mean * QUANTUM) < 4
    assert variance_score(found, mean, QUANTUM) < 4
    # controls: another mean, and delays of the same mean that an exponential law would give
    assert mean_score(found, 1.1 * mean, mean * QUANTUM) > 4
    assert variance_score(draws("exponential")[client], mean, QUANTUM) > 4


def test_counts_follow_the_poisson_law_of_the_worker_and_no_other():
    found = np.rint(draws()[1] / QUANTUM).astype(int)  # worker m = 2: Poisson(4) / 8
    assert np.allclose(found * QUANTUM, draws()[1])
    observed = np.append(np.bincount(found, minlength=10)[:10], np.sum(found >= 10))

    def p_value(count):
        expected = np.append(stats.poisson.pmf(range(10), count), stats.poisson.sf(9, count))
        return stats.chisquare(observed, expected * DRAWS).pvalue

    assert p_value(4.0) > 0.01
    assert p_value(4.3) < 1e-6


def test_a_delay_depends_on_client_and_piece_of_work_only():
    delays = DelayModel(MEANS, "poisson", Key(5), QUANTUM)
    forward = [delays.of(m, k) for m in range(CLIENTS) for k in range(50)]
    backward = [delays.of(m, k) for m in reversed(range(CLIENTS)) for k in reversed(range(50))]
    assert forward == backward[::-1]
    assert forward != [
        DelayModel(MEANS, "poisson", Key(6), QUANTUM).of(m, k)
        for m in range(CLIENTS)
        for k in range(50)
    ]
    found = draws()
    assert np.abs(np.corrcoef(found) - np.eye(CLIENTS)).max() < 4 / np.sqrt(DRAWS)
    assert DelayModel([0.0], "poisson", Key(5), QUANTUM).of(0, 3) == 0.0


def test_the_slowest_worker_of_the_paper_takes_a_second_on_average():
    assert draws()[-1].mean() == pytest.approx(1.0, abs=4 * np.sqrt(QUANTUM / DRAWS))
