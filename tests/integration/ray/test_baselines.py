"""DPZV's baselines on real actors: the bits of a run in one process."""

from __future__ import annotations

import pytest

import scenarios

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SHORT = ("budget.updates=60", "evaluate.every=30", "network.latency=0.05", "resources.client_actors=1")
BETWEEN = "resources.client_actors=2"
NOISE = (
    "privacy.mode=paper",
    "privacy.epsilon=1.0",
    "privacy.delta=1e-5",
    "privacy.clip=1.0",
    "privacy.noise=seeded",
)
COMPRESSED = ("method.name=czofo", "method.upload_bits=4", "method.answer_bits=8")


@pytest.mark.parametrize(
    "extra",
    [
        ("method.max_delay=8", BETWEEN),
        ("method.query_first=true", BETWEEN),
        NOISE,
        ("method.name=zoo_vfl", *NOISE),
        (*COMPRESSED, *NOISE),
    ],
    ids=[
        "queries",
        "requests",
        "noise by the clients",
        "two releases an upload",
        "shared directions, compressed",
    ],
)
def test_the_digest_is_that_of_one_process(extra):
    spec = scenarios.load("vafl", [*SHORT, *extra])
    local, found = scenarios.run(spec).summary, scenarios.run(spec, runner="ray").summary
    assert found["digest"] == local["digest"]
    assert found["model_digest"] == local["model_digest"]


def test_queries_are_answered_between_actors_under_the_wall_clock():
    wall = ("clock.kind=wall", "arrivals.rate=10.0", "method.max_delay=8", "network.latency=0.0", BETWEEN)
    run = scenarios.run(scenarios.load("vafl", [*SHORT, *wall]), runner="ray")
    assert run.summary["updates"] == 60
    staleness = run.rows("staleness").to_pylist()
    assert max(row["age_max"] for row in staleness) <= 8
    assert sum(row["missing"] for row in staleness) == 0


def test_requests_are_answered_between_actors_under_the_wall_clock():
    wall = (
        "clock.kind=wall",
        "arrivals.rate=10.0",
        "method.query_first=true",
        "network.latency=0.0",
        BETWEEN,
    )
    run = scenarios.run(scenarios.load("vafl", [*SHORT, *wall]), runner="ray")
    kinds = [m["kind"] for m in run.rows("message").to_pylist()]
    assert kinds.count("Embeddings") == run.summary["updates"] == 60
    assert 56 <= kinds.count("Gradient") <= kinds.count("GradientRequest")
