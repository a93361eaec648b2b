"""The accounts of noise on rows: what a run released, to whom, and where it stops."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest

import scenarios
from raydpzv.errors import Diverged, SpecError
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.methods.vertical.zoo_vfl import ZooVflClient, ZooVflServer
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.privacy_filter import PlanFilter
from tests.helpers.baseline_runs import NOISE, SHORT, T, run


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
    assert kinds.count(2) == sum(m["kind"] == "FreshEmbeddings" for m in found.rows("message").to_pylist())
    assert counts.sum() == sum(r["batch"] for r in releases)
    server = next(c for c in found.summary["epsilon"] if c["adversary"] == "server")
    assert server["direct_only"] == pytest.approx(epsilon_of(math.sqrt(counts.max()) * 2 / 0.5, 1e-5))


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
    found = run("vafl", *spec, "budget.epsilon=0.6", "budget.adversary=server", "budget.updates=2000")
    assert 0 < found.summary["updates"] < 2000
    assert "would exceed the budget ε=0.6" in found.summary["stopped_by"]
    server = next(c for c in found.summary["epsilon"] if c["adversary"] == "server")
    assert 0.4 < server["epsilon"] <= 0.6
    with pytest.raises(SpecError, match=r"not one release fits into ε=0\.01"):
        prepare_vertical(
            scenarios.load("vafl", [*SHORT, *spec, "budget.epsilon=0.01", "budget.adversary=server"])
        )


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


def test_a_run_that_breaks_off_is_charged_for_all_that_was_sent(monkeypatch, tmp_path):
    """Client 0 sends at 0.5 and 1.5 s, the others at 0.8: serving the second upload to come, at 1.6 s, fails."""
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
            *("vafl", *WHOLE_BATCHES, "privacy.sigma=0.5", "arrivals.kind=immediate", latency),
            out=tmp_path / "run",
        )
    assert made == {0: 2, 1: 1, 2: 1, 3: 1}
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    server = next(c for c in found["epsilon"] if c["adversary"] == "server")
    assert server["epsilon"] == pytest.approx(epsilon_of(0.2 * math.sqrt(2 * made[0]) / 0.5, 1e-3))
    assert RunFolder(tmp_path / "run").rows()["release"].num_rows == 2 * made.total()
