"""By which calls a driver says how far the run of a server actor may go."""

from __future__ import annotations

import pytest

from actors.run_until_port import RunUntilPort
from raydpzv.errors import RunError


def test_each_of_its_calls_reaches_the_horizon_that_the_servers_run_asks():
    port = RunUntilPort()
    port._horizon.reach(10**9)
    calls = {name: getattr(port, name) for name in RunUntilPort.HORIZON_CALLS}
    calls["allow"](3)
    assert port._horizon.limit == 3
    port._horizon.reach(3)
    calls["deny"]("the storage is full")
    with pytest.raises(RunError, match="the storage is full"):
        port._horizon.reach(4)
