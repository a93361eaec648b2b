"""ε of rows that are noised once against mpmath, what is claimed of it, and what is refused."""

from typing import Any

import mpmath
import pytest

from raydpzv.errors import SpecError
from raydpzv.privacy.memoized import MemoizedReleasePlan, memoized_multiplier
from raydpzv.privacy.release import verdict

DELTA = 1e-4


def setting(**changes: Any) -> MemoizedReleasePlan:
    given = {
        "rows": 1000,
        "clients": 4,
        "width": 16,
        "clip": 0.5,
        "delta": DELTA,
        "noise_multiplier": 1.5,
    }
    return MemoizedReleasePlan(**{**given, **changes})


def exact_delta(epsilon: float, mu: Any) -> float:
    with mpmath.workdps(50):
        e = mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / mu + mu / 2) - mpmath.exp(e) * mpmath.ncdf(-e / mu - mu / 2))


@pytest.mark.parametrize("z", [0.8, 1.5, 8.0])
def test_epsilon_is_that_of_one_gaussian_of_2s_over_sigma(z: float) -> None:
    found = setting(noise_multiplier=z)
    assert exact_delta(found.epsilon, mpmath.mpf(2) / z) == pytest.approx(DELTA, rel=1e-6)
    assert exact_delta(found.record_epsilon, 2 * mpmath.sqrt(4) / z) == pytest.approx(
        DELTA, rel=1e-6
    )
    assert memoized_multiplier(epsilon=found.epsilon, delta=DELTA) == pytest.approx(z, rel=1e-9)


def test_every_row_of_the_table_holds_for_features_and_says_that_labels_are_not_protected() -> None:
    found = setting()
    rows = {c.adversary: c for c in found.table()}
    assert set(rows) == {"external", "client", "all_clients", "server"}
    for row in rows.values():
        assert (row.epsilon, row.delta, row.relation, row.holds) == (
            found.epsilon,
            DELTA,
            "replace",
            True,
        )
        assert row.sensitivity == 1.0
        assert row.scope.endswith("unit: one record's features at one client")
        assert "rounded Gaussian" in row.mechanism
        assert row.accountant == "closed form (GDP)"
    assert f"{found.record_epsilon:.4g}" in rows["server"].note
    assert "labels, which are not protected" in rows["server"].note
    assert "post-processing" in rows["external"].note
    said = verdict(found)
    assert not said.private
    assert said.text.startswith("NOT PRIVATE: labels are not protected")
    assert (
        "(δ = 0.0001, replace one record's features at one client) is proved against" in said.bounds
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noise": "seeded"}, "seeded"),
        ({"delta": 1e-3}, "1/D = 0.001"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"clip": float("inf")}, "clip"),
        ({"fitted": ("features are scaled by what is fitted",)}, "fitted"),
    ],
)
def test_what_proves_nothing_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        setting(**change)


def test_no_noise_reaches_an_infinite_epsilon() -> None:
    with pytest.raises(SpecError, match=r"privacy\.epsilon"):
        memoized_multiplier(epsilon=float("inf"), delta=DELTA)
