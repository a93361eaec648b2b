"""The benchmarks of runs on Ray, in this process: one Ray of their own each would be half of their time."""

from __future__ import annotations

import pytest
import ray

from tests.helpers.benchmarks import figures, module

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.mark.slow
def test_lane_finishes_and_its_ways_do_the_same_work(monkeypatch, tmp_path):
    monkeypatch.setattr(module("watch", monkeypatch), "_BETWEEN", 0.0)
    cases = module("lane", monkeypatch).CASES
    case = "digits_dpzv, virtual clock"
    # long enough for two looks of the driver, five a second, at the faster way
    few = {case: (cases[case][0] // 2, (*cases[case][1], "resources.client_actors=1"))}
    found = figures("lane", monkeypatch, tmp_path, "--quick", CASES=few)
    assert list(found["runs"]) == [case]
    assert found["runs"][case].keys() == {"ray", "socket"}
    ways = [(trip["kilobytes"], trip["lane"]) for trip in found["round_trips"]]
    assert ways == [(size, lane) for size in (1, 10, 100, 400) for lane in ("ray", "socket")]
    assert all(0 < trip["p50_ms"] <= trip["p99_ms"] for trip in found["round_trips"])


@pytest.mark.slow
def test_throughput_finishes_on_ray(monkeypatch, tmp_path):
    throughput = module("vfl_throughput", monkeypatch)
    found = figures(
        *("vfl_throughput", monkeypatch, tmp_path, "--repeats", "1"),
        WORKS={5: 300},
        CLIENTS="split.clients=2",
        ON_RAY=throughput.ON_RAY[1::2],
    )
    by_way = {f["way"]: f for f in found["figures"]}
    assert by_way.keys() == {*("bare", "LocalExecutor", "Ray, wall clock", "Ray, no client actors")}
    # the added work is most of an update's CPU time, wherever it is done; within one run, since seconds depend on what
    # else the processor does now and did while the work was calibrated
    seconds = {name: figure["cpu_seconds_per_update"] for name, figure in by_way.items()}
    assert seconds["Ray, wall clock"]["clients"] > seconds["Ray, wall clock"]["server"]
    assert seconds["Ray, no client actors"]["server"] > seconds["Ray, no client actors"]["clients"]


@pytest.mark.slow
def test_a_lane_that_loses_an_end_keeps_its_digest_or_says_so(monkeypatch, tmp_path):
    """A blow to a client's actor; test_runner_contract.py and test_losses.py tell of the server and of hosts."""
    found = figures("lane_kills", monkeypatch, tmp_path, "--kills", "1")
    assert found["wrong"] == []
    assert [(o["end"], o["ended"]) for o in found["outcomes"]] == [("client", "same digest")]
    # the control: a blow that does not fall is found out
    kills = module("lane_kills", monkeypatch)
    ray.cloudpickle.register_pickle_by_value(kills)
    never = kills.Blow("kill", "client", 0, 10**9, 0.0, tmp_path / "mark")
    spec = kills.load(kills.SCENARIOS / "digits_dpzv.toml", kills.VERTICAL.settings)
    whole = kills.run_local(kills.prepare(spec), kills.RunOptions())
    struck = kills.strike(kills.VERTICAL, never, tmp_path / "run", whole)
    assert struck.ended == "same digest"
    assert struck.wrong == ["0 rows of faults", "the blow did not fall"]


@pytest.mark.slow
def test_a_run_that_loses_a_process_keeps_its_digest(monkeypatch, tmp_path):
    """Clients that pull; of other methods test_losses.py tells."""
    found = figures("fault_kills", monkeypatch, tmp_path, "--case", "decomfl_async", "--kills", "1")
    assert found["wrong"] == []
    assert [(o["end"], o["ended"]) for o in found["outcomes"]] == [("host", "same digest")]
