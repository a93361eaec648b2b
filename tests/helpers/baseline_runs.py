"""Short runs of DPZV's baselines on digits."""

import scenarios

E, B, T = 2, 32, 60
SHORT = ("budget.updates=60", "evaluate.every=30", "method.batch=32")
NOISE = ("privacy.mode=paper", "privacy.epsilon=1.0", "privacy.delta=1e-5", "privacy.clip=1.0")
SEEDED = (*NOISE, "privacy.noise=seeded")
MESSY = (
    "network.latency=0.05",
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "arrivals.rate=[1,2,0.5,1]",
)


def run(name, *overrides, **options):
    return scenarios.run(scenarios.load(name, [*SHORT, *overrides]), **options)
