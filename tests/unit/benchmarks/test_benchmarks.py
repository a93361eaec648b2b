import importlib
import json
import math
import pickle
import time

import numpy as np
import pytest
import torch

from raydpzv.errors import RunError
from raydpzv.methods.roles import Order
from raydpzv.wire.messages import Evaluate, Start
from tests.helpers.benchmarks import FOLDER, figures, module
from tests.helpers.programs import Forked, said
from tests.helpers.runs import run_prepared


def test_storages_peak_is_the_closed_form(monkeypatch):
    memory = module("memory", monkeypatch)
    shape = memory.Shape(layers=6, width=448, rows=2)  # above what keeps directions
    closed = dict(zip(memory.VARIANTS, (1 + 1 / 6, 2 + 1 / 6, 2.0, 3.0), strict=True))
    for name, (build, momentum) in memory.VARIANTS.items():
        with module("peaks", monkeypatch).LiveStorages() as live:
            peak = memory._peak(live, build, shape, torch.ones(2, 448), momentum)
        is_query = memory.activation_bytes(shape, name)
        assert abs(peak - is_query - closed[name] * shape.parameter_bytes) <= is_query


@pytest.mark.slow
def test_memory_finishes_and_its_two_opinions_are_the_closed_form(monkeypatch, tmp_path):
    variants = module("memory", monkeypatch).VARIANTS
    two = {name: variants[name] for name in ("DPZV", "first order")}
    found = figures("memory", monkeypatch, tmp_path, "--quick", VARIANTS=two)
    assert found["benchmark"] == "memory"
    size, layer = found["parameter_bytes"], found["largest_layer_share"]
    for name, factor in (("DPZV", 1 + layer), ("first order", 2.0)):
        # the storages are exact but for activations; a process also has its pages of other things
        assert found["variants"][name]["peak_bytes_second_opinion"] == pytest.approx(
            factor * size, rel=0.03
        )
        assert found["variants"][name]["peak_bytes"] == pytest.approx(
            factor * size, rel=0.1, abs=3e6
        )
    assert found["variants"]["DPZV"]["over_first_order"] < 1


def test_struck_actors_take_the_place_of_each_class_that_is_killed(monkeypatch):
    kills = module("lane_kills", monkeypatch)
    assert len(kills.CLASSES) == 5
    for place, cls, how in kills.CLASSES.values():
        started, changed = [], type(cls.__name__, (how, cls), {})
        here = importlib.import_module(place)
        monkeypatch.setattr(here, "start", lambda *arguments, to=started: to.append(arguments))
        with kills.starting(place, cls, changed):
            here.start(cls, {"ctl": 1})
            here.start(int)
            assert pickle.loads(pickle.dumps(cls)) is cls, (
                "super() fails in a class that travels by value"
            )
        here.start(cls)
        assert started == [(changed, {"ctl": 1}), (int,), (cls,)]


def test_a_kernel_benchmark_needs_neither_pydantic_nor_ray():
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n"
        f"sys.modules |= dict.fromkeys(['pydantic', 'ray', 'pyarrow']); import memory, replay"
    )
    said(Forked(["-c", code]))


def test_replay_finishes_and_its_figures_agree(monkeypatch, tmp_path):
    found = figures("replay", monkeypatch, tmp_path, "--quick")
    assert (found["benchmark"], found["size"], found["repeats"]) == ("replay", 1 << 18, 2)
    assert found["baseline_ns"].keys() == {"cpu", "wall"}
    cases = {(f["law"], f["seeds"], f["threads"]): f for f in found["figures"]}
    assert len(cases) == len(found["figures"]) == 2 * 3 * 2
    for (law, seeds, threads), f in cases.items():
        assert f["ns"] > 0
        # of two turns mean and extremes give both times of each, but not which were one turn's
        middle, half = found["baseline_ns"][f["clock"]], found["baseline_spread"][f["clock"]] / 2
        first, second = middle * (1 + half), middle * (1 - half)
        times = f["ns_least"], 2 * f["ns"] - f["ns_least"]
        turns = [np.mean([first / one, second / other]) for one, other in (times, times[::-1])]
        assert f["ratio"] in (pytest.approx(turns[0]), pytest.approx(turns[1]))
        assert f["of_limit"] == pytest.approx(f["ratio"] / f["limit"])
        assert f["target"] == (
            {"gaussian": 3, "rademacher": 25}[law] if seeds > 1 and threads == 1 else None
        )
    assert cases["gaussian", 16, 1]["limit"] == pytest.approx(6.72 / 1.07)
    assert cases["rademacher", 1, 2]["limit"] == pytest.approx(2 * 6.72 / 0.44)


def test_replay_times_the_seeds_it_says(monkeypatch):
    benchmark = module("replay", monkeypatch)
    calls: list[tuple[int, str, int]] = []
    monkeypatch.setattr(
        benchmark,
        "replay",
        lambda x, seeds, c, law, threads: calls.append((len(seeds), law, threads)),
    )
    _, found = benchmark.turn(torch.zeros(8), torch.Generator())
    assert calls == [(case.seeds, case.law, case.threads) for case in found]
    ticks = iter([100, 1300])
    assert benchmark.nanoseconds(lambda: next(ticks), 600, lambda: None) == 2.0


def test_update_overhead_finishes_and_its_figures_agree(monkeypatch, tmp_path):
    found = figures("update_overhead", monkeypatch, tmp_path, "--quick", QUICK=40)
    assert found["benchmark"] == "update_overhead"
    lines = found["lines"]
    assert [line["line"] for line in lines][-3:] == ["ages", "staleness", "progress"]
    assert found["bare_us"] > 0
    reached = 0.0
    for line in lines:
        reached += line["us_added"]
        assert line["us_beyond_bare"] == pytest.approx(reached, abs=1e-6)


def test_update_overheads_lines_record_what_they_say(monkeypatch):
    overhead = module("update_overhead", monkeypatch)
    written = []
    monkeypatch.setattr(overhead, "append_rows", lambda folder, rows: written.append(rows))
    experiment = overhead.prepared()
    for pieces in overhead.LINES.values():
        overhead.run(experiment, 20, pieces)
    rows = dict(zip(overhead.LINES, written, strict=True))
    assert {name: table["service"].num_rows for name, table in rows.items()} == {
        name: 20 if pieces.rows else 0 for name, pieces in overhead.LINES.items()
    }
    assert [rows[name]["staleness"].num_rows for name in ("ages", "staleness")] == [0, 60]
    assert math.isnan(rows["rows"]["release"]["epsilon_paper"][-1].as_py())
    assert rows["privacy"]["release"]["epsilon_paper"][-1].as_py() > 0


def test_throughput_finishes_without_ray(monkeypatch, tmp_path):
    monkeypatch.setattr(module("watch", monkeypatch), "_BETWEEN", 0.01)
    # clients do no work besides: how long it takes need not be known
    monkeypatch.setattr(module("busy", monkeypatch), "calibrate", lambda: 1.0)
    found = figures(
        "vfl_throughput", monkeypatch, tmp_path, "--no-ray", "--repeats", "1", WORKS={0: 300}
    )
    bare, local = found["figures"]
    assert (bare["way"], bare["over_bare"]) == ("bare", 1.0)
    assert (local["way"], local["target"]) == ("LocalExecutor", 0.8)
    for figure in (bare, local):
        assert figure["updates_per_second"] > 1
        assert 0 < figure["cpu_seconds_per_update"]["driver"] < 1
    # ids int32 [64] and two float32 [64, 2]; one float32
    assert found["bytes_per_message"] == {"up": 64 * (4 + 2 * 2 * 4), "down": 4}
    assert found["environment"]["torch_threads"] >= 1


def test_the_bare_loop_serves_in_the_runs_order_and_gives_its_bits(monkeypatch):
    throughput = module("vfl_throughput", monkeypatch)
    experiment = throughput.experiment_of(
        throughput.Way("check", ("privacy.noise=seeded",), lambda e, w: None), 60, 0
    )
    rows = run_prepared(experiment).rows("service").to_pydict()
    by_round = dict(zip(rows["round"], rows["client"], strict=True))
    assert throughput._serving_order(experiment) == [by_round[r] for r in range(1, 61)]
    throughput.check_bare(60)
    monkeypatch.setattr(throughput, "_serving_order", lambda e: [0, 1, 2, 3] * 15)
    with pytest.raises(RunError, match="differ from LocalExecutor's"):
        throughput.check_bare(60)


def test_busy_clients_burn_before_uploads_only_and_change_no_bits(monkeypatch):
    throughput, busy = module("vfl_throughput", monkeypatch), module("busy", monkeypatch)
    plain = throughput.experiment_of(throughput.HERE[1], 10, 0)
    burnt: list[int] = []
    monkeypatch.setattr(busy, "burn", burnt.append)
    role, other = busy.busy(plain, 7).clients[0].make(), plain.clients[0].make()
    assert np.array_equal(
        role.process(Order(0, Evaluate())).body.values,
        other.process(Order(0, Evaluate())).body.values,
    )
    assert burnt == []
    assert np.array_equal(
        role.process(Order(0, Start())).body.plus, other.process(Order(0, Start())).body.plus
    )
    assert burnt == [7]
    assert role.sha256() == other.sha256()
    assert busy.busy(plain, 0) is plain


def test_the_fastest_try_says_how_much_is_burnt_in_a_second(monkeypatch):
    busy = module("busy", monkeypatch)
    seconds, turns = iter([0.0, 2.0, 2.0, 3.0, 3.0, 7.0]), []
    monkeypatch.setattr(busy.time, "thread_time", lambda: next(seconds))
    monkeypatch.setattr(busy.np, "sin", lambda x, out: turns.append(x.size))
    assert busy.calibrate(tries=3, rounds=500) == 500  # in the second that the second try took
    assert turns == [4096] * 1500


def test_a_watch_leaves_out_the_warm_up_and_the_last_evaluation(monkeypatch):
    watching = module("watch", monkeypatch)
    now = iter([1.0, 2.0, 4.0, 100.0])
    monkeypatch.setattr(watching.time, "monotonic", lambda: next(now))
    watch = watching.Watch(warm=10, total=60)
    for updates in (5, 10, 20, 30, 50, 60):  # at 10 the processes are found; looks from 20 on
        watch.look(updates)
    pace = watch.pace()
    assert (pace.rate, pace.updates) == (30 / 3.0, 30)
    with pytest.raises(RunError, match="use a longer run"):
        watching.Watch(warm=10, total=60).pace()


def test_cpu_time_goes_to_the_process_that_spends_it(monkeypatch):
    census = module("processes", monkeypatch).Census.take()
    assert "driver" in census.groups.values()
    before, start = census.cpu_seconds()["driver"], time.process_time()
    while time.process_time() - start < 0.2:
        sum(range(1000))
    assert census.cpu_seconds()["driver"] - before == pytest.approx(0.2, abs=0.1)


def test_json_has_no_nan_and_medians_are_medians(monkeypatch, tmp_path):
    common = module("common", monkeypatch)
    path = common.write("x", {"a": math.nan, "b": [math.inf, 1.5]}, tmp_path / "deep" / "x.json")
    assert json.loads(path.read_text()) == {"benchmark": "x", "a": None, "b": [None, 1.5]}
    assert common.median([3.0, 1.0, 2.0]) == 2.0
    assert math.isnan(common.median([]))
    assert common.spread([1.0, 2.0, 3.0]) == 1.0
    assert (common.verdict(0.9, 0.8), common.verdict(0.7, 0.8)) == (">= 0.8 met", ">= 0.8 MISSED")
    assert (common.verdict(0.9, 0.8, at_most=True), common.verdict(1.0, None)) == (
        "<= 0.8 MISSED",
        "",
    )


def test_the_memory_figure_counts_what_each_method_keeps(monkeypatch):
    figure, peaks = module("memory_figure", monkeypatch), module("peaks", monkeypatch)
    name = "transformer of BERT's size"
    found = {}
    for method in figure.METHODS:
        for momentum in (0.0, 0.9):
            with peaks.LiveStorages() as live:
                spec = figure.scenario(figure.SMALL[name], method, momentum, 4)
                found[method, momentum] = figure.steps(spec, figure.SMALL[name], 4, "cpu", live)
    size = found["dpzv", 0.0]["parameters"]
    assert {case["parameters"] for case in found.values()} == {size}
    for method in figure.METHODS:  # a velocity is a copy of the parameters
        more = found[method, 0.9]["peak"] - found[method, 0.0]["peak"]
        assert more == pytest.approx(size, rel=0.01), method
    # backpropagation holds every gradient, zeroth order one perturbed layer; the largest here is
    # most of the model
    assert found["vafl", 0.0]["peak"] > 2 * size > found["dpzv", 0.0]["peak"] > size


def test_private_weighting_finishes_and_both_protocols_open_the_same_sum(monkeypatch, tmp_path):
    found = figures("private_weighting", monkeypatch, tmp_path, "--quick")
    assert found["benchmark"] == "private_weighting"
    plain, sampled = found["figures"]
    assert sampled["case"] == f"{plain['case']}, sampling"
    for figure in (plain, sampled):
        assert 0 < figure["full_exponent"] < figure["silo"]
        assert figure["silo_in_full_exponents"] == pytest.approx(
            figure["silo"] / figure["full_exponent"]
        )
        assert figure["upload_bytes"] == 128
        assert figure["ratio"] > 0


def test_private_weighting_compares_nothing_where_sums_differ(monkeypatch):
    weighting = module("private_weighting", monkeypatch)
    monkeypatch.setattr(module("protocol_one", monkeypatch), "encoded", lambda x: 0)
    with pytest.raises(RunError, match="open different sums"):
        weighting.take_turn(weighting.QUICK[0], 0)


def test_watched_and_unwatched_runs_take_turns(monkeypatch, capfd):
    exporters = module("exporters", monkeypatch)
    rates = exporters._turns(exporters.local, 40, 2)
    assert list(rates) == ["nothing on", "all on"]
    assert all(len(each) == 2 and all(rate > 0 for rate, _ in each) for each in rates.values())
    assert {share for _, share in rates["nothing on"]} == {0.0}
    assert all(0 < share < 1 for _, share in rates["all on"])
    ways = [
        line.split(":")[0].removeprefix("local, ") for line in capfd.readouterr().err.splitlines()
    ]
    assert ways == ["all on", "nothing on", "nothing on", "all on", "all on", "nothing on"]
