"""What tests define travels to Ray's workers by value: they cannot import it."""

from __future__ import annotations

import pytest

from tests.helpers import struck, struck_hosts


@pytest.fixture(autouse=True)
def _by_value(request: pytest.FixtureRequest) -> None:
    if "ray_session" in request.fixturenames:
        import ray

        for module in (request.module, struck, struck_hosts):
            ray.cloudpickle.register_pickle_by_value(module)
