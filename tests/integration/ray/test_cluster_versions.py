import json
import platform

import pytest
import ray

from actors import cluster_address
from raydpzv.errors import InputError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.mark.parametrize("other", [{"ray_version": "2.9.3"}, {"python_version": "3.9.18"}])
def test_a_cluster_of_another_ray_or_python_is_named_at_once(other):
    from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray._raylet import GcsClient

    address = ray.get_runtime_context().gcs_address
    gcs = GcsClient(address=address)
    own = gcs.internal_kv_get(CLUSTER_METADATA_KEY, namespace=KV_NAMESPACE_CLUSTER)
    there = json.loads(own) | other
    cluster_address.joinable(address, "--address")
    said = (
        f"Ray at {address} wanted the versions that it was started with, Ray "
        f"{there['ray_version']} and Python "
        rf"{there['python_version']}, got Ray {ray.__version__} and Python"
        rf" {platform.python_version()}; run with those "
        rf"\(ray=={there['ray_version']}\)"
    )
    gcs.internal_kv_put(
        CLUSTER_METADATA_KEY, json.dumps(there).encode(), True, namespace=KV_NAMESPACE_CLUSTER
    )
    try:
        with pytest.raises(InputError, match=said):
            cluster_address.joinable(address, "--address")
    finally:
        gcs.internal_kv_put(CLUSTER_METADATA_KEY, own, True, namespace=KV_NAMESPACE_CLUSTER)


def test_a_head_that_has_no_versions_on_record_yet_is_left_to_ray():
    class Empty:
        def internal_kv_get(self, key, namespace):
            return None

    cluster_address.check_versions(Empty(), "192.0.2.1:6379")
