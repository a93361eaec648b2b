"""A cluster of several machines, which loses, gains and slows them (docs/cluster.md)."""

import json
import re
import signal
import time

import pytest

import scenarios
from tests.helpers.commands import changed
from tests.helpers.machines import cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROUNDS = ("digits_decomfl", "method.perturbations=5", "budget.updates=60", "evaluate.every=20")
ROUNDS += ("resources.hosts=2", "resources.placement=spread")
UPLOADS = ("digits_dpzv", "privacy.noise=seeded", "budget.updates=600", "evaluate.every=200")
UPLOADS += ("resources.client_actors=1", "resources.placement=spread")
ELSEWHERE = 'resources.labels.server={zone = "!head"}'


@pytest.fixture(scope="module")
def bed():
    with cluster(RAY_AUTH_MODE="disabled") as machines:
        machines.add(2, zone="head")
        yield machines


@pytest.fixture
def two(bed):
    """A head and another machine, each with two CPUs; what a test leaves is lost after it."""
    if len(bed.machines) < 2:
        bed.add(2, zone="other")
    whole = [*bed.machines]
    yield bed.machines
    for machine in bed.machines[1:]:
        if machine not in whole or machine in bed.hurt or machine.lost():
            bed.lose(machine)


@pytest.fixture
def cables(bed):
    if bed.reason:
        pytest.skip(f"machines here share one network: {bed.reason}")


class Held:
    """A run that waits at evaluations."""

    def __init__(self, bed, machine, out, stops, name, *settings):
        words = ("-m", "tests.helpers.held_run", str(out), stops, name, *settings)
        self._process = bed.start(machine, *words)

    def waits(self):
        """Return the machines of server and others where it waits next."""
        line = self._process.stdout.readline()
        assert line.startswith("["), (line, self._process.communicate())
        server, *others = json.loads(line)
        return server, others

    def go_on(self):
        print(file=self._process.stdin, flush=True)

    def result(self):
        """Let it continue; return its digest, and why actors were made again."""
        out, err = self._process.communicate("\n", timeout=280)
        assert self._process.returncode == 0, out + err
        found = json.loads(out.splitlines()[-1])
        return found["digest"], found["faults"]


def alone(name, *settings):
    """Return the digest of the same run in one process."""
    return scenarios.run(scenarios.load(name, settings)).summary["digest"]


def test_readmes_run_fits_with_defaults_beside_an_old_token(bed, two, tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("ab" * 32)
    few = ("budget.updates=4", "evaluate.every=2")
    command = [
        "-m",
        "scenarios",
        "run",
        "decomfl_100k",
        "--runner",
        "ray",
        "--json",
        *changed(*few),
    ]
    found = bed.run(two[0], *command, HOME=str(tmp_path), RAY_AUTH_MODE="")
    assert found.returncode == 0, found.stderr
    summary = json.loads(found.stdout)
    assert summary["ray"]["hosts"] == 4
    assert summary["digest"] == alone("decomfl_100k", *few)


def test_a_run_that_does_not_fit_is_refused_with_a_table_of_machines(bed, two, tmp_path):
    out = tmp_path / "run"
    command = ["-m", "scenarios", "run", "digits_decomfl", "--runner", "ray", "--out", str(out)]
    shares = ("resources.server_cpus=1", "resources.host_cpus=1.2", "resources.hosts=2")
    found = bed.run(two[0], *command, *changed(*shares))
    assert found.returncode == 2
    table = [re.sub(r"[0-9.]+ GiB", "X GiB", row) for row in found.stderr.splitlines()[-4:]]
    assert [re.split("  +", row) for row in table] == [
        ["machine", "free", "asked"],
        [two[0].address, "2 CPU, X GiB of memory", "server: 1 CPU, X GiB of memory"],
        [two[1].address, "2 CPU, X GiB of memory", "1 host: 1.2 CPU, X GiB of memory"],
        ["no machine", "1 host: 1.2 CPU, X GiB of memory"],
    ]
    assert not out.exists()


def test_a_run_continues_after_the_loss_of_a_machine_with_clients(bed, two, tmp_path):
    held = Held(bed, two[0], tmp_path / "run", "20", *ROUNDS)
    server, others = held.waits()
    assert (server, sorted(others)) == (two[0].name, [two[0].name, two[1].name])
    bed.lose(two[1])
    digest, faults = held.result()
    assert digest == alone(*ROUNDS)
    assert len(faults) == 1
    assert "an actor was lost" in faults[0], "and nothing waited for as long as for slow work"


def test_a_machine_that_joined_in_mid_run_takes_over_from_that_of_the_server(bed, two, tmp_path):
    held = Held(bed, two[0], tmp_path / "run", "200,400", *UPLOADS, ELSEWHERE)
    assert held.waits() == (two[1].name, [two[0].name])
    third = bed.add(2, zone="other")
    bed.lose(two[1])
    held.go_on()
    assert held.waits() == (third.name, [two[0].name])
    digest, faults = held.result()
    assert digest == alone(*UPLOADS)
    assert len(faults) == 1


def test_after_the_loss_of_the_driver_and_its_ledger_the_same_line_resumes(bed, two, tmp_path):
    out = tmp_path / "shared"
    held = Held(bed, two[1], out, "20", *ROUNDS)
    assert held.waits()[0] == two[1].name, "beside the driver and its ledger"
    bed.lose(two[1])
    command = ["-m", "scenarios", "run", ROUNDS[0], "--runner", "ray", "--out", str(out)]
    again = bed.run(two[0], *command, "--or-resume", "--json", *changed(*ROUNDS[1:]))
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["digest"] == alone(*ROUNDS)


@pytest.mark.parametrize("loss", ["cable", "pause"])
def test_a_machine_that_comes_back_disturbs_nothing(bed, two, cables, tmp_path, loss):
    held = Held(bed, two[0], tmp_path / "run", "20,40", *ROUNDS)
    assert two[1].name in held.waits()[1]
    bed.cut(two[1]) if loss == "cable" else bed.pause(two[1])
    held.go_on()
    assert held.waits() == (two[0].name, [two[0].name] * 2)
    bed.mend(two[1]) if loss == "cable" else bed.pause(two[1], signal.SIGCONT)
    digest, faults = held.result()
    assert digest == alone(*ROUNDS)
    assert len(faults) == 1


def test_a_cable_that_is_cut_for_a_moment_costs_no_actor(bed, two, cables, tmp_path):
    held = Held(bed, two[0], tmp_path / "run", "20", *ROUNDS)
    assert two[1].name in held.waits()[1]
    bed.cut(two[1])
    held.go_on()
    time.sleep(1.0)  # a quarter of what Ray waits for
    bed.mend(two[1])
    assert held.result() == (alone(*ROUNDS), [])


def test_a_run_waits_for_a_machine_with_its_labels_and_records_how_far_clocks_are_apart(bed):
    process = bed.start(bed.machines[0], "-m", "tests.helpers.growing_cluster")
    awaited = "a machine with zone = late, up to 150 s: labels ask zone = late for clients, which no machine"
    while (stage := json.loads(process.stdout.readline() or "null")) and not stage.startswith(
        awaited
    ):
        continue
    assert stage, process.communicate()
    late = bed.add(1, zone="late")
    out, err = process.communicate(timeout=280)
    bed.lose(late)
    assert process.returncode == 0, out + err
    told = json.loads(out.splitlines()[-1])
    assert told["zones"] == {"0": "head", "1": "late"}
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
