import json
import os
import socket
import subprocess
import sys
import tempfile

import pytest

import scenarios
from actors import ray_watcher
from tests.helpers.programs import Forked
from tests.helpers.ray_heads import free_port, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_run_waits_for_a_machine_with_its_labels_and_goes_there_and_rows_say_how_far_clocks_are_apart():
    command = [sys.executable, "-m", "tests.helpers.growing_cluster"]
    # socket paths below the temporary folder must stay under 107 bytes; nobody else is to find this
    # cluster
    with tempfile.TemporaryDirectory(prefix="rz", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder}
        found = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
    assert found.returncode == 0, found.stdout + found.stderr
    told = json.loads(found.stdout.splitlines()[-1])
    asked = "labels ask zone = b for clients, which no machine carries; labels there are zone = a"
    assert f"a machine with zone = b, up to 150 s: {asked}" in told["stages"]
    assert told["zones"] == {"0": "a", "1": "b"}
    assert told["digests"][0] == told["digests"][1]

    plain, ahead = told["clocks"]
    # both machines are this one: their clocks agree, as far as question and answer tell
    assert [row["party"] for row in plain["rows"]] == ["host 0", "host 0"]
    assert all(0 < abs(row["offset"]) <= row["error"] < 0.2 for row in plain["rows"])
    assert not any("clock of the machine" in line for line in plain["warnings"])
    clients = [f"client {m}" for m in range(4)]
    assert [row["party"] for row in ahead["rows"]] == [*clients, *clients]
    assert all(abs(row["offset"] - 0.5) <= row["error"] for row in ahead["rows"])
    assert {row["node"] for row in ahead["rows"]} == {row["node"] for row in plain["rows"]}
    assert [row["time"] > 0 for row in ahead["rows"]] == 4 * [False] + 4 * [True]
    (line,) = [line for line in ahead["warnings"] if "clock of the machine" in line]
    assert "of client 0, client 1, client 2, client 3 is 0.5" in line
    assert "ahead of the server's, more than a tenth of the 0.25 s between two activations" in line


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
