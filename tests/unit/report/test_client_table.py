"""One row per client: uploads, bytes, rates asked and achieved, staleness."""

from __future__ import annotations

import io
import json
import math
import tomllib

import pytest
from rich.console import Console

import scenarios
from raydpzv.config.toml import as_tree
from raydpzv.report.client_table import CLIENT_HEAD, client_table, client_table_rows, rates_asked
from raydpzv.report.page import write_report


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A short run in which one client wakes ten times as rarely."""
    folder = tmp_path_factory.mktemp("uneven") / "run"
    spec = scenarios.load("digits_dpzv", ["budget.updates=60", "arrivals.rate=[10, 10, 10, 1]"])
    return spec, scenarios.run(spec, folder)


def test_every_client_has_uploads_bytes_and_its_rates(uneven):
    spec, run = uneven
    rows = client_table_rows(run.summary, run.tables, as_tree(spec))
    columns = dict(zip(CLIENT_HEAD, zip(*rows, strict=True), strict=True))
    clients = run.rows("service").column("client").to_pylist()
    assert columns["client"] == ("0", "1", "2", "3")
    assert columns["uploads"] == tuple(str(clients.count(m)) for m in range(4))
    assert columns["rate asked"] == ("10", "10", "10", "1")
    achieved = clients.count(0) / run.summary["simulated_seconds"]
    assert float(columns["achieved"][0]) == pytest.approx(achieved, rel=0.01)
    assert columns["up"][0] == f"{clients.count(0) * 1280 / 1024:.2f} KiB"
    assert all(late.endswith("%") for late in columns["late"])


def test_a_named_partys_row_begins_with_its_name(uneven):
    spec, run = uneven
    summary = run.summary | {"parties": ["bank", "shop", "post", "rail"]}
    found = client_table_rows(summary, run.tables, as_tree(spec))
    assert [row[0] for row in found] == summary["parties"]
    assert [row[1:] for row in found] == [
        row[1:] for row in client_table_rows(run.summary, run.tables, as_tree(spec))
    ]


@pytest.mark.usefixtures("unrendered")
def test_the_page_of_a_run_has_the_client_table(uneven):
    _, run = uneven
    page = write_report([run.path]).read_text()
    assert "<th>rate asked</th><th>achieved</th>" in page
    json.loads((run.path / "summary.json").read_text())
    tree = tomllib.loads((run.path / "scenario.toml").read_text())
    row = client_table_rows(run.summary, run.tables, tree)[3]
    assert "".join(f"<td>{cell}</td>" for cell in row) in page


def test_of_many_clients_the_console_shows_the_stalest():
    row = ("123,456", "1023.75 KiB", "1023.75 KiB", "0.0123", "0.0123")
    rows = [(str(m), *row, str(m), "9,999", "1,234", "1,234", "16.57%") for m in range(30)]
    console = Console(width=100, file=io.StringIO())
    console.print(client_table(rows))
    said = console.file.getvalue()
    assert "of 30 clients the 20 with the oldest embeddings" in said
    shown = [line.split()[0] for line in said.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert shown == [str(m) for m in range(10, 30)]
    assert max(map(len, said.splitlines())) <= 100
    assert "…" not in said
    assert said.count("16.57%") == 20


def test_no_rate_is_asked_for_without_clocks():
    assert rates_asked("poisson", 2.0, 2) == [2.0, 2.0]
    assert rates_asked("constant", (1.0, 3.0), 2) == [1.0, 3.0]
    assert all(math.isnan(rate) for rate in rates_asked("immediate", 1.0, 2))
