import io
import re
from pathlib import Path

import pytest
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import raydpzv
from raydpzv.report import text
from raydpzv.report.table import Column, HeadTable, grid

HEADS = (
    "trial",
    "method.server_lr",
    "validation_accuracy",
    "proved ε",
    "at the edge of its grid",
    "why",
)
ROWS = (
    (
        "0",
        "0.0123456",
        "0.9312",
        "1.02 (client)",
        "",
        "a reason that is far longer than its head is",
    ),
    ("11", "1e-05", "0.1", "", "method.lr=0.3", ""),
)


def filled(table, *, whole=()):
    for head in HEADS:
        table.add_column(head, overflow="fold", no_wrap=head in whole)
    for row in ROWS:
        table.add_row(*map(Text, row))
    return table


def printed(table, width):
    console = Console(width=width, file=io.StringIO(), markup=False, emoji=False)
    console.print(table)
    return console.file.getvalue()


def broken(text):
    """Heads of which a word is not in the text."""
    return [
        head
        for head in HEADS
        if any(word not in re.split(r"[\s:]+", text) for word in head.split())
    ]


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 120, 200])
def test_no_head_is_broken_within_a_word_and_no_line_is_cut(width):
    table = filled(
        HeadTable(title="2 trials", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    )
    text = printed(table, width)
    assert broken(text) == []
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert text.startswith("2 trials")
    assert "0.0123456" in text


def test_a_plain_table_breaks_them():
    plain = filled(Table(box=box.SIMPLE_HEAD, pad_edge=False))
    assert broken(printed(plain, 60)) != []


def test_where_there_is_room_it_is_a_plain_table():
    made = [
        printed(filled(kind(box=box.SIMPLE_HEAD, pad_edge=False)), 200)
        for kind in (HeadTable, Table)
    ]
    assert made[0] == made[1]


def test_a_list_names_each_cell_by_its_head_and_leaves_out_empty_ones():
    table = filled(HeadTable(box=box.SIMPLE_HEAD, caption="and 3 more"))
    lines = printed(table, 40).splitlines()
    assert lines[:3] == ["", "trial: 0", "method.server_lr: 0.0123456"]
    second = lines[lines.index("trial: 11") :]
    assert second[3:] == ["at the edge of its grid: method.lr=0.3", "and 3 more"]


def test_a_table_without_columns_is_empty():
    assert printed(HeadTable(), 40).strip() == printed(Table(), 40).strip() == ""


def test_columns_that_may_not_break_are_not_cut():
    table = filled(HeadTable(box=box.SIMPLE_HEAD), whole=HEADS)
    assert "…" not in printed(table, 90)
    assert ROWS[0][-1] in printed(table, 200)


def test_tables_with_heads_are_of_this_class():
    """Others of rich's are in files that make tables without heads."""
    root = Path(raydpzv.__file__).parents[1]
    places = [p for room in ("raydpzv", "scenarios", "actors") for p in (root / room).rglob("*.py")]
    plain = {p.name for p in places if "from rich.table import Table" in p.read_text()}
    assert plain == {"privacy.py", "run_summary.py", "table.py"}
    for path in (root / "raydpzv" / "report" / name for name in plain):
        for call in re.findall(r"(?<!\w)Table(?:\.grid)?\([^)]*\)", path.read_text()):
            assert call.startswith("Table.grid(") or "show_header=False" in call


COLUMNS = (
    Column("method", lambda r: r["method"], align="left"),
    Column(
        "accuracy",
        lambda r: r["accuracy"],
        text.percent,
        mark=lambda r: "bad" if r["accuracy"] < 0.5 else "good",
    ),
    Column("PR AUC", lambda r: r.get("pr_auc"), text.short, optional=True),
)
RUNS = ({"method": "vafl [red]", "accuracy": 0.25}, {"method": "vafl [red]", "accuracy": 0.75})


def test_columns_make_rows_and_leave_out_an_optional_one_that_says_nothing():
    found = grid(COLUMNS, RUNS)
    assert (found.heads, found.aligns) == (("method", "accuracy"), ("left", "right"))
    assert found.rows == (("vafl [red]", "25.00 %"), ("vafl [red]", "75.00 %"))
    assert found.marks == (("", "bad"), ("", "good"))
    assert grid(COLUMNS, [RUNS[0] | {"pr_auc": 0.98765}, RUNS[1]]).rows == (
        ("vafl [red]", "25.00 %", "0.988"),
        ("vafl [red]", "75.00 %", "–"),
    )


def test_a_console_shows_marks_as_colours_and_a_repeated_name_once():
    shown = grid(COLUMNS, RUNS).console("Title", "caption", once=True)
    lines = printed(shown, 60).splitlines()
    assert [line.split() for line in lines[:2]] == [["Title"], ["method", "accuracy"]]
    assert (lines[3].split(), lines[4].split()) == (["vafl", "[red]", "25.00", "%"], ["75.00", "%"])
    assert [cell.style for cell in shown.columns[1].cells] == ["bold red", "green"]


def test_figures_stay_whole_and_texts_take_two_lines_a_cell():
    long = [{"text": "one two three four", "figure": "12.34 %"}] * 2
    columns = [
        Column("text", lambda r: r["text"], align="left"),
        Column("a long head", lambda r: r["figure"]),
    ]
    lines = printed(grid(columns, long).console(gap=0), 20).splitlines()
    assert max(map(len, lines)) <= 20
    assert sum("12.34 %" in line for line in lines) == 2
    assert sum("one" in line for line in lines) == sum("four" in line for line in lines) == 2
    assert len(lines) == 3 + 2 * 2
