import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest

import scenarios
from raydpzv.config.settings_reference import settings_page
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.summary import NO_ACCOUNT, Ending, Outcome, summarise
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.records import metrics
from raydpzv.records.callbacks import StatusCallback
from raydpzv.records.schema import SCHEMAS
from tests.helpers.public_data import PUBLIC

WANTED = {
    "scenario", "method", "seed", "accuracy", "best_accuracy", "loss", "updates", "bytes_up", "bytes_down",
    "seconds", "simulated_seconds", "staleness", "epsilon", "private", "digest", "versions", "status",
}  # fmt: skip
ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "digits_dpzv_120.json"


def test_a_run_folder_holds_everything(small, tmp_path):
    run = scenarios.run(small(), tmp_path / "run", scenario="digits_dpzv")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary.keys() >= WANTED
    assert summary["updates"] == 120
    assert summary["bytes_up"] == 120 * 64 * (4 + 2 * 2 * 4)
    assert summary["bytes_down"] == 120 * 4
    assert summary["private"] is False
    assert summary["private_reason"].startswith("NOT PRIVATE")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["threads"] == 1
    assert environment["device"] == "cpu"
    models = np.load(tmp_path / "run" / "models.npz")
    assert {name: models[name].size for name in models.files} == {
        "server": 618, "client_0": 610, "client_1": 610, "client_2": 610, "client_3": 610,
    }  # fmt: skip
    assert (tmp_path / "run" / "scenario.toml").exists()
    for name in SCHEMAS:
        assert run.rows(name).schema == SCHEMAS[name]
    with pytest.raises(DataError, match="no row type 'releases'"):
        run.rows("releases")


def test_the_digest_depends_on_the_seed_and_on_nothing_else(small, tmp_path):
    first = scenarios.run(small())
    again = scenarios.run(small("record.flush=0.001"), tmp_path / "run")
    other = scenarios.run(small("seed=1"))
    assert first.summary["digest"] == again.summary["digest"]
    assert first.summary["digest"] != other.summary["digest"]


def test_golden_digest_of_the_model(small):
    """Numbers-neutral changes keep it; whoever changes numbers changes it here in the same commit.

    The rounding of torch's matrix kernels differs between CPU families, so the parameters are
    compared with a tolerance, and the row counts and bytes exactly.
    """
    run = scenarios.run(small())
    golden = json.loads(GOLDEN.read_text())
    for party, expected in golden["first_parameters"].items():
        assert np.allclose(run.models[party][:4], expected, rtol=2e-3, atol=2e-4), party
    assert run.summary["bytes_up"] == golden["bytes_up"]
    assert run.rows("service").column("client").to_pylist()[:20] == golden["first_clients"]


def test_seeded_noise_is_never_private_and_system_noise_is_accounted(small):
    seeded = scenarios.run(small()).summary
    assert all(claim["epsilon"] == math.inf for claim in seeded["epsilon"])
    system = scenarios.run(small("privacy.noise=system"))
    claims_by = {(c["adversary"], c["relation"]): c for c in system.summary["epsilon"]}
    assert claims_by["paper", "replace"]["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert not claims_by["paper", "replace"]["holds"]
    proved = claims_by["client", "replace"]
    assert proved["holds"]
    assert proved["epsilon"] > 10_000
    last = system.rows("release").to_pylist()[-1]
    assert last["epsilon_paper"] == pytest.approx(1.0, rel=1e-6)
    assert last["epsilon_client"] == pytest.approx(proved["epsilon"], rel=1e-9)


def test_a_frozen_head_is_private_with_counted_participation(small):
    run = scenarios.run(small("method.server=frozen", "privacy.noise=system", *PUBLIC))
    assert run.summary["private"] is True
    counts = np.zeros(1437, int)
    experiment = prepare_vertical(
        run_spec := small("method.server=frozen", "privacy.noise=system", *PUBLIC)
    )
    for row in run.rows("service").to_pylist():
        batches = experiment.clients[row["client"]].make()._batches
        counts[batches.draw(row["step"])] += 1
    client = next(
        c
        for c in run.summary["epsilon"]
        if c["adversary"] == "client" and c["relation"] == "replace"
    )
    from raydpzv.privacy.gdp import epsilon_of

    sigma, clip = experiment.setting.sigma, run_spec.privacy.clip
    expected = epsilon_of(math.sqrt(counts.max()) * 2 * clip / 64 / sigma, run_spec.privacy.delta)
    assert client["epsilon"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("adversary", "limit", "calibrated"),
    [("client", 3.0, 1.0), ("external", 1.0, 2.0), ("paper", 1.0, 2.0)],
)
def test_the_run_stops_before_the_release_that_would_pass_the_budget(
    small, adversary, limit, calibrated
):
    spec = small(
        "method.server=frozen",
        "method.batches=poisson",
        "method.coins=system" if adversary == "external" else "method.coins=seed",
        "privacy.noise=system",
        f"privacy.epsilon={calibrated}",
        f"budget.epsilon={limit}",
        f"budget.adversary={adversary}",
        *PUBLIC,
    )
    run = scenarios.run(spec)
    assert 0 < run.summary["updates"] < 120
    assert f"would exceed the budget ε={limit:g}" in run.summary["stopped_by"]
    assert run.rows("release").num_rows == run.summary["updates"]
    spent = [
        c["epsilon"]
        for c in run.summary["epsilon"]
        if c["adversary"] == adversary and c["relation"] == "replace"
    ]
    assert spent[0] <= limit
    if adversary == "client":
        assert max(run.rows("release").column("epsilon_client").to_pylist()) == pytest.approx(
            spent[0]
        )


def test_a_budget_into_which_no_update_fits_is_refused(small):
    with pytest.raises(
        SpecError, match=r"not one release fits into ε=1: it alone is ε=1454 .adversary client"
    ):
        prepare_vertical(small("privacy.noise=system", "budget.epsilon=1.0"))


def test_what_went_wrong_is_said(small):
    calm = scenarios.run(small("privacy.delta=1e-5", "privacy.noise=seeded")).summary
    assert calm["warnings"] == []
    wild = scenarios.run(small("method.server_lr=50.0", "method.lr=50.0")).summary["warnings"]
    assert any(w.startswith("DIVERGED") for w in wild)
    assert any("δ = 0.001 is not below 1/D = 0.000695" in w for w in wild)
    slow = scenarios.run(small("clock.compute=5.0")).summary["warnings"]
    assert any("epochs fell into running round trips (client 0" in w for w in slow)


def test_claims_before_and_after_agree_where_the_plan_was_exact(small):
    spec = small("method.server=frozen", "privacy.noise=system", "method.batch=1437")
    planned = {(c.adversary, c.relation): c.epsilon for c in prepare_vertical(spec).setting.table()}
    found = {
        (c["adversary"], c["relation"]): c["epsilon"]
        for c in scenarios.run(spec).summary["epsilon"]
    }
    assert found == pytest.approx(planned)


def test_staleness_rows_can_be_left_out(small):
    run = scenarios.run(small("record.staleness=false"))
    assert run.rows("staleness").num_rows == 0
    assert scenarios.run(small()).rows("staleness").num_rows == 120 * 3


def test_stragglers_are_staler(small):
    spec = small("arrivals.rate=[1, 1, 1, 0.1]", "budget.updates=600")
    run = scenarios.run(spec)
    ages = [c.mean for c in metrics.staleness(run.rows("staleness"), 4)]
    assert ages[3] > 2 * max(ages[:3])


def test_an_existing_run_is_never_overwritten(small, tmp_path):
    scenarios.run(small(), tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_text()
    with pytest.raises(InputError, match="holds a run already"):
        scenarios.run(small(), tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").read_text() == before


def test_an_unknown_runner(small):
    with pytest.raises(SpecError, match=r'unknown runner "rya". Did you mean "ray"\?'):
        scenarios.run(small(), runner="rya")  # type: ignore[arg-type]


def test_a_failure_leaves_a_readable_folder(small, tmp_path, monkeypatch):
    from raydpzv.methods.vertical.dpzv import DpzvServer

    receive = DpzvServer.receive

    def failing(self, upload):
        if self._round == 30:
            raise ArithmeticError("planted")
        return receive(self, upload)

    monkeypatch.setattr(DpzvServer, "receive", failing)
    with pytest.raises(ArithmeticError, match="planted"):
        scenarios.run(small(), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("failed", 30)
    assert "planted" in summary["stopped_by"]


def test_the_settings_page_is_up_to_date():
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page() + "\n"


def test_without_an_account_and_a_plan_nothing_is_claimed(small):
    """The server was lost: what it released beyond the rows at hand is unknown."""
    sigma = 'privacy={mode="paper", sigma=1.0, delta=1e-3, clip=2.0}'
    lost = Ending(Outcome("failed", "an actor was lost"), 1.0, 1.0, 120, None)
    unplanned = prepare_vertical(small("method.server=frozen", sigma, "budget={seconds=10}"))
    found = summarise("x", unplanned, scenarios.run(small()).tables, lost)
    assert found["epsilon"] == []
    assert (found["private"], found["private_reason"]) == (False, f"NOT PRIVATE: {NO_ACCOUNT}.")
    planned = prepare_vertical(small("method.server=frozen", "privacy.noise=system", *PUBLIC))
    bound = summarise("x", planned, scenarios.run(small()).tables, lost)
    assert bound["private"] is True
    assert {c["epsilon"] for c in bound["epsilon"]} == {c.epsilon for c in planned.setting.table()}


def test_a_paced_callback_is_told_of_the_first_update_and_of_the_end(small):
    each, paced = [], []
    scenarios.run(small(), progress=each.append)
    scenarios.run(small(), callbacks=[StatusCallback(paced.append, interval=math.inf)])
    assert [status.updates for status in each] == [0, *range(1, 121), 120]
    assert [status.updates for status in paced] == [0, 1, 120]
    assert paced[-1].stop_reason == "120 updates done"


def test_a_wall_run_that_breaks_off_leaves_no_client_running(small):
    spec = small("clock.kind=wall", "arrivals.rate=50", "budget.updates=100000")
    before = threading.active_count()

    class Planted(BaseException):
        """What is no Exception ends a run, as Ctrl-C does."""

    def fail(status):
        if status.updates > 20:
            raise Planted("planted")

    with pytest.raises(Planted, match="planted"):
        scenarios.run(spec, progress=fail)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("client,time\n0.7,1\n", "client numbers are whole"),
        ("client,time\n0,-1\n", "negative or not finite"),
        ("client,time\n0,inf\n", "negative or not finite"),
        ("client,time\n", "no rows|whole"),
        ("client\n0\n", "columns client and time"),
    ],
)
def test_odd_traces_are_refused(small, tmp_path, content, said):
    trace = tmp_path / "trace.csv"
    trace.write_text(content)
    with pytest.raises(DataError, match=said):
        prepare_vertical(small("arrivals.kind=trace", f"arrivals.file={trace}"))
