"""Pages lead somewhere, and code speaks as they do: links, named functions, and turns that no
message has.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.prose import without_code
from tests.test_budgets import PAGES, ROOT

DEFINED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)\.([A-Z]\w*|[a-z_]+)(?:\.\w+)?(?:\([^`]*\))?`")
"""A dotted name in code: module, then a class or a function, then perhaps a method."""


@cache
def modules() -> dict[str, set[str]]:
    """Each module of the program, and the names that it defines."""
    files = [file for room in ("raydpzv", "actors") for file in (ROOT / room).rglob("*.py")]
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): {
            node.name
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        for file in files
    }


def unknown(text: str) -> list[str]:
    """Names of a page whose module does not exist, or does not define them; settings are no names
    of code.
    """
    rooms = {name.split(".")[1] for name in modules() if "." in name}
    return [
        f"{module}.{name}"
        for module, name in DEFINED.findall(text)
        if "." in module and module.split(".")[0] in rooms
        if name not in modules().get(f"raydpzv.{module}", ())
    ]


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"(?m)^#+ (.*)$", without_code(page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def lost(page: Path) -> list[str]:
    """Links of a page that have no file, or no such heading in it."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        to = page.parent / file if file else page
        if not to.exists() or (anchor and anchor not in headings(to)):
            found.append(link)
    return found


TURNS = re.compile(
    r"\b(?:whoever|begun|h[au]ngs? on|went on|gone on|goes on|brought)\b", re.IGNORECASE
)


def turns(source: str) -> list[str]:
    """Turns that are hard to read in a file's strings and comments; a name in backticks or braces
    is none.
    """
    return [
        match.group()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in (tokenize.STRING, tokenize.COMMENT)
        for match in TURNS.finditer(re.sub(r"`[^`]*`|\{[^}]*\}", "", token.string))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_has_its_file_and_heading(page):
    assert lost(ROOT / page) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_function_that_a_page_names_exists(page):
    assert unknown((ROOT / page).read_text()) == []


def test_a_lost_link_and_an_unknown_function_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One idea\n\n[a](gone.md) [b](#one-idea) [c](#two) `zo.update.Descent.apply` "
        "`zo.update.gone`\n"
    )
    assert lost(page) == ["gone.md", "#two"]
    assert unknown(page.read_text()) == ["zo.update.gone"]


def test_no_message_docstring_or_comment_has_a_hard_turn():
    files = [
        file for room in ("raydpzv", "actors", "scenarios") for file in (ROOT / room).rglob("*.py")
    ]
    assert {
        str(file.relative_to(ROOT)): found for file in files if (found := turns(file.read_text()))
    } == {}


def test_percentages_have_one_form_in_what_the_program_prints():
    files = [
        file for room in ("raydpzv", "actors", "scenarios") for file in (ROOT / room).rglob("*.py")
    ]
    assert [file for file in files if re.search(r"[\d{:]%[}\"']|\d%", file.read_text())] == []


def test_a_hard_turn_is_found():
    assert turns('begun = f"{begun} went on"  # whoever has `brought`\n') == ["went on", "whoever"]
