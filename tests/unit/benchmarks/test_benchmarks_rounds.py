import itertools
import os
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import functional_call

from raydpzv.data.horizontal import batch_rows
from raydpzv.errors import RunError
from raydpzv.keys import Key
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.models.whole import whole
from raydpzv.sim.interfaces import Status
from tests.helpers.benchmarks import figures, module
from tests.helpers.runs import run_prepared as run_horizontal


def small_case(monkeypatch, **changes):
    case = module("federations", monkeypatch).Case(
        "cnn_mnist", 3, clients=6, cohort=2, rows=60, batch=4
    )
    return replace(case, **changes)


def in_this_process():
    """Do what benchmarks give to a helper of its own, which starts for seconds and has memory to
    itself.
    """
    return nullcontext(
        SimpleNamespace(submit=lambda work, *given: SimpleNamespace(result=lambda: work(*given)))
    )


@pytest.mark.slow
def test_decomfl_round_finishes_and_its_figures_agree(monkeypatch, tmp_path):
    threads = torch.get_num_threads()
    rounds = module("decomfl_round", monkeypatch)
    few = {"QUICK": rounds.QUICK[:1], "_FAR": 10, "WARM": 1, "ROUNDS": {"cnn_mnist": 2}}
    here = {"helper": in_this_process, "in_fresh_process": lambda work, *given: work(*given)}
    found = figures("decomfl_round", monkeypatch, tmp_path, "--quick", "--no-ray", **few, **here)
    torch.set_num_threads(threads)
    assert found["benchmark"] == "decomfl_round"
    assert len(found["figures"]) == 4
    assert all(f["seconds"] > 0 for f in found["figures"])
    theirs = [f for f in found["figures"] if f["name"].startswith("cnn_mnist, 2: as published")]
    # one turn: the faster number of threads is the unit
    assert max(f["times_faster"] for f in theirs) == pytest.approx(1.0)
    (parts,) = found["shares"].values()
    assert sum(parts.values()) == pytest.approx(1.0)
    assert all(share > 0 for share in parts.values())
    published, *ours = found["memory"]
    assert published["share"] == 1.0
    assert published["target"] is None
    assert [f["target"] for f in ours] == [0.2, 0.2]
    # eight models of 28,938 parameters, one of them twice
    assert published["above_idle_bytes"] > 9 * 4 * 28_938


@pytest.mark.slow
def test_fedavg_round_finishes_and_its_figures_agree(monkeypatch, tmp_path):
    found = figures("fedavg_round", monkeypatch, tmp_path, "--quick")
    (one,) = found["figures"]
    assert (found["benchmark"], one["model"], one["target"]) == ("fedavg_round", "cnn_mnist", 1.05)
    # one turn: the ratio of the medians is the median of the ratios
    assert one["over_bare"] == pytest.approx(one["cpu_seconds"] / one["bare_cpu_seconds"])
    assert one["met"] == (one["over_bare"] <= 1.05)


def test_a_bare_loop_of_fedavg_that_trains_another_model_is_refused(monkeypatch):
    """The benchmark itself, above, checks that its loop trains the program's."""
    rounds = module("fedavg_round", monkeypatch)
    case = small_case(monkeypatch)
    original = rounds.BareLoop._train

    def longer(self, client: int, number: int) -> list[torch.Tensor]:
        return [1.001 * p for p in original(self, client, number)]

    monkeypatch.setattr(rounds.BareLoop, "_train", longer)
    with pytest.raises(RunError, match="do not train alike"):
        rounds.check_models(case)


@pytest.mark.slow
def test_scale_finishes_and_its_two_opinions_of_an_idle_client_agree(monkeypatch, tmp_path):
    found = figures(
        "scale",
        monkeypatch,
        tmp_path,
        "--quick",
        in_fresh_process=lambda work, *given: work(*given),
    )
    places = {(f["mode"], f["clients"]): f for f in found["figures"]}
    assert places.keys() == {
        *(("per_client", m) for m in (20, 200)),
        *(("shared", m) for m in (20, 200, 2000)),
    }
    for f in places.values():
        assert f["seconds_per_round"] > 0
        assert f["ledger_bytes_per_update"] > 10 * (8 + 4)
    grown = found["growth"]
    # 4 bytes a row and 4 an offset; what all clients share is kept once; one int32
    assert grown["bytes_by_construction"]["table_bytes"] == pytest.approx(10 * 4 + 4, abs=0.5)
    assert grown["bytes_by_construction"]["timing_bytes"] == pytest.approx(0, abs=0.5)
    assert grown["bytes_by_construction"]["server_bytes"] == pytest.approx(4, abs=0.5)
    # rows: 16 float32 features and an int64 label, 10 of them and 2 % held out
    rows = grown["bytes_per_idle_client_with_rows"] - grown["bytes_per_idle_client"]
    assert rows == pytest.approx(10 * (16 * 4 + 8) / 0.98, rel=0.01)
    made = found["generated"]
    assert [f["clients"] for f in made["sizes"]] == [200, 20_000]
    assert made["bytes_per_idle_client"] == pytest.approx(4, abs=0.1), "its version alone"
    assert all(f["startup_seconds"] > f["seconds_per_round"] > 0 for f in made["sizes"])


def test_the_published_round_estimates_what_its_definition_says(monkeypatch):
    """Against forward differences at perturbed copies, made from the same seeds without any
    in-place step.
    """
    federations = module("federations", monkeypatch)
    case = small_case(monkeypatch)
    clients, cohorts = federations.published_of(case)
    network = module("published", monkeypatch).as_published(
        federations.federation_of(case, 1).plan.module()
    )
    prepared = federations.federation_of(case, 1)
    flat = clients.parameters(0).double()
    x, y = (
        torch.from_numpy(prepared.split.train.x).double(),
        torch.from_numpy(prepared.split.train.y),
    )
    network = network.to_empty(device="cpu").double()
    shapes = [(name, p.shape) for name, p in network.named_parameters()]

    def loss(at: torch.Tensor, ids: torch.Tensor) -> float:
        pieces = torch.split(at, [shape.numel() for _, shape in shapes])
        named = {
            name: piece.view(shape) for (name, shape), piece in zip(shapes, pieces, strict=True)
        }
        return float(
            torch.nn.functional.cross_entropy(functional_call(network, named, x[ids]), y[ids])
        )

    def direction(seed: int) -> torch.Tensor:
        generator = torch.Generator()
        generator.manual_seed(seed)
        return torch.cat(
            [torch.randn(shape, generator=generator).reshape(-1) for _, shape in shapes]
        ).double()

    slopes = []
    for client in cohorts.draw(1).tolist():
        ids = torch.from_numpy(
            batch_rows(prepared.parts, Key(0), client, 1, 0, case.batch).astype(np.int64)
        )
        at_rest = loss(flat, ids)
        slopes.append(
            [(loss(flat + 1e-3 * direction(s), ids) - at_rest) / 1e-3 for s in clients._seeds(1)]
        )
    found = clients.round(1)
    # float32 losses over 1e-3: about 2e-4 of noise in each difference
    assert found == pytest.approx(np.mean(slopes, axis=0), abs=2e-3)
    assert np.abs(np.mean(slopes, axis=0)).max() > 0.05


def test_published_clients_revert_and_catch_up_with_what_they_missed(monkeypatch):
    federations = module("federations", monkeypatch)
    clients, cohorts = federations.published_of(small_case(monkeypatch, clients=3, cohort=1))
    start = clients.parameters(0)
    (first,) = cohorts.draw(1).tolist()
    clients.round(1)
    assert torch.equal(clients.parameters(first), start)  # reverted
    expected = [start.clone()]
    for number in range(2, 8):
        mean = clients._past[number - 1]
        step = start * 0
        for seed, value in zip(clients._seeds(number - 1), mean, strict=True):
            generator = torch.Generator()
            generator.manual_seed(seed)
            pieces = [
                torch.randn(p.shape, generator=generator) for p in clients._models[0].parameters()
            ]
            step -= 1e-3 / 3 * value * torch.cat([piece.reshape(-1) for piece in pieces])
        expected.append(expected[-1] + step)
        clients.round(number)
        (client,) = cohorts.draw(number).tolist()
        assert torch.allclose(clients.parameters(client), expected[-1], atol=1e-6)
        assert not torch.allclose(clients.parameters(client), expected[-2], atol=1e-6)


def test_who_missed_what_is_what_a_run_records(monkeypatch):
    federations, published = module("federations", monkeypatch), module("published", monkeypatch)
    case = small_case(monkeypatch, model="logistic")
    rows = run_horizontal(federations.federation_of(case, 12)).rows("sync").to_pydict()
    cohorts = Cohorts(case.clients, case.cohort, Key(0))
    for round, client, missed in zip(rows["round"], rows["client"], rows["missed"], strict=True):
        assert missed == round - 1 - published.reads(cohorts, round)[client]
    usual = list(itertools.islice(published.usual_rounds(cohorts, 5), 4))
    by_round = dict.fromkeys(rows["round"], 0)
    for round, missed in zip(rows["round"], rows["missed"], strict=True):
        by_round[round] += missed
    assert [r for r, missed in by_round.items() if r >= 5 and missed == 6] == [
        r for r in usual if r <= 12
    ]


@pytest.mark.parametrize("model", ["cnn_mnist", "cnn_fashion"])
def test_the_published_network_has_the_same_values_with_torchs_pooling(monkeypatch, model):
    network = whole(model, (1, 28, 28), (), 10)
    other = module("published", monkeypatch).as_published(network)
    kinds = [type(layer).__name__ for layer in other]
    assert "SlicedMaxPool" not in kinds
    assert all(kinds[i - 1] == "ReLU" for i, kind in enumerate(kinds) if kind == "MaxPool2d")
    x = torch.from_numpy(Key(1).generator().standard_normal((3, 1, 28, 28), np.float32))
    torch.testing.assert_close(network(x), other(x), rtol=0, atol=1e-6)


def test_programs_that_do_not_train_the_same_model_are_refused(monkeypatch):
    rounds = module("decomfl_round", monkeypatch)
    rounds.check_losses((small_case(monkeypatch),))
    monkeypatch.setitem(rounds.PARAMETERS, "cnn_mnist", 1)
    with pytest.raises(RunError, match="do not train the same model"):
        rounds.check_losses((small_case(monkeypatch),))
    monkeypatch.undo()
    rounds = module("decomfl_round", monkeypatch)
    original = module("published", monkeypatch).Published.loss
    monkeypatch.setattr(
        "published.Published.loss", lambda self, client, rows: original(self, client, rows) + 1e-4
    )
    with pytest.raises(RunError, match="do not train the same model"):
        rounds.check_losses((small_case(monkeypatch),))


def test_ledgers_that_differ_are_refused_and_those_of_two_threads_do_not(monkeypatch):
    rounds = module("decomfl_round", monkeypatch)
    case = small_case(monkeypatch)
    turn = {way: rounds.take_turn(way, case) for way in rounds.OURS}
    rounds.check_digests(turn)
    assert all(t.digest for t in turn.values())
    turn[rounds.OURS[1]] = replace(turn[rounds.OURS[1]], digest="another")
    with pytest.raises(RunError, match="ledgers differ"):
        rounds.check_digests(turn)


def test_ratios_are_to_the_faster_published_way_of_the_same_turn(monkeypatch):
    rounds = module("decomfl_round", monkeypatch)
    case = rounds.CASES[1]
    seconds = {rounds.WAYS[0]: [2.0, 9.0], rounds.WAYS[1]: [4.0, 6.0], rounds.WAYS[2]: [1.0, 1.0]}
    seconds[rounds.WAYS[3]] = [0.5, 0.1]
    turns = {
        case: {way: [rounds.Turn(s, 2 * s + 1) for s in taken] for way, taken in seconds.items()}
    }
    found = {f["way"]: f for f in rounds.figures(turns)}
    assert found["raydpzv, 1 thread"]["times_faster"] == 4.0
    assert found["raydpzv, 2 threads"]["times_faster"] == pytest.approx((4 + 60) / 2)
    assert (found["raydpzv, 2 threads"]["target"], found["raydpzv, 2 threads"]["met"]) == (
        0.35,
        True,
    )
    assert found["raydpzv, 1 thread"]["target"] is None
    # CPU time of one thread each: 5 and 19 seconds over 3
    assert found["raydpzv, 1 thread"]["times_less_cpu"] == pytest.approx((5 + 19) / 3 / 2)
    assert found["raydpzv, 1 thread"]["cpu_target"] == 5.0
    assert all(
        np.isnan(f["times_less_cpu"]) for way, f in found.items() if way != "raydpzv, 1 thread"
    )


def test_the_clock_of_rounds_leaves_out_the_first_and_takes_each_when_it_is_first_seen(monkeypatch):
    benchmark = module("rounds", monkeypatch)
    now, cpu = iter([1.0, 2.0, 5.0, 6.0, 7.0]), iter([0.0, 1.0, 2.0, 3.0, 2.5])
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(benchmark.time, "process_time", lambda: next(cpu))
    rounds = benchmark.Rounds()
    for updates in (0, 1, 2, 2, 4):  # polled, a round may go unseen
        rounds(Status(updates=updates))
    assert rounds.latest == 4
    assert rounds.done(2) == 5.0
    assert rounds.pace(1) == benchmark.Pace((7.0 - 2.0) / 3, (2.5 - 1.0) / 3)
    assert rounds.median_pace(1) == benchmark.Pace(2.0, 0.625)
    with pytest.raises(RunError, match="use a longer run"):
        rounds.pace(4)


def test_each_helper_is_a_process_of_its_own(monkeypatch):
    in_fresh_process = module("fresh_process", monkeypatch).in_fresh_process
    assert len({os.getpid(), in_fresh_process(os.getpid), in_fresh_process(os.getpid)}) == 3


def test_growth_is_fitted_from_the_second_size_on(monkeypatch):
    scale = module("scale", monkeypatch)

    def run(clients: int, seconds: float) -> dict[str, float]:
        return {
            "seconds_per_round": 1.0,
            "cpu_seconds_per_round": seconds,
            "above_idle_bytes": 1e6 + 820 * clients,
            "row_bytes": 720 * clients,
            "table_bytes": 48 * clients + 100,
            "timing_bytes": 40 * clients,
            "server_bytes": 4 * clients,
        }

    seconds = {100: 5.0, 1000: 1.0, 10_000: 1.2, 100_000: 1.44}
    turns = {("shared", m): [run(m, s)] * 2 for m, s in seconds.items()}
    turns["per_client", 1000] = [run(1000, 3.0)] * 2
    grown = scale.growth(turns)
    for name, value in (
        ("seconds_ratio", 1.44),
        ("seconds_factor_per_tenfold", 1.2),
        ("bytes_per_idle_client", 100),
        ("bytes_per_idle_client_with_rows", 820),
    ):
        assert grown[name] == pytest.approx(value)
    assert grown["bytes_by_construction"]["sum"] == pytest.approx(92)
    assert grown["met"] is False
    by_place = {(f["mode"], f["clients"]): f for f in scale.figures(turns)}
    assert by_place["shared", 1000]["faster_than_per_client"] == 3.0
    assert np.isnan(by_place["shared", 100]["faster_than_per_client"])


def test_both_modes_of_a_size_are_the_same_run(monkeypatch):
    scale = module("scale", monkeypatch)
    runs = [
        run_horizontal(scale.prepare_horizontal(scale.spec_of(mode, 20, 5, 4)))
        for mode in (scale.SHARED, scale.PER_CLIENT)
    ]
    assert runs[0].summary["ledger"]["digest"] == runs[1].summary["ledger"]["digest"]


def test_held_counts_every_object_once_and_arrays_with_what_they_are_views_of(monkeypatch):
    held = module("held", monkeypatch).held
    base = np.zeros(1000, np.int64)
    one = held(SimpleNamespace(a=base))
    assert 8000 < one < 9000
    assert held(SimpleNamespace(a=base, b=base)) - one < 200
    assert held(SimpleNamespace(a=base[:10])) > 8000
    assert held([0.5] * 1000) - held([0.5] * 500) == 500 * 8


def test_a_model_per_user_in_a_loop_gives_the_sum_of_the_silos_roles_and_another_is_refused(
    monkeypatch,
):
    rounds = module("uldp_round", monkeypatch)
    problem = rounds.Problem(rounds.Case(120, 5))
    rounds.check_sums(problem)
    monkeypatch.setattr(rounds, "ours", lambda problem: 1.1 * rounds.published(problem))
    with pytest.raises(RunError, match="do not compute the same"):
        rounds.check_sums(problem)
