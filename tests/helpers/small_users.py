"""Small private runs of users whose silos send scalars, in rounds and without."""

import scenarios
from raydpzv.config.scenario import HorizontalScenario

SMALL = (
    "data.train_rows=150",
    "data.test_rows=60",
    "split.clients=3",
    "users.count=12",
    "budget.updates=10",
    "method.perturbations=3",
    "evaluate.every=5",
    "network.latency=0.05",
    "record.snapshots=4",
    "privacy={}",
    "privacy.mode=user",
    "privacy.multiplier=2.0",
    "privacy.delta=1e-3",
    "privacy.clip=0.1",
)
KINDS = {
    "rounds": ("digits_users_zo", ("method.local_steps=2", "method.sampling=0.7")),
    "asynchronous": ("digits_users_async", ("clock.compute=0.3",)),
}

SEEDED = "privacy.noise=seeded"


def small(kind: str, *overrides: str) -> HorizontalScenario:
    """A scenario of 10 updates."""
    name, own = KINDS[kind]
    spec = scenarios.load(name, [*SMALL, *own, *overrides])
    assert isinstance(spec, HorizontalScenario)
    return spec
