"""Pages as a person sees them: headless Chromium at two widths, light and dark, with mouse and
keyboard.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import jinja2
import numpy as np
import pyarrow as pa
import pytest

from raydpzv.keys import Key
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.schema import EMPTY, SCHEMAS
from raydpzv.report import page as pages
from raydpzv.report.comparison_page import About, write_comparison
from raydpzv.report.page import write_page, write_report
from raydpzv.report.run_tables import RunView
from tests.helpers.browser import AXE, CHROMIUM, Tab, tab
from tests.helpers.report_views import without_pixels
from tests.helpers.synthetic_comparison import Made, field
from tests.helpers.synthetic_run import build_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]
WINDOWS = [(1280, 800, False), (1280, 800, True), (390, 844, False), (390, 844, True)]
HOSTILE = "</script><script>window.hit = 1</script><b>x</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with tab() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        without_pixels(patch)
        write_report([build_run(made / "run", rounds=400)])
        write_comparison(made, field().tables, About("Field", "plan", [0.8]))
        yield made


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return folder / "run" / "report.html"


def centre(browser: Tab, selector: str, across: float = 0.5) -> tuple[float, float]:
    """Bring an element into the window; return a place on it."""
    box = browser.run(
        "(e => { e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
        f"return [r.left, r.top, r.width, r.height]; }})(document.querySelector('{selector}'))"
    )
    return box[0] + across * box[2], box[1] + box[3] / 2


def drawn(browser: Tab, chart: int) -> str:
    """Return the pixels of a chart."""
    pixels: str = browser.run(
        f"document.querySelectorAll('[data-chart] canvas')[{chart}].toDataURL()"
    )
    return pixels


@pytest.mark.parametrize(("page", "screens"), [("run/report.html", 5), ("comparison.html", 6)])
def test_pages_are_quiet_short_and_open_with_a_chart(
    browser: Tab, folder: Path, page: str, screens: int
) -> None:
    for width, height, dark in WINDOWS:
        browser.open(folder / page, width, height, dark=dark)
        size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        wide, high = browser.run(size)
        assert (browser.logged, browser.asked) == ([], [(folder / page).as_uri()])
        assert wide <= width
        assert high <= screens * height
        legends = (
            "[...document.querySelectorAll('.legend')].map(l => l.scrollHeight - l.clientHeight)"
        )
        assert max(browser.run(legends)) <= 1, "no name is hidden"
        below = "p.getBoundingClientRect().bottom - p.lastChild.getBoundingClientRect().bottom"
        assert (
            max(browser.run(f"[...document.querySelectorAll('.plot')].map(p => {below})")) <= 8
        ), "no gap"
        assert (
            browser.run("document.querySelector('.plot canvas').getBoundingClientRect().bottom")
            <= height
        )
        assert (
            browser.run("getComputedStyle(document.body).backgroundColor === 'rgb(13, 17, 23)'")
            is dark
        )
    browser.run("console.error('heard')")
    assert browser.logged, "control"


def test_numbers_of_the_privacy_table_and_labels_of_tools_stay_on_one_line(
    browser: Tab, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run", rounds=60, private=True)
    summary = json.loads((run / "summary.json").read_text())
    for claim in summary["epsilon"]:
        claim |= {"epsilon": 53_490.0, "holds": True, "guess": 0.999}
    (run / "summary.json").write_text(json.dumps(summary))
    page = write_page([run])[0]
    words = (
        "[...document.querySelectorAll('.tools label, .claims td.right')].map(e => {const node = "
        "[...e.childNodes].find(n => n.nodeType === 3 && n.data.trim()), range = "
        "document.createRange();range.selectNodeContents(node || e);return [range.toString(), new "
        "Set([...range.getClientRects()].map(r => Math.round(r.top))).size]; })"
    )
    for width, height, dark in WINDOWS:
        browser.open(page, width, height, dark=dark)
        lines = browser.run(words)
        assert {"> 10", "99.9 %", "Across "} <= {text for text, _ in lines}
        assert [text for text, count in lines if count > 1] == []
        assert browser.run("document.querySelectorAll('.claims details').length") > 0
        assert browser.run("document.querySelectorAll('.claims details + details').length") == 0


@pytest.mark.skipif(
    not AXE.is_file(), reason="needs axe-core: .ci/run fetches it and sets RAYDPZV_AXE"
)
@pytest.mark.parametrize("page", ["run/report.html", "comparison.html"])
def test_axe_finds_nothing_serious(browser: Tab, folder: Path, page: str) -> None:
    found = (
        "axe.run().then(r => JSON.stringify(r.violations.map(v => [v.impact, v.id, "
        "v.nodes[0].html])))"
    )
    for width, height, dark in WINDOWS:
        browser.open(folder / page, width, height, dark=dark)
        browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        browser.run(f"{AXE.read_text()};1")
        seen = json.loads(browser.run(found))
        assert [one for one in seen if one[0] in ("serious", "critical")] == []
    browser.run("document.body.append(document.createElement('img'))")
    assert any(one[1] == "image-alt" for one in json.loads(browser.run(found))), "control"


def test_hovering_and_arrow_keys_read_the_values_that_the_rows_hold(
    browser: Tab, run: Path
) -> None:
    rows = RunFolder(run.parent).rows()["evaluation"].to_pylist()
    browser.open(run)
    browser.run("document.querySelector('.first .draw').focus()")
    value = "document.querySelector('.first .legend output').textContent"
    read = f"{value} + ' ' + document.querySelector('.first .at').textContent"
    for row in rows[:3]:
        browser.key("ArrowRight")
        assert browser.run(read).startswith(
            f"{100 * row['accuracy']:.2f} % at {row['round']} (updates"
        )
    last, left = (
        rows[-1],
        browser.run("document.querySelector('.first .u-over').getBoundingClientRect().right"),
    )
    browser.mouse("Moved", left - 2, centre(browser, ".first .u-over")[1])
    assert browser.run(read).startswith(
        f"{100 * last['accuracy']:.2f} % at {last['round']} (updates"
    )
    browser.run(
        "(s => { s.value = 'time'; s.dispatchEvent(new Event('change')); "
        "})(document.querySelector('#axis'))"
    )
    browser.run("document.querySelector('.first .draw').focus()")
    browser.key("ArrowRight")
    time = float(f"{rows[0]['time']:.6g}")
    assert browser.run(read) == f"{100 * rows[0]['accuracy']:.2f} % at {time} (simulated seconds)"


def test_a_drag_zooms_all_charts_and_a_double_click_shows_the_whole_range(
    browser: Tab, run: Path
) -> None:
    browser.open(run)
    before = [drawn(browser, chart) for chart in (0, 1, 2)]
    for kind, across in (("Moved", 0.3), ("Pressed", 0.3), ("Moved", 0.6), ("Released", 0.6)):
        browser.mouse(kind, *centre(browser, ".first .u-over", across))
    assert all(drawn(browser, chart) != before[chart] for chart in (0, 1, 2))
    browser.run("document.querySelector('#reset').click()")
    assert [drawn(browser, chart) for chart in (0, 1, 2)] == before


def test_a_name_in_the_legend_hides_its_curve(browser: Tab, run: Path) -> None:
    browser.open(run)
    before, button = drawn(browser, 0), "document.querySelector('.first .legend button')"
    browser.run(f"{button}.click()")
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "false"
    assert drawn(browser, 0) != before
    browser.run(f"{button}.click()")
    assert drawn(browser, 0) == before


def test_the_table_sorts_filters_and_hides_columns(browser: Tab, folder: Path) -> None:
    browser.open(folder / "comparison.html")
    names = (
        "[...document.querySelectorAll('.sorted tbody tr:not([hidden])')].map(r => "
        "r.cells[{}].textContent)"
    )
    head = (
        "[...document.querySelectorAll('.sorted thead th')].find(h => "
        "h.textContent.startsWith('accuracy'))"
    )
    place = browser.run(f"{head}.cellIndex")
    whole = browser.run(names.format(place))
    for direction in ("ascending", "descending"):
        browser.run(f"{head}.querySelector('button').click()")
        medians = [float(cell.split()[0]) for cell in browser.run(names.format(place))]
        assert medians == sorted(medians, reverse=direction == "descending")
        assert browser.run(f"{head}.getAttribute('aria-sort')") == direction
    assert sorted(whole) == sorted(browser.run(names.format(place)))
    browser.run(
        "(f => { f.value = 'LANGSAM'; f.dispatchEvent(new Event('input')); "
        "})(document.querySelector('#filter'))"
    )
    assert set(browser.run(names.format(0))) == {"langsam λ [red]"}
    assert browser.run("document.querySelector('#count').textContent") == "2 of 5 shown"
    browser.run("document.querySelector('#columns input').click()")
    assert (
        browser.run("getComputedStyle(document.querySelector('.sorted tbody td')).display")
        == "none"
    )


def test_a_script_in_a_name_is_shown_as_text(
    browser: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pixels(monkeypatch)
    made = Made().run(HOSTILE, None, 0, 0.9).run(HOSTILE, 1.0, 0, 0.8).tables

    def seen() -> tuple[int, bool]:
        browser.open(write_comparison(tmp_path, made, About(HOSTILE, HOSTILE, [0.8])))
        assert browser.run("window.hit") is None
        return browser.run("document.querySelectorAll('b').length"), HOSTILE in browser.run(
            "document.body.innerText"
        )

    assert seen() == (0, True)
    assert HOSTILE in browser.run("document.querySelector('.legend').textContent")
    assert browser.run("document.title") == HOSTILE
    unescaped = jinja2.Environment(
        loader=jinja2.PackageLoader("raydpzv.report"), undefined=jinja2.StrictUndefined
    )
    unescaped.filters["sortable"] = str
    monkeypatch.setattr(pages, "_templates", lambda: unescaped)
    assert seen()[0] > 0, "control"


def test_a_page_of_ten_long_runs_stays_small_and_draws(browser: Tab, tmp_path: Path) -> None:
    runs = [long_run(f"run {seed}", seed) for seed in range(10)]
    drawn = [found for draw in pages.DRAWINGS if (found := draw([run.view for run in runs]))]
    page = tmp_path / "report.html"
    page.write_text(pages.rendered("page", **pages.words(runs, (0.8,), drawn)), encoding="utf-8")
    assert 1_000_000 < page.stat().st_size < 2_500_000
    browser.open(page)
    assert browser.logged == []
    assert browser.run("[...document.querySelectorAll('.charts canvas')].every(c => c.width)")
    assert "Long curves show the lowest and the highest row" in browser.run(
        "document.body.innerText"
    )


def long_run(label: str, seed: int, updates: int = 20_000, clients: int = 4) -> pages.ReportedRun:
    """Return a run of many updates as a report reads it."""
    draw = (Key(seed) / "long").generator()
    rounds, client = np.arange(1, updates + 1), draw.integers(0, clients, updates)
    woke = np.sort(draw.uniform(0, 5000, updates))
    served = np.maximum.accumulate(woke + draw.uniform(0.02, 0.12, updates))
    columns = {
        "service": {
            "round": rounds, "client": client, "step": rounds, "due": woke, "woke": woke, "late": client > 2,
            "served": served, "applied": served + 0.01, "loss": draw.uniform(0, 2, updates),
        },
        "message": {
            "round": rounds, "client": client, "direction": ["up"] * updates, "kind": ["Embeddings"] * updates,
            "sent": woke + 0.01, "arrived": served, "bytes": draw.integers(1000, 9000, updates),
        },
    }  # fmt: skip
    evaluated = dict.fromkeys(("round", "time", "accuracy", "loss", "top_share"), rounds[::50])
    columns["evaluation"] = evaluated | {
        "part": ["test"] * len(rounds[::50]),
        "accuracy": rounds[::50] / updates,
    }
    rows = EMPTY | {
        name: pa.table(
            [
                pa.array(found[field]).cast(SCHEMAS[name].field(field).type)
                for field in SCHEMAS[name].names
            ],
            schema=SCHEMAS[name],
        )
        for name, found in columns.items()
    }
    summary = {
        "scenario": "long",
        "method": "dpzv",
        "seed": seed,
        "status": "done",
        "accuracy": 1.0,
        "private": False,
    }
    return pages.ReportedRun(RunView(label, summary, rows), "", {"method": {"name": "dpzv"}}, "{}")
