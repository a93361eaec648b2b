"""Pages are short and in plain English, and the code may only shrink; generated tables are
exempt.
"""

import tomllib
from pathlib import Path

import pytest

from tests.helpers.prose import prose, without_code
from tests.helpers.shapes import heavy, heavy_files, statements

ROOT = Path(__file__).parents[1]
BUDGETS = tomllib.loads((ROOT / "tests" / "budgets.toml").read_text())
GENERATED = {"docs/settings.md", "docs/scenarios.md"}
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md")
    if str(path.relative_to(ROOT)) not in GENERATED
)
HARD = """# A page of before

What papers print stands in the table; whoever goes on from it hangs on what a run was begun with, which is brought
to the folder that the server, where it is at work, has in hand, so that all of what it comes to may be told of later on
by those who were not there.
"""


def test_every_page_has_a_budget():
    assert sorted(BUDGETS["words"]) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_keeps_its_word_budget(page):
    words = len(without_code((ROOT / page).read_text()).split())
    assert words <= BUDGETS["words"][page], f"{page} has {words} words"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_plain_english(page):
    assert prose((ROOT / page).read_text()).faults == []


def test_the_rules_find_a_hard_page():
    faults = prose(HARD).faults
    assert any("words:" in fault for fault in faults)
    assert any(fault.startswith("mean") for fault in faults)
    for turn in ("begun", "whoever", "hangs on", "goes on", "is brought", "stands in", "What"):
        assert any(fault.lower().startswith(f"'{turn.lower()}'") for fault in faults), turn


def test_code_tables_and_headings_are_no_prose():
    page = (
        "# What begun\n\n```sh\nwhoever goes on\n```\n\n| begun | whoever |\n|---|---|\n\nA `begun`"
        " word.\n"
    )
    assert prose(page).sentences == ("A code word.",)


PRODUCT = ("raydpzv", "actors", "scenarios")


def files_of(*rooms: str) -> list[Path]:
    return [file for room in rooms for file in (ROOT / room).rglob("*.py")]


@pytest.mark.parametrize(("part", "rooms"), [("product", PRODUCT), ("tests", ("tests",))])
def test_statements_stay_below_their_ceiling(part, rooms):
    count = sum(statements(file.read_text()) for file in files_of(*rooms))
    assert 0 < count <= BUDGETS["statements"][part], f"{part} has {count} statements"


def test_statements_are_counted_without_imports_docstrings_and_layout():
    source = (
        '"""A module."""\nimport ast\n\n\nclass A:\n    """A class."""\n\n    x: int = 0\n    """A '
        'field."""\n'
    )
    assert statements(source) == 2
    assert statements(source + "    y: int\n") == 3
    assert statements("f(a, b)\n") == statements("f(\n    a,\n    b,\n)\n") == 1


def test_heavy_shapes_stay_below_their_ceiling():
    for kind, found in heavy_files(files_of(*PRODUCT), ROOT).items():
        assert len(found) <= BUDGETS["heavy"][kind], found


def test_heavy_shapes_are_found():
    source = "class A:\n    x: int\n    def f(self, a, b, c, d, e, f, *, g):\n" + "".join(
        f"        self.y{n} = 0\n" for n in range(12)
    )
    assert heavy(source) == {"functions": ["f"], "classes": ["A"], "files": []}
    assert heavy("x = 1\n" * 301)["files"] == ["this file"]
