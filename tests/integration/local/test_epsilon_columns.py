"""ε of release rows, made of all rows at once when they are drained, against ε solved for after
every release.
"""

import math

import numpy as np
import pytest

import raydpzv as scenarios
from raydpzv.records.schema import MU_COLUMNS
from raydpzv.sim.privacy_filter import PlanFilter
from tests.helpers.public_data import PUBLIC

SMALL = ("data.train_rows=300", "data.test_rows=60", "budget.updates=70", "evaluate.every=1000")


@pytest.mark.parametrize(
    ("name", "settings", "kinds"),
    [
        ("digits_dpzv", (), "both finite"),
        ("digits_dpzv", ("method.server=frozen", "method.perturbations=3", *PUBLIC), "both finite"),
        ("digits_dpzv", ("method.server=frozen", *PUBLIC, "data.split=stratified"), "paper finite"),
        ("digits_dpzv", ("method.batches=poisson", "method.batch=20"), "both finite"),
        ("digits_dpzv", ("privacy.noise=seeded",), "infinite"),
        ("vafl", ("method.noise_on=gradient", "privacy.mode=paper", "privacy.epsilon=5", "privacy.delta=1e-3",
                         "privacy.clip=1"), "both finite"),
        ("vafl", ("method.noise_on=embedding", "privacy.mode=paper", "privacy.epsilon=5", "privacy.delta=1e-3",
                         "privacy.clip=1"), "paper finite"),
    ],
)  # fmt: skip
def test_columns_have_the_bits_of_one_release_at_a_time(monkeypatch, name, settings, kinds):
    slow = []
    charge = PlanFilter.charge

    def charged(self, client, ids, releases, attempt=None):
        loss = charge(self, client, ids, releases, attempt)
        slow.extend([loss.epsilons()] * releases)
        return loss

    monkeypatch.setattr(PlanFilter, "charge", charged)
    rows = scenarios.run(scenarios.load(name, [*SMALL, *settings])).rows("release")
    found = np.stack([rows.column(column).to_numpy() for column in MU_COLUMNS], axis=1)
    assert len(found) >= 70
    assert found.view(np.uint64).tolist() == np.array(slow).view(np.uint64).tolist()
    finite = np.isfinite(found).all(0).tolist()
    assert (
        finite
        == {"both finite": [True, True], "paper finite": [True, False], "infinite": [False, False]}[
            kinds
        ]
    )
    if kinds == "both finite":
        assert (np.diff(found, axis=0) >= 0).all()
        assert found[0, 0] < found[-1, 0] < math.inf
