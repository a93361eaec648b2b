import json
import math
import threading
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

import scenarios
from raydpzv.config.toml import parse
from raydpzv.errors import Diverged, InputError, SpecError
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import resuming
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.methods.vertical.zoo_vfl import ZooVflClient, ZooVflServer
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.records.run_folder import RunFolder
from raydpzv.registry import METHODS
from raydpzv.sim.privacy_filter import PlanFilter
from tests.helpers.baseline_runs import MESSY, NOISE, SEEDED, SHORT, B, E, T, run
from tests.helpers.loading import refusal
from tests.helpers.runs import run_prepared


def bytes_of(found):
    return found.summary["bytes_up"], found.summary["bytes_down"]


BY_ROW = ("method.variant=per_row",)


@pytest.mark.parametrize(
    ("name", "extra", "up", "down"),
    [
        ("vafl", (), 4 * B + 4 * B * E, 4 * B * E),
        ("czofo", (), 4 * B + 4 * B * E, 20),
        ("czofo", ("method.perturbations=3",), 4 * B + 4 * B * E, 12),
        ("czofo", ("method.directions=normal",), 4 * B + 4 * B * E, 20),
        ("czofo", ("method.directions=coordinate",), 4 * B + 4 * B * E, 4 * B * E),
        ("czofo", BY_ROW, 4 * B + 4 * B * E, 4 * B * E),
        ("czofo", ("method.upload_bits=2", "method.answer_bits=4"), 4 * B + B * E // 4 + 8, 3 + 8),
        ("czofo", (*BY_ROW, "method.answer_bits=3"), 4 * B + 4 * B * E, B * E * 3 // 8 + 8),
        ("zoo_vfl", (), 4 * B + 8 * B * E, 4),
        ("zoo_vfl", ("method.server=zo_one_sided", "method.server_lr=5e-4"), 4 * B + 8 * B * E, 4),
    ],
)
def test_the_bytes_are_the_formulas_with_and_without_noise(name, extra, up, down):
    assert bytes_of(run(name, *extra)) == (T * up, T * down)
    assert bytes_of(run(name, *extra, *SEEDED)) == (T * up, T * down)
    plan = METHODS[name].noise(scenarios.load(name, list(extra)).method)
    assert plan.traffic is None or plan.traffic(B, E) == (up, down)


def test_bytes_of_every_protocol_are_what_its_messages_add_up_to():
    assert bytes_of(run("vafl", "method.noise_on=gradient", *SEEDED)) == (
        T * B * (4 + 4 * E),
        T * B * 4 * E,
    )
    for extra in (
        ["method.synchrony=t-synchronous", "method.wait_for=3"],
        ["method.synchrony=synchronous"],
    ):
        assert bytes_of(run("vafl", *extra)) == (T * B * (4 + 4 * E), T * B * 4 * E)
    found = run("vafl", "method.max_delay=8", *MESSY)
    rows = found.rows("message").to_pylist()
    kinds = {
        k: [m for m in rows if m["kind"] == k]
        for k in ("Embeddings", "Gradient", "Query", "FreshEmbeddings")
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
    """One client has nobody to be stale against: the same rows make the same bits as central split
    SGD.
    """
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


@pytest.mark.parametrize("engine", ["torch", "compiled"])
def test_with_all_other_rows_sent_every_age_is_that_of_the_clients_last_upload(engine):
    rows = 100
    extra = (f"data.train_rows={rows}", f"model.engine={engine}", *MESSY)
    found = run("vafl", *extra, f"method.also_send={rows - B}")
    assert bytes_of(found)[0] == T * rows * (4 + 4 * E)
    last: dict[int, int] = {}
    ages = {(r["round"], r["client"]): r for r in found.rows("staleness").to_pylist()}
    for row in found.rows("service").to_pylist():
        for client in {m for round, m in ages if round == row["round"]}:
            seen = ages[row["round"], client]
            known = client in last
            assert seen["missing"] == (0 if known else seen["rows"])
            assert (
                not known
                or seen["age_max"] == seen["age_sum"] / seen["rows"] == row["round"] - last[client]
            )
        last[row["client"]] = row["round"]
    alone = run("vafl", *extra).rows("staleness").to_pylist()
    assert sum(r["missing"] for r in alone) > sum(r["missing"] for r in ages.values())


def test_more_other_rows_than_there_are_is_refused():
    with pytest.raises(SpecError, match=r"method.also_send: wanted at most 68 .*, got 69"):
        run("vafl", "data.train_rows=100", "method.also_send=69")


def test_bounded_delay_under_the_wall_clock():
    extra = ("method.max_delay=8", "clock.kind=wall", "arrivals.rate=30.0", "budget.updates=60")
    found = run("vafl", *extra)
    assert found.summary["updates"] == 60
    staleness = found.rows("staleness").to_pylist()
    assert max(row["age_max"] for row in staleness) <= 8
    assert sum(row["missing"] for row in staleness) == 0


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_client_that_asks_first_sends_a_request_before_every_upload_but_its_first(clock):
    extra = MESSY if clock == "virtual" else ("clock.kind=wall", "arrivals.rate=100.0")
    found = run("vafl", "method.query_first=true", *extra)
    assert found.summary["updates"] == T
    rows = found.rows("message").to_pylist()
    sent = Counter(m["kind"] for m in rows)
    assert sent["Embeddings"] == T
    served = [
        ("", 0),
        *((m["kind"], m["round"]) for m in rows if m["kind"] in ("Embeddings", "GradientRequest")),
    ]
    for (_, updates), (kind, round) in pairwise(served):
        assert round == updates + (kind == "Embeddings"), "a request is no update"
    assert T - 4 <= sent["Gradient"] <= sent["GradientRequest"] <= T
    up, down = bytes_of(found)
    assert up == T * B * (4 + 4 * E) + 8 * sent["GradientRequest"]
    assert down == 4 * B * E * sent["Gradient"]
    for client in range(4):
        own = [m["kind"] for m in rows if m["client"] == client and m["bytes"]]
        served = [kind for kind in own if kind in ("Embeddings", "GradientRequest")]
        assert served[:3] == ["Embeddings", "GradientRequest", "Embeddings"]


def test_a_request_takes_its_way_and_no_compute_and_the_activation_keeps_its_epoch():
    extra = ("network.latency=0.05", "clock.compute=0.2", "arrivals.rate=1.0")
    found = run("vafl", "method.query_first=true", *extra)
    messages = found.rows("message").to_pylist()
    asked = {(m["client"], m["sent"]) for m in messages if m["kind"] == "GradientRequest"}
    uploads = {(m["client"], m["round"]): m["sent"] for m in messages if m["kind"] == "Embeddings"}
    first = {m: min(r for c, r in uploads if c == m) for m in range(4)}
    for row in found.rows("service").to_pylist():
        client, sent = row["client"], uploads[row["client"], row["round"]]
        ways = 0.0 if row["round"] == first[client] else 0.1
        assert sent - row["woke"] == pytest.approx(ways + 0.2)
        assert ((client, row["woke"]) in asked) == (ways > 0)
        assert row["late"] == (row["due"] < row["woke"])
    assert any(row["late"] for row in found.rows("service").to_pylist())


@pytest.mark.parametrize(
    "extra", [(), SEEDED, ("method.noise_on=gradient", *SEEDED), ("method.also_send=9",)]
)
def test_replay_and_resume_reach_the_same_bits_where_nothing_was_drawn_from_the_system(
    tmp_path, extra
):
    whole = run("vafl", *extra, *MESSY, out=tmp_path / "whole").summary
    assert replay(tmp_path / "whole").verified
    assert _resumed(tmp_path / "cut", *extra) == whole["digest"]


def test_a_run_of_clients_that_ask_first_continues_to_the_same_bits(tmp_path):
    extra = ("method.query_first=true", "method.noise_on=gradient", *SEEDED)
    assert _resumed(tmp_path / "cut", *extra) == run("vafl", *extra, *MESSY).summary["digest"]


def _resumed(path, *extra):
    """The digest of a run that was stopped and went on."""
    stop = threading.Event()

    def progress(status):
        if status.updates >= 25:
            stop.set()

    run("vafl", *extra, *MESSY, out=path, progress=progress, stop=stop)
    experiment, folder, _ = resuming(path)
    return run_prepared(experiment, folder, runner="local").summary["digest"]


def test_a_run_whose_noise_was_not_kept_says_so(tmp_path):
    for name, extra in (("vafl", ()), ("zoo_vfl", ()), ("vafl", ("method.noise_on=gradient",))):
        folder = tmp_path / f"{name}{len(extra)}"
        run(name, *NOISE, *extra, "budget.updates=4", out=folder)
        with pytest.raises(InputError, match="was not kept, so it cannot be computed again"):
            replay(folder)
    for setting in ("max_delay=8", "query_first=true"):
        folder = tmp_path / setting.partition("=")[0]
        run("vafl", f"method.{setting}", "budget.updates=8", out=folder)
        with pytest.raises(InputError, match=rf"method\.{folder.name}"):
            replay(folder)


CZOFO_ROWS = {"name": "czofo", "variant": "per_row"}
ROWS = {"mode": "paper", "epsilon": 1.0, "delta": 1e-5, "clip": 1.0}


@pytest.mark.parametrize(
    ("method", "privacy", "budget", "said"),
    [
        ({"synchrony": "t-synchronous"}, {}, {}, r"method.wait_for: goes with"),
        ({"wait_for": 2}, {}, {}, r"method.wait_for: goes with"),
        (
            {"synchrony": "t-synchronous", "wait_for": 9},
            {},
            {},
            r"method.wait_for: wanted at most 4",
        ),
        ({"synchrony": "synchronous", "max_delay": 3}, {}, {}, r"method.max_delay: goes with"),
        (
            {"synchrony": "synchronous", "query_first": True},
            {},
            {},
            r"method.query_first: goes with",
        ),
        ({"max_delay": 3, "query_first": True}, {}, {}, r"method.query_first: goes with"),
        ({"layer_noise": [0.1]}, {}, {}, r"method.layer_noise: has no meaning"),
        ({"layer_law": "gaussian"}, ROWS, {}, r"method.layer_law: goes with method.layer_noise"),
        (
            {"layer_noise": [0.1], "noise_on": "gradient"},
            ROWS,
            {},
            r"method.layer_noise: goes with",
        ),
        ({}, {"sigma": 1.0}, {}, r"privacy.sigma: has no meaning"),
        ({}, {"mode": "paper"}, {}, r"privacy: wanted either epsilon or sigma"),
        ({}, {**ROWS, "clip": None}, {}, r"privacy.clip: wanted with privacy.epsilon"),
        ({}, {**ROWS, "delta": None}, {}, r"privacy.delta: wanted with a clip"),
        ({"max_delay": 4}, ROWS, {}, r"privacy.epsilon: queries"),
        ({"also_send": 4}, ROWS, {}, r"method.also_send: embeddings of further rows"),
        (
            {"name": "zoo_vfl"},
            ROWS,
            {"epsilon": 1.0},
            r'budget.adversary: noise on the embedding is against "server"',
        ),
        (
            {},
            ROWS,
            {"epsilon": 1.0, "adversary": "server"},
            r"budget.adversary: nothing is proved against anyone",
        ),
        (
            {"noise_on": "gradient"},
            ROWS,
            {"epsilon": 1.0, "adversary": "server"},
            r'is against "client"',
        ),
        ({}, {}, {"epsilon": 1.0, "adversary": "server"}, r"budget.epsilon: has no meaning"),
        (
            {"noise_on": "gradient", "synchrony": "t-synchronous", "wait_for": 2},
            ROWS,
            {"epsilon": 1.0},
            r"budget.epsilon: .*asynchronous",
        ),
        (
            {"name": "dpzv"},
            ROWS,
            {"epsilon": 1.0, "adversary": "server"},
            r'adversary: "server" is trusted',
        ),
        (
            {"name": "czofo", "upload_bits": 0},
            {},
            {},
            "upload_bits: wanted greater than or equal to 1, got 0",
        ),
        (
            {"name": "czofo", "answer_bits": 17},
            {},
            {},
            "answer_bits: wanted less than or equal to 16, got 17",
        ),
        (
            {"name": "czofo", "directions": "sphere"},
            {},
            {},
            "wanted 'uniform', 'normal' or 'coordinate'",
        ),
        (
            {**CZOFO_ROWS, "directions": "normal"},
            {},
            {},
            'directions: wanted "uniform" with variant',
        ),
    ],
)
def test_a_contradiction_is_named_in_one_line(method, privacy, budget, said):
    privacy = {k: v for k, v in privacy.items() if v is not None}
    tree = {
        "method": {"name": "vafl", **method},
        "privacy": privacy,
        "budget": {"updates": 10, **budget},
    }
    with refusal(SpecError, said):
        parse(tree, "x.toml")


def test_noise_in_layers_that_a_model_has_not_is_refused():
    noisy = ("privacy.mode=paper", "privacy.sigma=0.1")
    prepare_vertical(scenarios.load("vafl", [*SHORT, *noisy, "method.layer_noise=[0.1]"]))
    with pytest.raises(SpecError, match=r"method\.layer_noise: wanted at most 1 numbers.*got 2"):
        prepare_vertical(scenarios.load("vafl", [*SHORT, *noisy, "method.layer_noise=[0.1, 0.2]"]))


# The accounts of noise on rows: what a run released, to whom, and where it stops.


def test_a_refreshed_row_is_a_release_and_is_counted(monkeypatch):
    counts, charge = np.zeros((4, 1437), int), PlanFilter.charge

    def counted(self, client, ids, releases, attempt=None):
        counts[client, ids] += releases
        return charge(self, client, ids, releases, attempt)

    monkeypatch.setattr(PlanFilter, "charge", counted)
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
    assert kinds.count(2) == sum(
        m["kind"] == "FreshEmbeddings" for m in found.rows("message").to_pylist()
    )
    assert counts.sum() == sum(r["batch"] for r in releases)
    server = next(c for c in found.summary["epsilon"] if c["adversary"] == "server")
    assert server["direct_only"] == pytest.approx(
        epsilon_of(math.sqrt(counts.max()) * 2 / 0.5, 1e-5)
    )


@pytest.mark.parametrize(
    ("overrides", "adversary", "per_upload", "proved"),
    [
        (["method.name=vafl"], "server", 1, "nothing"),
        (["method.name=czofo"], "server", 1, "nothing"),
        (["method.name=zoo_vfl"], "server", 2, "counted"),
        (["method.noise_on=gradient"], "client", 1, "all rows"),
    ],
)
def test_a_runs_account_is_what_its_rows_add_up_to(overrides, adversary, per_upload, proved):
    spec = scenarios.load("vafl", [*SHORT, *NOISE, *overrides])
    found, experiment = scenarios.run(spec), prepare_vertical(spec)
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
    whole = {"nothing": math.inf, "counted": n, "all rows": counts.sum(1).max()}[proved]
    assert by[adversary]["epsilon"] == pytest.approx(epsilon_of(2 * math.sqrt(whole) / sigma, 1e-5))
    others = {"client", "server", "external"} - {adversary}
    assert all(by[who]["epsilon"] == math.inf for who in others)
    assert found.summary["private"] is not True
    last = releases[-1]
    assert last["epsilon_paper"] == pytest.approx(by["paper"]["epsilon"])
    assert last["epsilon_client"] == pytest.approx(by["client"]["epsilon"])
    planned = {c.adversary: c.epsilon for c in experiment.setting.claims()}
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
    found = run(
        "vafl", *spec, "budget.epsilon=0.6", "budget.adversary=server", "budget.updates=2000"
    )
    assert 0 < found.summary["updates"] < 2000
    assert "would exceed the budget ε=0.6" in found.summary["stopped_by"]
    server = next(c for c in found.summary["epsilon"] if c["adversary"] == "server")
    assert 0.4 < server["epsilon"] <= 0.6
    with pytest.raises(SpecError, match=r"not one release fits into ε=0\.01"):
        prepare_vertical(
            scenarios.load(
                "vafl", [*SHORT, *spec, "budget.epsilon=0.01", "budget.adversary=server"]
            )
        )


WHOLE_BATCHES = (
    "method.name=zoo_vfl",
    "method.batch=1437",
    "privacy.mode=paper",
    "privacy.clip=0.1",
    "privacy.delta=1e-3",
)


def test_uploads_under_way_when_the_run_ends_are_out_and_count():
    """Client 0 sends at 0 and 1 s; the others' first uploads end the run at 1.6 s, before its
    second is served.
    """
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
    found = run(
        "vafl", *WHOLE_BATCHES, "privacy.sigma=0.5", "budget.updates=4", "arrivals.kind=constant"
    )
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


def test_a_run_that_breaks_off_is_charged_for_all_that_was_sent(monkeypatch, tmp_path):
    """Client 0 sends at 0.5 and 1.5 s, the others at 0.8: serving the second upload to come, at 1.6
    s, fails.
    """
    work, receive, made = ZooVflClient.work, ZooVflServer.receive, Counter()

    def counted(self):
        made[self.client] += 1
        return work(self)

    def failing(self, upload):
        if self.updates == 1:
            raise Diverged("the second upload")
        return receive(self, upload)

    monkeypatch.setattr(ZooVflClient, "work", counted)
    monkeypatch.setattr(ZooVflServer, "receive", failing)
    latency = "network.latency=[0.5, 0.8, 0.8, 0.8]"
    with pytest.raises(Diverged):
        run(
            "vafl",
            *WHOLE_BATCHES,
            "privacy.sigma=0.5",
            "arrivals.kind=immediate",
            latency,
            out=tmp_path / "run",
        )
    assert made == {0: 2, 1: 1, 2: 1, 3: 1}
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    server = next(c for c in found["epsilon"] if c["adversary"] == "server")
    assert server["epsilon"] == pytest.approx(epsilon_of(0.2 * math.sqrt(2 * made[0]) / 0.5, 1e-3))
    assert RunFolder(tmp_path / "run").rows()["release"].num_rows == 2 * made.total()
