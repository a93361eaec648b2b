"""The page of results: each part by its command, its figures those of the comparison's table."""

import dataclasses
import json
import sys

import pyarrow.parquet as pq
import pytest

from benchmarks import results
from raydpzv.compare.file import asked, resolved
from raydpzv.config import catalog
from tests.helpers.report_views import without_pixels

PART = results.Part(
    "times",
    "Paper, Figure 9",
    "Waiting costs.",
    "delay_times",
    "digits.",
    "accuracy_over_seconds",
    ("mnist_field",),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of the comparison's runs, which the first page makes."""
    return tmp_path_factory.mktemp("results") / "runs"


def make(monkeypatch, folder, runs, *words, parts=(PART,)):
    monkeypatch.setattr(results, "PARTS", parts)
    page = folder / "docs" / "results.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    words = ("results", "--out", runs, "--page", page, "--runner", "local", *words)
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    results.main()
    return page


def test_a_page_is_made_and_made_again_without_a_run(runs, tmp_path, monkeypatch, capsys):
    changes = ("--set", "budget.updates=20")
    text = make(monkeypatch, tmp_path, runs, *changes).read_text()
    for part in (
        "- **Command.** `raydpzv compare delay_times --set budget.updates=20`",
        "<details><summary>Table, took",
        "With the paper's data: `raydpzv compare mnist_field`.",
        "![Figure](results/times.png)",
    ):
        assert part in text
    assert (tmp_path / "docs" / "results" / "times.png").stat().st_size > 5_000
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    labels = [line.split("|")[1].strip() for line in lines[2:]]
    assert labels[:4] == ["asynchronous", "t-synchronous, t=2", "t-synchronous, t=3", "synchronous"]
    medians = pq.read_table(runs / "times" / "table.parquet")["accuracy_median"].to_pylist()
    assert len(lines) == 2 + len(medians)
    for line, median in zip(lines[2:], medians, strict=True):
        assert f"| {100 * median:.2f} %" in line

    times = json.loads((runs / "times.json").read_text())
    without_pixels(monkeypatch)
    assert make(monkeypatch, tmp_path, runs, *changes).read_text() == text
    assert json.loads((runs / "times.json").read_text()) == times
    capsys.readouterr()
    make(monkeypatch, tmp_path, runs, "--list")
    assert "raydpzv compare delay_times" in capsys.readouterr().out


@pytest.mark.usefixtures("unrendered")
def test_only_some_parts_leave_the_sections_of_the_others(runs, tmp_path, monkeypatch):
    other = dataclasses.replace(PART, name="other", paper="Paper, Figure 8")
    page, kept = tmp_path / "docs" / "results.md", "## Paper, Figure 8\n\n**Claim.** Kept.\n"
    page.parent.mkdir()
    page.write_text(results.page(["## Paper, Figure 9\n\nold\n", kept], []))
    words = ("--set", "budget.updates=20", "--only", "times")
    text = make(monkeypatch, tmp_path, runs, *words, parts=(other, PART)).read_text()
    assert kept in text
    assert "old" not in text
    assert text.index("Figure 8") < text.index("## Paper, Figure 9") < text.index("Waiting costs.")
    assert text.endswith(results.END)


def test_every_part_is_a_comparison_of_the_program():
    known = catalog.names(catalog.COMPARISONS)
    assert len({part.name for part in results.PARTS}) == len(results.PARTS)
    for part in results.PARTS:
        assert part.comparison in known
        for command in part.real:
            name, *changes = command.replace(" --set ", " ").split()
            assert resolved(asked([name]), changes).lines
        assert set(part.spaces) <= set(catalog.names(catalog.SPACES))
