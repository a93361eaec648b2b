import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

import raydpzv
from raydpzv.notebook import CellLine, in_kernel, table_html

SCRIPT = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """The tags of a page, in order."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)


def test_a_script_is_shown_as_text_wherever_it_is():
    page = table_html(SCRIPT, [(SCRIPT, 3)], (SCRIPT, "n"), [SCRIPT])
    assert "script" not in Tags(page).found
    assert page.count("&lt;script&gt;") == 4
    assert "script" in Tags(page.replace("&lt;", "<").replace("&gt;", ">")).found, (
        "control: a parser sees one"
    )


def test_a_scenario_shows_the_settings_that_differ_and_its_title_as_text():
    spec = raydpzv.load("digits_dpzv", ["method.lr=0.25"]).model_copy(
        update={"name": "", "title": SCRIPT}
    )
    page = spec._repr_html_()
    assert set(Tags(page).found) == {"table", "caption", "tr", "td"}
    assert "<td>method.lr</td><td>0.25</td>" in page
    assert "network.latency" not in page


@pytest.fixture
def kernel(monkeypatch):
    """A stand-in for IPython in a kernel; keeps what is shown, and what changes in place."""
    shown = []

    class Handle:
        def update(self, content, *, raw):
            shown.append(("update", content["text/plain"]))

    def display(content, *, raw, display_id):
        shown.append(("display", content["text/plain"]))
        return Handle()

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return shown


def test_a_line_is_shown_once_and_then_changed(kernel):
    line = CellLine()
    line.show("first")
    line.show("too soon")
    line.show("last", now=True)
    assert kernel == [("display", "first"), ("update", "last")]


def test_nothing_is_shown_outside_of_a_kernel(monkeypatch, kernel):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    CellLine().show("nobody sees it")
    assert not in_kernel()
    assert kernel == []


def test_a_run_in_a_kernel_has_one_line_of_progress(kernel):
    raydpzv.run(raydpzv.load("digits_dpzv", ["budget.updates=30"]))
    assert [kind for kind, _ in kernel].count("display") == 1
    assert kernel[-1][1].startswith("30 of 30 updates, accuracy ")
