"""The page's slider: each update as the rows, the ledger and `raydpzv step` have it; of private
runs what may leave.
"""

import base64
import json
import re
import shutil

import numpy as np
import pytest

import raydpzv
import scenarios
from raydpzv.errors import Diverged
from raydpzv.keys import Key
from raydpzv.privacy.claim_words import USEFUL
from raydpzv.records.moments import begins
from raydpzv.records.run_folder import RunFolder
from raydpzv.report import page_steps
from raydpzv.report.page import write_page
from raydpzv.report.run_tables import RunView
from raydpzv.timetravel.history import open_history
from scenarios.commands.step import _Walk
from tests.helpers import small_horizontal
from tests.helpers.browser import AXE, CHROMIUM, tab
from tests.helpers.commands import call
from tests.helpers.synthetic_run import TERMS

SIZES = ["budget.updates=60", "data.train_rows=150", "data.test_rows=40", "evaluate.every=1"]
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """A vertical run whose clips are counted."""
    folder = tmp_path_factory.mktemp("split") / "run"
    scenarios.run(
        scenarios.load("digits_dpzv", [*SIZES, "method.lr=0.05", "privacy.clip=0.5"]), folder
    )
    assert "clipped" in call("step", folder, "--clip").stdout
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A horizontal run in rounds, whose clients are ranked."""
    folder = tmp_path_factory.mktemp("shared") / "run"
    scenarios.run(small_horizontal.small("decomfl", "evaluate.every=1", "method.lr=0.5"), folder)
    assert "First order" in call("step", folder, "--rank").stdout
    return folder


@pytest.fixture(scope="module")
def browser():
    with tab() as found:
        yield found


def moved_to(browser, update):
    """Move the slider; return what the page says of this update, by name."""
    browser.run(
        f"(s => {{ s.value = {update}; s.dispatchEvent(new Event('input')); "
        f"}})(document.querySelector('#moment'))"
    )
    return facts(browser)


def facts(browser):
    return dict(
        browser.run(
            "[...document.querySelectorAll('#moment-facts div')].map(d => [...d.children].map(c => "
            "c.textContent))"
        )
    )


def said(value):
    return str(int(value)) if value == int(value) else f"{float(f'{value:.4g}'):g}"


@needs_chromium
def test_the_slider_says_what_the_rows_and_step_say(browser, split):
    page, _ = write_page([split])
    browser.open(page)
    accuracy = {
        row["round"]: row["accuracy"]
        for row in RunFolder.open(split).rows()["evaluation"].to_pylist()
    }
    for update in (1, 17, 42, 60):
        shown, step = (
            moved_to(browser, update),
            json.loads(call("step", split, "--at", update, "--json").stdout),
        )
        assert shown["accuracy"] == f"{100 * accuracy[update]:.2f} % after update {update}"
        assert shown["accuracy"].startswith(f"{100 * step['evaluated'][1]:.2f} %")
        ((client, (scalar,)),) = step["released"]
        assert shown["client"] == f"client {client}"
        assert float(shown["released"]) == pytest.approx(scalar, rel=1e-3)
        assert float(shown["moved the model by"]) == pytest.approx(
            step["moved"][f"client {client}"], rel=1e-3
        )
        assert shown["step size, seed"].split(", ")[1] == f"{step['seeds'][0]:x}"
        assert shown["staleness"] == f"{step['staleness']} updates"
        assert shown["clipped"].split()[0] == str(step["clipped"])
        terms = browser.run("document.querySelector('#moment-terms').textContent")
        assert terms.partition(", ")[2] == step["epsilon"][1].partition(", ")[2]
        spent = step["epsilon"][0]
        words = re.fullmatch(r"(no useful ε \()?([\d.,]+)\)?", shown["ε so far"])
        assert float(words[2].replace(",", "")) == pytest.approx(spent, rel=1e-3)
        assert bool(words[1]) is (spent > USEFUL)
    assert (browser.logged, browser.asked) == ([], [page.as_uri()])


@needs_chromium
def test_the_slider_calls_an_epsilon_useful_exactly_where_its_terms_do(
    browser, split, tmp_path, monkeypatch
):
    claim = {**TERMS, "adversary": "client", "accountant": "PLD", "holds": True}
    spent = np.concatenate(
        ([np.nan], np.full(30, USEFUL * (1 + 5e-7)), np.full(30, USEFUL * (1 + 2e-6)))
    )
    monkeypatch.setattr(page_steps, "spent_epsilon", lambda *_: (spent, claim))
    browser.open(write_page([split], tmp_path)[0])
    for update, useful in ((1, True), (30, True), (31, False), (60, False)):
        assert ("no useful ε" in moved_to(browser, update)["ε so far"]) is not useful
        terms = browser.run("document.querySelector('#moment-terms').textContent")
        assert terms.endswith("; proved" if useful else "; no useful ε")


@needs_chromium
def test_buttons_go_where_step_goes(browser, split):
    page, _ = write_page([split])
    browser.open(page)
    value = "Number(document.querySelector('#moment-number').value)"
    with open_history(split) as history:
        accuracies = [row["accuracy"] for row in history.rows["evaluation"].to_pylist()]
        falls = [u for u in range(1, 61) if accuracies[u] < accuracies[u - 1]]
        assert falls
        browser.run("document.querySelector('#stale-least').value = 4")
        for button, find in (
            ("next-fall", lambda after: next((u for u in falls if u > after), None)),
            ("next-clip", history.next_clip),
            ("next-stale", lambda after: history.next_stale(after, 4)),
        ):
            for start in (0, 9, 30, 60):
                moved_to(browser, start)
                browser.run(f"document.querySelector('#{button}').click()")
                wanted = find(start)
                assert browser.run(value) == (start if wanted is None else wanted), (button, start)
                assert browser.run("document.querySelector('#moment-said').textContent")


@needs_chromium
def test_the_slider_works_by_keyboard_and_names_its_value(browser, shared):
    page, _ = write_page([shared])
    browser.open(page)
    browser.run("document.querySelector('#moment').focus()")
    for key, code in (("ArrowRight", 39), ("ArrowRight", 39), ("End", 35), ("ArrowLeft", 37)):
        browser.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code
        )
    spoken = browser.run("document.querySelector('#moment').getAttribute('aria-valuetext')")
    assert spoken.startswith("update 23 of 24; accuracy")
    assert facts(browser)["clients"].count(",") >= 1
    assert "1 of 12" in browser.run("document.querySelector('#moments').textContent")
    hidden = (
        "[...document.querySelectorAll('.tools [hidden]')].map(e => getComputedStyle(e).display)"
    )
    assert set(browser.run(hidden)) == {"none"}, "no clip, nothing stale"


@needs_chromium
@pytest.mark.skipif(
    not AXE.is_file(), reason="needs axe-core: .ci/run fetches it and sets RAYDPZV_AXE"
)
def test_axe_finds_nothing_serious_in_the_slider(browser, split, shared):
    for run in (split, shared):
        page, _ = write_page([run])
        for width, height, dark in ((1280, 800, False), (390, 844, True)):
            browser.open(page, width, height, dark=dark)
            wide, high, first = browser.run(
                "[document.documentElement.scrollWidth, document.documentElement.scrollHeight, "
                "document.querySelector('.plot canvas').getBoundingClientRect().bottom]"
            )
            assert wide <= width
            assert high <= 5 * height
            assert first <= height
            browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
            browser.run(f"{AXE.read_text()};1")
            found = json.loads(
                browser.run(
                    "axe.run().then(r => JSON.stringify(r.violations.map(v => [v.impact, v.id, "
                    "v.nodes[0].html])))"
                )
            )
            assert [v for v in found if v[0] in ("serious", "critical")] == []


def test_the_page_of_a_published_run_has_pairs_alone(tmp_path):
    short = ["budget.updates=60", "evaluate.every=20", "data.train_rows=150", "data.test_rows=40"]
    run = raydpzv.run(raydpzv.load("digits_private", short), tmp_path / "run")
    assert run.summary["private"]
    call("step", tmp_path / "run", "--rank")
    call("publish", tmp_path / "run", "--out", tmp_path / "public")
    data = {}
    for who, folder in {False: "public", True: "run"}.items():
        page, _ = write_page([tmp_path / folder], tmp_path / str(who))
        (data[who],) = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])[
            "steps"
        ]
    assert set(data[False]["columns"]) <= {
        "scalars",
        "pairs",
        "seeds",
        "lr",
        "moved",
        "clients",
        "served",
    }
    assert not data[False]["ranking"]
    for name in ("evaluated", "scores", "terms", "score"):
        assert name not in data[False]
    assert {"stale"} <= set(data[True]["columns"])  # control
    assert {"scores", "ranking"} <= set(data[True])
    assert data[False]["columns"]["scalars"] == data[True]["columns"]["scalars"]


def test_a_damaged_ledger_is_named_and_the_rest_is_shown(shared, tmp_path):
    shutil.copytree(shared, tmp_path / "run")
    part = max((tmp_path / "run" / "ledger").rglob("*.*"), key=lambda path: path.stat().st_size)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    page = write_page([tmp_path / "run"])[0].read_text()
    assert f"Left out: {part}" in page
    assert 'id="moment"' not in page
    assert "Test accuracy" in page


def test_a_run_of_too_many_updates_keeps_evaluations_and_says_how_many(split):
    folder = RunFolder.open(split)
    view = RunView("run", folder.summary(), folder.rows())
    whole = page_steps.steps(folder, view, withheld=False)
    few = page_steps.steps(folder, view, withheld=False, room=1200)
    assert (whole["held"], "at" in whole) == (61, False)
    assert few["held"] < 61
    assert few["at"]["type"] == "u1"
    size = sum(len(column["bytes"]) for column in few["columns"].values())
    assert size < 1.3 * 1200


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_the_page_of_a_diverged_run_shows_a_ranking_without_finite_losses(tmp_path):
    x = Key(0).generator().standard_normal((120, 8)).astype(np.float32)
    spec = raydpzv.horizontal(
        "mlp", (x, x[:, :1]), clients=4, cohort=2, loss="squared_error", lr=1e9, updates=12
    )
    with pytest.raises(Diverged):
        raydpzv.run(spec, tmp_path / "run")
    with open_history(tmp_path / "run") as history:
        walk = _Walk(history, quiet=True)
        assert "no finite loss to compare" in list(walk.rank())[-1]
        assert "nan%" not in "".join(walk.lines())
    page, _ = write_page([tmp_path / "run"])
    assert "<td>+nan</td>" in page.read_text()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("digits_dpzv", [*SIZES, "method.momentum=0.9"]),
        ("digits_dpzv", [*SIZES, "method.momentum=0", "method.direction=rademacher"]),
        ("digits_decomfl", ["method.local_steps=2", "method.perturbations=3"]),
        ("digits_decomfl", ["method.momentum=0", "data.train_rows=300"]),
    ],
)
def test_the_slider_has_the_lengths_of_the_steps_that_step_replays(name, changes, tmp_path):
    small = ["budget.updates=12", "data.train_rows=150", "data.test_rows=40"]
    raydpzv.run(raydpzv.load(name, [*changes, *small]), tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    shown = page_steps.steps(
        folder, RunView("run", folder.summary(), folder.rows()), withheld=False
    )
    moved = np.frombuffer(base64.b64decode(shown["columns"]["moved"]["bytes"]), "<f4")
    with open_history(tmp_path / "run") as history:
        lengths = [sum(history.moment(update).moved.values()) for update in range(1, 13)]
    assert min(lengths) > 0
    assert moved[1:].tolist() == pytest.approx(lengths, rel=1e-3)


@needs_chromium
def test_the_clip_button_of_a_thinned_page_goes_where_the_clip_began_to_bind(
    browser, split, tmp_path, monkeypatch
):
    monkeypatch.setattr(page_steps, "ROOM", 1600)
    browser.open(write_page([split], tmp_path)[0])
    with open_history(split) as history:
        begun = set(np.flatnonzero(begins(history.clipped)).tolist())
    number = "document.querySelector('#moment-number')"
    browser.run(f"{number}.value = 0; {number}.dispatchEvent(new Event('change'))")
    found, value = [], f"Number({number}.value)"
    for _ in range(61):
        browser.run("document.querySelector('#next-clip').click()")
        found.append(browser.run(value))
    assert 0 < len(set(found)) < len(begun)
    assert set(found) <= begun
