"""Machines that Ray's autoscaler starts, which are further nodes on this one."""

from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class FakeMachines(FakeMultiNodeProvider):  # type: ignore[misc]
    """Ray's own, whose machines may name memory, without which nothing comes for actors that ask
    for some.
    """

    def _create_node_with_resources_and_labels(
        self,
        node_config: Any,
        tags: Any,
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        counted = {name: amount for name, amount in resources.items() if name != "memory"}
        super()._create_node_with_resources_and_labels(node_config, tags, count, counted, labels)
