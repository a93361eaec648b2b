"""VAFL, ZOO-VFL and VFL-CZOFO as whole runs: bytes, protocols, accounts, replay, contradictory settings."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

import scenarios
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.build import prepare
from raydpzv.experiment.replay import replay, resuming
from raydpzv.experiment.toml import parse
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.statements import claims

SHORT = ("budget.updates=60", "evaluate.every=30", "method.batch=32")
NOISE = ("privacy.mode=paper", "privacy.epsilon=1.0", "privacy.delta=1e-5", "privacy.clip=1.0")
SEEDED = (*NOISE, "privacy.noise=seeded")
MESSY = (
    "network.latency=0.05",
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "arrivals.rate=[1,2,0.5,1]",
)
E, B, T = 2, 32, 60


def run(name, *overrides, **options):
    return scenarios.run(scenarios.load(name, [*SHORT, *overrides]), **options)


def bytes_of(found):
    return found.summary["bytes_up"], found.summary["bytes_down"]


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("vafl", 4 * B + 4 * B * E, 4 * B * E),
        ("czofo", 4 * B + 4 * B * E, 4 * B * E),
        ("zoo_vfl", 4 * B + 8 * B * E, 4),
    ],
)
def test_the_bytes_are_the_formulas_with_and_without_noise(name, up, down):
    assert bytes_of(run(name)) == (T * up, T * down)
    assert bytes_of(run(name, *SEEDED)) == (T * up, T * down)


def test_bytes_of_every_protocol_are_what_its_messages_add_up_to():
    assert bytes_of(run("vafl", "method.noise_on=gradient", *SEEDED)) == (T * B * (4 + 4 * E), T * B * 4 * E)
    for extra in (["method.synchrony=t-synchronous", "method.wait_for=3"], ["method.synchrony=synchronous"]):
        assert bytes_of(run("vafl", *extra)) == (T * B * (4 + 4 * E), T * B * 4 * E)
    found = run("vafl", "method.max_delay=8", *MESSY)
    rows = found.rows("message").to_pylist()
    kinds = {
        k: [m for m in rows if m["kind"] == k] for k in ("Embeddings", "Gradient", "Query", "FreshEmbeddings")
    }
    assert {m["bytes"] for m in kinds["Embeddings"]} == {B * (4 + 4 * E)}
    assert {m["bytes"] for m in kinds["Gradient"]} == {B * 4 * E}
    # what is asked with 4 bytes a row is answered with 4 + 4E
    answered = sum(m["bytes"] for m in kinds["FreshEmbeddings"])
    asked = sum(m["bytes"] for m in kinds["Query"])
    unanswered = len(kinds["Query"]) - len(kinds["FreshEmbeddings"])
    assert unanswered <= 3
    assert answered == (1 + E) * asked or unanswered
    assert sum(m["bytes"] for m in rows) == sum(bytes_of(found))


def test_with_one_rate_and_one_client_vafl_is_the_synchronous_control():
    """One client has nobody to be stale against: the same rows make the same bits as central split SGD."""
    one = ["split.clients=1", "method.momentum=0.0", "method.lr=0.05"]
    vafl = run("vafl", *one, "method.synchrony=synchronous")
    sgd = run("sgd", *one)
    for party, found in vafl.models.items():
        assert found == pytest.approx(sgd.models[party], abs=1e-6)


def test_synchronous_vafl_is_the_synchronous_control():
    same = ["method.momentum=0.9", "method.lr=0.02"]
    vafl, sgd = run("vafl", "method.synchrony=synchronous", *same), run("sgd", *same)
    for party, found in vafl.models.items():
        assert found == pytest.approx(sgd.models[party], abs=1e-6)
    other = run("vafl", *same)
    assert not np.allclose(other.models["server"], sgd.models["server"], atol=1e-3)


def test_bounded_delay_bounds_every_age_and_nothing_is_missing():
    found = run("vafl", "method.max_delay=8", *MESSY, "budget.updates=120")
    assert found.summary["updates"] == 120
    staleness = found.rows("staleness").to_pylist()
    assert max(row["age_max"] for row in staleness) == 8
    assert sum(row["missing"] for row in staleness) == 0
    assert found.rows("service").num_rows == 120
    losses = found.rows("service").column("loss").to_numpy()
    # the answers that were still waiting for a query at the end have no loss
    assert np.isnan(losses).sum() <= 4
    loose = run("vafl", *MESSY, "budget.updates=120").rows("staleness").to_pylist()
    assert max(row["age_max"] for row in loose) > 8
    assert sum(row["missing"] for row in loose) > 0


def test_bounded_delay_under_the_wall_clock():
    extra = ("method.max_delay=8", "clock.kind=wall", "arrivals.rate=30.0", "budget.updates=60")
    found = run("vafl", *extra)
    assert found.summary["updates"] == 60
    staleness = found.rows("staleness").to_pylist()
    assert max(row["age_max"] for row in staleness) <= 8
    assert sum(row["missing"] for row in staleness) == 0


def test_a_refreshed_row_is_a_release_and_is_counted():
    extra = (
        "method.max_delay=8",
        "privacy.mode=paper",
        "privacy.sigma=0.5",
        "privacy.delta=1e-5",
        "privacy.clip=1.0",
    )
    found = run("vafl", *extra)
    releases = found.rows("release").to_pylist()
    kinds = [r["perturbation"] for r in releases]
    assert kinds.count(0) == T
    assert kinds.count(2) == sum(m["kind"] == "FreshEmbeddings" for m in found.rows("message").to_pylist())
    rows = np.zeros(4, int)
    for r in releases:
        rows[r["client"]] += r["batch"]
    server = next(c for c in found.summary["epsilon"] if c["adversary"] == "server")
    assert server["epsilon"] == pytest.approx(epsilon_of(math.sqrt(rows.max()) * 2 / 0.5, 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("overrides", "adversary", "per_upload", "proved_rows"),
    [
        (["method.name=vafl"], "server", 1, True),
        (["method.name=czofo"], "server", 1, True),
        (["method.name=zoo_vfl"], "server", 2, False),
        (["method.noise_on=gradient"], "client", 1, True),
    ],
)
def test_a_runs_account_is_what_its_rows_add_up_to(overrides, adversary, per_upload, proved_rows):
    spec = scenarios.load("vafl", [*SHORT, *NOISE, *overrides])
    found, experiment = scenarios.run(spec), prepare(spec)
    releases = found.rows("release").to_pylist()
    assert len(releases) == per_upload * T
    assert all(math.isnan(r["value"]) and r["mechanism"] == "gaussian rows" for r in releases)
    assert {r["sigma"] for r in releases} == {experiment.setting.sigma}
    assert {r["sensitivity_replace"] for r in releases} == {2.0}
    counts = np.zeros((4 if adversary == "server" else 1, 1437), int)
    for row in found.rows("service").to_pylist():
        ids = experiment.clients[row["client"]].make()._batches.draw(row["step"])
        counts[row["client"] if adversary == "server" else 0, ids] += per_upload
    n, sigma = counts.max(), experiment.setting.sigma
    by = {c["adversary"]: c for c in found.summary["epsilon"]}
    assert by["paper"]["epsilon"] == pytest.approx(epsilon_of(2 * math.sqrt(n) / sigma, 1e-5))
    whole = counts.sum(1).max() if proved_rows else n
    assert by[adversary]["epsilon"] == pytest.approx(epsilon_of(2 * math.sqrt(whole) / sigma, 1e-5))
    others = {"client", "server", "external"} - {adversary}
    assert all(by[who]["epsilon"] == math.inf for who in others)
    assert found.summary["private"] is not True
    last = releases[-1]
    assert last["epsilon_paper"] == pytest.approx(by["paper"]["epsilon"])
    assert last["epsilon_client"] == pytest.approx(by["client"]["epsilon"])
    planned = {c.adversary: c.epsilon for c in claims(experiment.setting)}
    assert planned["paper"] == pytest.approx(1.0, rel=1e-6)
    assert planned[adversary] >= by[adversary]["epsilon"]


def test_without_a_clip_noise_is_added_and_no_epsilon_is_claimed():
    found = run("vafl_digits", "privacy.mode=paper", "privacy.sigma=0.1", "budget.updates=20")
    assert found.rows("release").num_rows == 20
    assert all(c["epsilon"] == math.inf for c in found.summary["epsilon"])
    assert "not clipped" in found.summary["privacy_verdict"]


def test_the_run_stops_before_the_release_that_would_pass_the_budget():
    spec = (
        "method.name=zoo_vfl",
        "privacy.mode=paper",
        "privacy.sigma=20.0",
        "privacy.delta=1e-5",
        "privacy.clip=1.0",
    )
    found = run("vafl", *spec, "budget.epsilon=0.6", "budget.adversary=server", "budget.updates=2000")
    assert 0 < found.summary["updates"] < 2000
    assert "would exceed the budget ε=0.6" in found.summary["stopped_by"]
    server = next(c for c in found.summary["epsilon"] if c["adversary"] == "server")
    assert 0.4 < server["epsilon"] <= 0.6
    with pytest.raises(SpecError, match=r"one update alone exceeds ε=0\.01 against server"):
        prepare(scenarios.load("vafl", [*SHORT, *spec, "budget.epsilon=0.01", "budget.adversary=server"]))


WHOLE_BATCHES = (
    "method.name=zoo_vfl",
    "method.batch=1437",
    "privacy.mode=paper",
    "privacy.clip=0.1",
    "privacy.delta=1e-3",
)


def test_uploads_under_way_when_the_run_ends_are_out_and_count():
    """Client 0 sends at 0 and 1 s; the others' first uploads end the run at 1.6 s, before its second is served."""
    found = run(
        "vafl",
        *WHOLE_BATCHES,
        "privacy.sigma=0.5",
        "budget.updates=4",
        "arrivals.kind=immediate",
        "network.latency=[0.5, 0.8, 0.8, 0.8]",
    )
    assert found.summary["updates"] == 4
    released = found.rows("release").to_pylist()
    # ids of a release are every row of the data here: one upload is two releases of every record
    assert [row["client"] for row in released].count(0) == 2 * 2
    assert len(released) == 2 * 5
    server = next(c for c in found.summary["epsilon"] if c["adversary"] == "server")
    assert server["epsilon"] == pytest.approx(epsilon_of(0.2 * math.sqrt(4) / 0.5, 1e-3))


def test_what_is_not_sent_yet_when_the_run_ends_does_not_count():
    found = run("vafl", *WHOLE_BATCHES, "privacy.sigma=0.5", "budget.updates=4", "arrivals.kind=constant")
    assert found.rows("release").num_rows == 2 * 4


def test_no_client_passes_the_budget_with_what_is_under_way():
    found = run(
        "vafl",
        *WHOLE_BATCHES,
        "privacy.sigma=1.0",
        "budget.updates=50",
        "budget.epsilon=1.5",
        "budget.adversary=server",
        "arrivals.kind=immediate",
        "network.latency=[0.5, 0.5, 0.6, 0.7]",
    )
    assert "would exceed the budget" in found.summary["stopped_by"]
    uploads = [row["client"] for row in found.rows("release").to_pylist()]
    most = max(uploads.count(client) for client in range(4))
    server = next(c for c in found.summary["epsilon"] if c["adversary"] == "server")
    assert server["epsilon"] == pytest.approx(epsilon_of(0.2 * math.sqrt(most), 1e-3))
    assert server["epsilon"] <= 1.5 < epsilon_of(0.2 * math.sqrt(most + 2), 1e-3)


@pytest.mark.parametrize("extra", [(), SEEDED, ("method.noise_on=gradient", *SEEDED)])
def test_replay_and_resume_reach_the_same_bits_where_nothing_was_drawn_from_the_system(tmp_path, extra):
    whole = run("vafl", *extra, *MESSY, out=tmp_path / "whole").summary
    assert replay(tmp_path / "whole").verified
    stop = threading.Event()

    def progress(status):
        if status.updates >= 25:
            stop.set()

    run("vafl", *extra, *MESSY, out=tmp_path / "cut", progress=progress, stop=stop)
    experiment, folder, _ = resuming(tmp_path / "cut")
    assert scenarios.run_prepared(experiment, folder, runner="local").summary["digest"] == whole["digest"]


def test_a_run_whose_noise_was_not_kept_says_so(tmp_path):
    for name, extra in (("vafl", ()), ("zoo_vfl", ()), ("vafl", ("method.noise_on=gradient",))):
        folder = tmp_path / f"{name}{len(extra)}"
        run(name, *NOISE, *extra, "budget.updates=4", out=folder)
        with pytest.raises(InputError, match="was not kept, so it cannot be computed again"):
            replay(folder)
    run("vafl", "method.max_delay=8", "budget.updates=8", out=tmp_path / "bounded")
    with pytest.raises(InputError, match=r"method\.max_delay"):
        replay(tmp_path / "bounded")


GOOD = {"budget": {"updates": 10}}
ROWS = {"mode": "paper", "epsilon": 1.0, "delta": 1e-5, "clip": 1.0}


@pytest.mark.parametrize(
    ("method", "privacy", "budget", "said"),
    [
        ({"synchrony": "t-synchronous"}, {}, {}, r"method.wait_for: goes with"),
        ({"wait_for": 2}, {}, {}, r"method.wait_for: goes with"),
        ({"synchrony": "t-synchronous", "wait_for": 9}, {}, {}, r"method.wait_for: wanted at most 4"),
        ({"synchrony": "synchronous", "max_delay": 3}, {}, {}, r"method.max_delay: goes with"),
        ({"layer_noise": [0.1]}, {}, {}, r"method.layer_noise: has no meaning"),
        ({"layer_noise": [0.1], "noise_on": "gradient"}, ROWS, {}, r"method.layer_noise: goes with"),
        ({}, {"sigma": 1.0}, {}, r"privacy.sigma: has no meaning"),
        ({}, {"mode": "paper"}, {}, r"privacy: wanted either epsilon or sigma"),
        ({}, {**ROWS, "clip": None}, {}, r"privacy.clip: wanted with privacy.epsilon"),
        ({}, {**ROWS, "delta": None}, {}, r"privacy.delta: wanted with a clip"),
        ({"max_delay": 4}, ROWS, {}, r"privacy.epsilon: queries"),
        ({}, ROWS, {"epsilon": 1.0}, r'budget.adversary: noise on the embedding is against "server"'),
        ({"noise_on": "gradient"}, ROWS, {"epsilon": 1.0, "adversary": "server"}, r'is against "client"'),
        ({}, {}, {"epsilon": 1.0, "adversary": "server"}, r"budget.epsilon: has no meaning"),
        (
            {"noise_on": "gradient", "synchrony": "t-synchronous", "wait_for": 2},
            ROWS,
            {"epsilon": 1.0},
            r"budget.epsilon: .*asynchronous",
        ),
    ],
)
def test_a_contradiction_is_named_in_one_line(method, privacy, budget, said):
    privacy = {k: v for k, v in privacy.items() if v is not None}
    tree = {"method": {"name": "vafl", **method}, "privacy": privacy, "budget": {"updates": 10, **budget}}
    with pytest.raises(SpecError, match=said) as error:
        parse(tree, "x.toml")
    assert "\n" not in str(error.value)


def test_dpzv_knows_no_epsilon_against_its_server():
    tree = {
        "method": {"name": "dpzv"},
        "privacy": ROWS,
        "budget": {"updates": 9, "epsilon": 1.0, "adversary": "server"},
    }
    with pytest.raises(SpecError, match=r'budget.adversary: "server" is trusted'):
        parse(tree, "x.toml")


def test_a_summing_head_needs_as_many_numbers_as_classes():
    with pytest.raises(SpecError, match=r"model\.embedding: wanted 10, the number of classes"):
        prepare(scenarios.load("vafl_digits", ["model.embedding=3"]))


def test_noise_in_layers_that_a_model_has_not_is_refused():
    noisy = ("privacy.mode=paper", "privacy.sigma=0.1")
    prepare(scenarios.load("vafl", [*SHORT, *noisy, "method.layer_noise=[0.1]"]))
    with pytest.raises(SpecError, match=r"method\.layer_noise: wanted at most 1 numbers.*got 2"):
        prepare(scenarios.load("vafl", [*SHORT, *noisy, "method.layer_noise=[0.1, 0.2]"]))
