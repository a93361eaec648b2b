import json
import os
import socket

import pytest

import scenarios
from actors import ray_watcher
from tests.helpers.programs import Forked
from tests.helpers.ray_heads import free_port, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def autoscaling(port):
    """One machine with one CPU, and at the most another one like it, which comes when it is asked
    for.
    """
    machine = {
        "resources": {"CPU": 1, "memory": 2**30, "object_store_memory": 10**8},
        "node_config": {},
    }
    provider = {"type": "external", "module": "tests.helpers.fake_machines.FakeMachines"}
    nodes = {
        "gcs_address": f"127.0.0.1:{port}",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
    }
    kinds = {"ray.head.default": machine | {"max_workers": 0}, "more": machine | {"max_workers": 1}}
    commands = [
        f"{who}{what}_commands"
        for who in ("", "head_", "worker_")
        for what in ("setup", "start_ray")
        if who or what == "setup"
    ]
    return {
        "cluster_name": "grows",
        "max_workers": 1,
        "upscaling_speed": 1,
        "idle_timeout_minutes": 10,
        "provider": provider | nodes,
        "available_node_types": kinds,
        "head_node_type": "ray.head.default",
        "docker": {},
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "initialization_commands": [],
        **{name: [] for name in commands},
    }


@pytest.fixture
def autoscaled(tmp_path):
    """The address of a head with Ray's autoscaler; its processes, and the machines it starts, end
    with the test.
    """
    head = "f" * 51 + "00000"  # as the fake provider calls it
    gcs, dashboard, agent, clients = (free_port() for _ in range(4))
    mark, config = os.urandom(16).hex(), tmp_path / "autoscaling.yaml"
    config.write_text(json.dumps(autoscaling(gcs)))
    environment = {**os.environ, ray_watcher.MARK: mark, "RAY_FAKE_CLUSTER": "1"}
    environment |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    environment |= {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": head, "RAY_CLOUD_INSTANCE_ID": head}
    options = {
        "port": gcs,
        "autoscaling_config": config,
        "num_cpus": 1,
        "object_store_memory": 10**8,
    }
    options |= {"include_dashboard": "false", "dashboard_port": dashboard}
    options |= {"dashboard_agent_listen_port": agent, "ray_client_server_port": clients}
    with ray_head(environment, lambda: listens(gcs), **options):
        try:
            yield f"127.0.0.1:{gcs}"
        finally:
            ray_watcher.end(mark)
    assert not ray_watcher.marked(mark)


def test_an_autoscaler_starts_the_machine_a_run_waits_for(autoscaled):
    given = ("privacy.noise=seeded", "budget.updates=20", "evaluate.every=20")
    placed = (
        "resources.client_cpus=1",
        "resources.server_cpus=1",
        "resources.client_actors=1",
        "resources.placement_timeout=150",
    )
    overrides = [word for setting in (*given, *placed) for word in ("--set", setting)]
    command = ["-m", "scenarios", "run", "digits_dpzv", *overrides, "--json"]
    process = Forked([*command, "--runner", "ray", "--address", autoscaled])
    out, err = process.communicate()
    assert process.returncode == 0, err
    asked = "2 actors ask 2 CPU in all (server 1, clients 1), the cluster has 1"
    assert f"waiting for 1 CPU, up to 150 s: {asked}" in err
    alone = scenarios.run(scenarios.load("digits_dpzv", given))
    assert json.loads(out)["digest"] == alone.summary["digest"]
