"""The arithmetic of shares, without a Ray."""

from __future__ import annotations

import pytest

from actors.placement import Share, plan
from raydpzv.errors import Unplaceable


def test_auto_shares_are_equal_and_fit(small):
    found = plan(small(), {"CPU": 2.0})
    assert found.server == Share(0.4, 0.0)
    assert found.actors == (Share(0.4, 0.0),) * 4
    assert found.clients == ((0,), (1,), (2,), (3,))
    assert len(found.bundles()) == 5
    assert plan(small(), {"CPU": 64.0}).server.cpus == 1.0


@pytest.mark.parametrize(("gpus", "share"), [(0, 0.0), (1, 0.2), (2, 0.3333), (5, 1.0), (8, 1.0)])
def test_auto_gpu_shares_fit_on_whole_devices(small, gpus, share):
    spec = small('resources.client_gpus="auto"', 'resources.server_gpus="auto"')
    found = plan(spec, {"CPU": 8.0, "GPU": float(gpus)})
    assert [s.gpus for s in (found.server, *found.actors)] == pytest.approx([share] * 5)
    if share:
        per_device = int(1 / found.server.gpus + 1e-6)
        assert per_device * gpus >= 5


def test_clients_share_actors_and_lists_add_up(small):
    found = plan(
        small("resources.client_actors=2", "resources.client_gpus=[0.1, 0.2, 0.3, 0.4]"), {"CPU": 2, "GPU": 1}
    )
    assert found.clients == ((0, 2), (1, 3))
    assert [s.gpus for s in found.actors] == [pytest.approx(0.4), pytest.approx(0.6)]
    assert plan(small("resources.client_actors=9"), {"CPU": 2}).clients == ((0,), (1,), (2,), (3,))
    assert plan(small("resources.client_actors=0"), {"CPU": 2}).actors == ()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("resources.client_gpus=1.5", "1.5 GPUs asked; above 1 a share must be a whole number"),
        ("resources.server_gpus=0.00001", "below Ray's resolution"),
        ("resources.client_gpus=0.6", "4 actors ask 2.4 GPU in all .*, the cluster has 1"),
        ("resources.server_cpus=3", "CPU in all .server 3, .*, the cluster has 2"),
    ],
)
def test_impossible_shares_are_refused(small, override, said):
    with pytest.raises(Unplaceable, match=said):
        plan(small(override), {"CPU": 2.0, "GPU": 1.0})
