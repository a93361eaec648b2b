import pytest

from raydpzv.config import catalog
from raydpzv.registry import DATA_SOURCES
from scenarios.commands.list import list_lines, listed


def test_every_scenario_stands_under_its_kind_with_the_files_it_needs():
    parts = dict(listed())
    for name in catalog.names():
        spec = catalog.load(name)
        kind = spec.kind
        (row,) = [row for row in parts[f"Scenarios, {kind}"] if row[0] == name]
        assert (row[1] != "") == bool(DATA_SOURCES[spec.data.source].needs), name
    assert {row[0]: row[1] for row in parts["Comparisons"]}["mnist_field"] == "folder"
    assert {row[0]: row[1] for row in parts["Data sets"]}["csv"] == "file"


@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit_and_columns_are_aligned(width):
    lines = list(list_lines(width))
    assert max(map(len, lines)) <= width
    names = [line for line in lines if line.startswith("  ")]
    starts = {
        line.index(line.split(maxsplit=2)[1])
        for line in names
        if line.split()[1:2] in (["folder"], ["file"])
    }
    assert len(starts) == 1


def test_no_title_of_a_scenario_is_cut_at_a_hundred_columns():
    shown = "\n".join(list_lines(100))
    for entry in (*catalog.entries(), *catalog.entries(catalog.COMPARISONS)):
        assert entry.title in shown
