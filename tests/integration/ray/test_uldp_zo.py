"""ULDP-ZO on actors: the bits of one process, and a silo whose actor dies."""

from __future__ import annotations

import pytest

import scenarios
from tests.helpers.small_users import SEEDED, small

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.mark.parametrize("kind", ["rounds", "asynchronous"])
def test_actors_have_the_bits_of_one_process(kind):
    spec = small(kind, SEEDED, "resources.hosts=2")
    local, found = scenarios.run(spec).summary, scenarios.run(spec, runner="ray").summary
    for name in ("digest", "model_digest", "bytes_up", "bytes_down"):
        assert found[name] == local[name], name
    assert found["ledger"]["digest"] == local["ledger"]["digest"]
