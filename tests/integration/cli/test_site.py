"""`make docs`: the site builds without a warning, leads nowhere dead, asks no network, and has the
public names.
"""

import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import raydpzv
from tests.helpers import browser
from tests.test_budgets import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("mkdocs") and find_spec("material") and find_spec("mkdocstrings")),
        reason="the site's packages are not installed: pip install 'raydpzv[docs]'",
    ),
]
FETCHED = {"img": "src", "script": "src", "link": "href", "source": "srcset", "iframe": "src"}


class Links(HTMLParser):
    """A page's links, what it fetches, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if tag == "a" and found.get("href"):
            self.links.append(unescape(found["href"] or ""))
        if found.get(FETCHED.get(tag, "")):
            self.fetched.append(found[FETCHED[tag]] or "")


def built(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a repository as `make docs` does, and return what mkdocs said."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command,
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def dead(pages: dict[Path, Links]) -> list[str]:
    """Links and pictures of pages that have no file, or no such anchor in it."""
    found = []
    for page, links in pages.items():
        for link in (*links.links, *links.fetched):
            parts = urlsplit(link)
            to = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if parts.scheme or page.name == "404.html":
                continue
            if not to.is_file() or (
                to in pages and unquote(parts.fragment) not in pages[to].anchors
            ):
                found.append(f"{page.name}: {link}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site").resolve()
    done = built(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {page: Links(page) for page in site.rglob("*.html")}


def test_every_page_is_on_it_and_no_link_is_dead(site, pages):
    sources = {
        path.relative_to(ROOT / "docs").with_suffix(".html") for path in ROOT.glob("docs/**/*.md")
    }
    assert len(sources) > 30
    assert {site / source for source in sources} <= set(pages)
    assert sum(len(links.links) for links in pages.values()) > 1000
    assert dead(pages) == []


def test_nothing_comes_from_a_network(site, pages):
    assert [
        u
        for links in pages.values()
        for u in links.fetched
        if urlsplit(u).scheme not in ("", "data")
    ] == []
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(.?https?:", styles) == []


def test_the_reference_has_every_public_name_with_its_signature(pages, site):
    text = re.sub(r"<[^>]+>", "", (site / "api.html").read_text("utf-8"))
    for name in raydpzv.__all__:
        if not name.startswith("__"):
            assert re.search(rf"raydpzv\.{name}\b", text), name
    assert "Return a scenario of horizontal learning from your own model and data." in text
    assert "clients: int | Sequence" in re.sub(r"\s+", " ", unescape(text))


def test_the_pictures_of_the_results_have_their_command_below(site):
    text = (site / "results.html").read_text("utf-8")
    sections = text.split("<h2 ")[1:]
    assert len(sections) > 10
    for section in sections:
        assert "<img" not in section or section.index("<img") < section.index("<code>raydpzv "), (
            section[:80]
        )


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#one"></a><a href="b.html#two"></a><img src="gone.png">'
    )
    (tmp_path / "b.html").write_text('<h2 id="one"></h2>')
    assert dead({page.resolve(): Links(page) for page in tmp_path.glob("*.html")}) == [
        "a.html: b.html#two",
        "a.html: gone.png",
    ]


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium is installed")
def test_it_opens_from_a_folder_and_its_search_finds_a_word(site):
    with browser.tab() as tab:
        for name in ("index.html", "concepts.html", "api.html", "results.html"):
            for width, dark in ((1280, True), (390, False)):
                tab.open(site / name, width, dark=dark)
                assert tab.logged == []
                assert [
                    url for url in tab.asked if not url.startswith(("file:", "data:", "blob:"))
                ] == []
                assert tab.run("document.documentElement.scrollWidth") == width, (name, width)
                assert tab.run("document.body.dataset.mdColorScheme") == (
                    "slate" if dark else "default"
                )
        tab.open(site / "index.html")
        tab.run(
            "(() => { const box = document.querySelector('.md-search__input'); box.focus();"
            "box.value = 'canary'; box.dispatchEvent(new KeyboardEvent('keyup')); })()"
        )
        while not (found := tab.run("document.querySelector('.md-search-result__list').innerText")):
            pass
        assert "Glossary" in found
