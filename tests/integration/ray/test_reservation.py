"""Places that are reserved on a real cluster, of one machine."""

from __future__ import annotations

import pytest

import scenarios
from actors.reservation import reserved
from actors.shares import Plan, Share
from raydpzv.errors import Unplaceable

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.mark.parametrize("placement", ["pack", "spread", "strict_pack"])
def test_ray_is_told_how_actors_are_to_lie(placement):
    from ray.util import placement_group_table

    with reserved(Plan(Share(0.5, 0.0), (Share(0.5, 0.0),), ((0,),), placement)) as group:
        assert placement_group_table(group)["strategy"] == placement.upper()


def test_actors_that_want_a_machine_each_are_refused_on_one_machine(small, tmp_path):
    alone = small("resources.placement=strict_spread", "resources.client_actors=2")
    with pytest.raises(Unplaceable, match="a machine for each of 3 actors, the cluster has 1; set resources"):
        scenarios.run(alone, tmp_path / "run", runner="ray")
    assert not (tmp_path / "run").exists()
