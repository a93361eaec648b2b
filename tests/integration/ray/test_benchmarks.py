"""The benchmarks of runs on Ray, in this process: one Ray of their own each would be half of their time."""

from __future__ import annotations

import importlib
import json

import pytest
import ray

from tests.helpers.programs import ROOT, script_here

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.mark.slow
def test_lane_finishes_and_its_ways_do_the_same_work(tmp_path):
    script_here("lane.py", "--quick", "--json", str(tmp_path / "l.json"))
    figures = json.loads((tmp_path / "l.json").read_text())
    assert list(figures["runs"]) == [
        "digits_dpzv, wall clock",
        "digits_dpzv, virtual clock",
        "digits_decomfl, 2 hosts",
    ]
    assert all(by_lane.keys() == {"ray", "socket"} for by_lane in figures["runs"].values())
    ways = [(trip["kilobytes"], trip["lane"]) for trip in figures["round_trips"]]
    assert ways == [(size, lane) for size in (1, 10, 100, 400) for lane in ("ray", "socket")]
    assert all(0 < trip["p50_ms"] <= trip["p99_ms"] for trip in figures["round_trips"])


@pytest.mark.slow
def test_throughput_finishes_on_ray(tmp_path):
    # not --quick: a look at updates and one at CPU time are a moment apart, which tells over few updates
    script_here("vfl_throughput.py", "--repeats", "1", "--works", "5", "--json", str(tmp_path / "t.json"))
    by_way = {f["way"]: f for f in json.loads((tmp_path / "t.json").read_text())["figures"]}
    assert by_way.keys() > {"bare", "LocalExecutor", "Ray", "Ray, wall clock", "Ray, no client actors"}
    # the added work is most of an update's CPU time, wherever it is done; within one run, since seconds hang on what
    # else the processor does now and did while the work was calibrated
    seconds = {name: figure["cpu_seconds_per_update"] for name, figure in by_way.items()}
    for way in ("Ray", "Ray, wall clock", "Ray, 1 client actor"):
        assert seconds[way]["clients"] > seconds[way]["server"]
    assert seconds["Ray, no client actors"]["server"] > seconds["Ray, no client actors"]["clients"]


@pytest.mark.slow
def test_a_lane_that_loses_an_end_keeps_its_digest_or_says_so(tmp_path):
    """One blow for each of a client's actor, the vertical server and a host."""
    script_here("lane_kills.py", "--kills", "3", "--json", str(tmp_path / "k.json"))
    figures = json.loads((tmp_path / "k.json").read_text())
    assert figures["wrong"] == []
    assert [(o["end"], o["ended"]) for o in figures["outcomes"]] == [
        ("client", "same digest"),
        ("host", "same digest"),
        ("server", "named error"),
    ]
    # the control: a blow that does not fall is found out
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        kills = importlib.import_module("lane_kills")
        ray.cloudpickle.register_pickle_by_value(kills)
        never = kills.Blow("kill", "client", 0, 10**9, 0.0, tmp_path / "mark")
        spec = kills.load(kills.SCENARIOS / "digits_dpzv.toml", kills.VERTICAL.settings)
        whole = kills.run_local(kills.prepare(spec), kills.RunOptions())
        found = kills.strike(kills.VERTICAL, never, tmp_path / "run", whole)
    assert found.ended == "same digest"
    assert found.wrong == ["0 rows of faults", "the blow did not fall"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "ends"),
    [
        ("dpzv", ["client"]),
        ("frozen", ["client", "server"]),
        ("decomfl_async", ["driver", "host", "server"]),
    ],
)
def test_a_run_that_loses_a_process_keeps_its_digest(tmp_path, case, ends):
    """One with a ledger, one without, and one whose clients pull."""
    kills = ("--case", case, "--kills", str(len(ends)))
    script_here("fault_kills.py", *kills, "--json", str(tmp_path / "k.json"))
    figures = json.loads((tmp_path / "k.json").read_text())
    assert figures["wrong"] == []
    assert [(o["end"], o["ended"]) for o in figures["outcomes"]] == [(end, "same digest") for end in ends]
