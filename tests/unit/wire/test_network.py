import math

import pytest

from raydpzv.wire.network import Network, instant


def test_a_message_takes_the_latency_and_its_size_over_the_bandwidth() -> None:
    network = Network(latency=[0.5, 0.25], up=[100.0, math.inf], down=[math.inf, 1000.0])
    assert network.uplink(0, 50) == pytest.approx(0.5 + 0.5)
    assert network.downlink(0, 50) == 0.5
    assert network.uplink(1, 50) == 0.25
    assert network.downlink(1, 50) == pytest.approx(0.25 + 0.05)
    assert network.uplink(0, 0) == 0.5


def test_an_upload_needs_its_size_only_where_the_uplink_is_limited() -> None:
    network = Network([0.0, 0.0], up=[100.0, math.inf], down=[math.inf, 1.0])
    assert [network.needs_size(m) for m in (0, 1)] == [True, False]


def test_an_instant_network_has_no_delay() -> None:
    network = instant(3)
    for m in range(3):
        assert network.uplink(m, 10**12) == network.downlink(m, 10**12) == 0
        assert not network.needs_size(m)
