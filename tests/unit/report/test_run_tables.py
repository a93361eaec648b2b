import math
import re
import tomllib

import pytest

import scenarios
from raydpzv.config.toml import as_tree
from raydpzv.report.page import write_report
from raydpzv.report.run_tables import (
    CLIENTS,
    COMPARED,
    ClientRow,
    RunView,
    client_rows,
    rates_asked,
    stalest,
)
from raydpzv.report.table import grid
from tests.helpers.report_views import printed


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A short run in which one client wakes ten times as rarely."""
    folder = tmp_path_factory.mktemp("uneven") / "run"
    spec = scenarios.load("digits_dpzv", ["budget.updates=60", "arrivals.rate=[10, 10, 10, 1]"])
    return spec, scenarios.run(spec, folder)


def clients(summary, rows, scenario):
    """The table's columns by head."""
    found = grid(CLIENTS, client_rows(RunView("", summary, rows), scenario))
    return dict(zip(found.heads, zip(*found.rows, strict=True), strict=True))


def test_every_client_has_uploads_bytes_and_its_rates(uneven):
    spec, run = uneven
    columns = clients(run.summary, run.tables, as_tree(spec))
    who = run.rows("service").column("client").to_pylist()
    assert columns["client"] == ("0", "1", "2", "3")
    assert columns["uploads"] == tuple(str(who.count(m)) for m in range(4))
    assert columns["rate asked"] == ("10", "10", "10", "1")
    achieved = who.count(0) / run.summary["simulated_seconds"]
    assert float(columns["achieved"][0]) == pytest.approx(achieved, rel=0.01)
    assert columns["up"][0] == f"{who.count(0) * 1280 / 1024:.2f} KiB"
    assert all(late.endswith("%") for late in columns["late"])


def test_a_named_partys_row_begins_with_its_name(uneven):
    spec, run = uneven
    names = ["bank", "shop", "post", "rail"]
    named = clients(run.summary | {"parties": names}, run.tables, as_tree(spec))
    assert named.pop("client") == tuple(names)
    plain = clients(run.summary, run.tables, as_tree(spec))
    assert named == {head: cells for head, cells in plain.items() if head != "client"}


@pytest.mark.usefixtures("unrendered")
def test_the_page_of_a_run_has_the_client_table(uneven):
    _, run = uneven
    page = write_report([run.path]).read_text()
    columns = clients(
        run.summary, run.tables, tomllib.loads((run.path / "scenario.toml").read_text())
    )
    assert all(f">{head}</th>" in page for head in columns)
    assert all(re.search(rf">{re.escape(cells[3])}</t[hd]>", page) for cells in columns.values())


def test_of_many_clients_the_console_shows_the_stalest():
    sizes, stated = (
        (123_456, 1_048_320, 1_048_320, 0.0123, 0.0123),
        {"max": 9999, "late_share": 0.1657},
    )
    rows = [ClientRow(str(m), *sizes, stated | {"mean": m}) for m in range(30)]
    shown, others = stalest(rows)
    said = printed(grid(CLIENTS, shown).console(caption=others))
    assert "of 30 clients the 20 with the oldest embeddings" in said
    names = [
        line.split()[0]
        for line in said.splitlines()
        if line.split()[:1] and line.split()[0].isdigit()
    ]
    assert names == [str(m) for m in range(10, 30)]
    assert max(map(len, said.splitlines())) <= 100
    assert "…" not in said
    assert said.count("16.6 %") == 20
    assert stalest(rows[:20]) == (rows[:20], "")


def test_what_is_not_known_of_a_client_is_a_dash():
    unknown = ClientRow("0", 0, 0, 0, math.nan, math.nan, {})
    assert grid(CLIENTS, [unknown]).rows[0][4:] == ("–",) * 7
    assert client_rows(RunView("", {}, {}), {}) == []


def test_no_rate_is_asked_for_without_clocks():
    assert rates_asked("poisson", 2.0, 2) == [2.0, 2.0]
    assert rates_asked("constant", (1.0, 3.0), 2) == [1.0, 3.0]
    assert all(math.isnan(rate) for rate in rates_asked("immediate", 1.0, 2))


def runs(*summaries):
    return [RunView(name, summary, {}) for name, summary in zip("abc", summaries, strict=False)]


STATED = {
    "method": "dpzv",
    "status": "done",
    "accuracy": 0.875,
    "updates": 12345,
    "bytes_up": 3 * 2**20,
    "bytes_down": 1000,
}


def test_compared_runs_have_a_row_each_without_epsilon():
    proved = {
        "adversary": "client",
        "relation": "replace",
        "epsilon": 8.25,
        "delta": 1e-5,
        "holds": True,
    }
    private = STATED | {
        "private": True,
        "epsilon": [proved | {"mechanism": "Gaussian", "accountant": "PLD"}],
    }
    found = grid(COMPARED, runs(private, STATED | {"accuracy": 0.5}))
    assert [(row[0], row[2], row[-1]) for row in found.rows] == [
        ("a", "87.50 %", "yes"),
        ("b", "50.00 %", "NO"),
    ]
    assert [marks[-1] for marks in found.marks] == ["good", "bad"]
    assert not {"best by validation", "ROC AUC", "PR AUC"} & set(found.heads)
    assert "8.25" not in str(found.rows)


def test_compared_runs_have_columns_of_scores_where_a_run_has_them():
    found = grid(
        COMPARED, runs(STATED, STATED | {"roc_auc": 0.98765, "pr_auc": 0.5, "best_accuracy": 0.75})
    )
    at = [found.heads.index(head) for head in ("best by validation", "ROC AUC", "PR AUC")]
    assert [[row[i] for i in at] for row in found.rows] == [["–"] * 3, ["75.00 %", "0.988", "0.5"]]
