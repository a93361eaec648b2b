import json
from pathlib import Path

import pytest

from raydpzv.errors import DataError, InputError
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.summary_fields import SUMMARY_FORMAT
from raydpzv.report import text
from raydpzv.report.page import write_report
from tests.helpers.report_views import Page, asks_a_network, names
from tests.helpers.synthetic_run import CLAIMS, MECHANISM, SCOPE, build_run

PICTURES = {
    "accuracy_over_bytes", "accuracy_over_seconds", "accuracy_over_updates", "epsilon_over_updates",
    "loss_over_updates", "staleness_by_client", "timeline",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("one") / "run", rounds=200)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report([run]).read_text(encoding="utf-8"))


def test_the_page_asks_nothing_of_a_network(page: Page, run: Path) -> None:
    source = (run / "report.html").read_text(encoding="utf-8")
    assert not asks_a_network(source)
    assert asks_a_network(source.replace("<h1>", '<img src="http://example.org/x.png"><h1>'))


def test_the_page_draws_what_the_rows_hold(page: Page, run: Path) -> None:
    assert names(run) == PICTURES
    charts = {chart["title"]: chart for chart in page.data["charts"]}
    seen = RunFolder(run).rows()["evaluation"]
    (accuracy,) = charts["Test accuracy"]["series"]
    assert accuracy["x"] == seen["round"].to_pylist()
    assert accuracy["y"] == pytest.approx(seen["accuracy"].to_pylist(), rel=1e-6)
    assert set(charts) >= {
        "Training loss",
        "ε spent so far",
        "Round trips",
        "Staleness",
        "Age of used embeddings",
    }
    assert page.data["axes"].keys() == {"update", "time", "bytes", "epsilon"}


def test_the_page_says_everything(page: Page) -> None:
    for part in (
        "synthetic <b>",
        "method dpzv, seed 1, done (updates)",
        "PRIVATE",
        'name = "dpzv"',
        '"device": "cpu"',
    ):
        assert part in page.words
    for claim in CLAIMS:
        assert claim["accountant"] in page.words
    bound = "Against all clients together it is ε = 8.25 (replace one record)."
    for shared in (bound, MECHANISM, SCOPE, *(c["note"] for c in CLAIMS if c["note"])):
        assert page.words.count(shared) == 1


def test_user_text_is_escaped(page: Page) -> None:
    assert "b" not in page.tags
    assert "i" not in page.tags


def test_no_half_written_files_stay(run: Path, page: Page) -> None:
    assert not [p for p in run.rglob(".*") if p.is_file()]


@pytest.mark.usefixtures("unrendered")
def test_a_run_that_is_not_private_says_so_first(tmp_path: Path) -> None:
    source = write_report([build_run(tmp_path / "run", rounds=40, private=False)]).read_text(
        encoding="utf-8"
    )
    words = Page(source).words
    assert "NOT PRIVATE" in words
    assert words.index("NOT PRIVATE") < words.index("Summary")
    assert "no noise is added to the releases" in words
    assert words.count("no noise is added to the releases") == 1
    assert 'class="verdict private"' not in source
    assert 'class="claims"' not in source


def test_several_runs_go_side_by_side_into_their_own_folder(tmp_path: Path) -> None:
    runs = [
        build_run(tmp_path / "a", rounds=60),
        build_run(tmp_path / "b", rounds=80, private=False, method="vafl", clients=2),
    ]
    path = write_report(runs, tmp_path / "both")
    words = Page(path.read_text(encoding="utf-8")).words
    assert path == tmp_path / "both" / "report.html"
    assert names(tmp_path / "both") == PICTURES
    assert "2 runs side by side" in words
    assert "vafl: NOT PRIVATE: no noise is added" in words
    assert "dpzv: PRIVATE." in words
    assert not (runs[0] / "report.html").exists()


@pytest.mark.usefixtures("unrendered")
def test_the_page_of_an_owner_shows_private_runs_and_says_which_to_keep(tmp_path: Path) -> None:
    runs = [
        build_run(tmp_path / "a", rounds=60),
        build_run(tmp_path / "b", rounds=60, private=False),
    ]
    lone = Page(write_report([runs[1]], tmp_path / "b").read_text(encoding="utf-8")).words
    both = Page(write_report(runs, tmp_path / "both").read_text(encoding="utf-8")).words
    for run in runs:
        assert text.percent(RunFolder.open(run).summary()["accuracy"]) in both
    assert (both.count("keep this page"), lone.count("keep this page")) == (1, 0)


def test_several_runs_without_a_folder_are_refused(run: Path) -> None:
    with pytest.raises(InputError, match="2 runs need a folder"):
        write_report([run, run])
    with pytest.raises(InputError, match="at least one"):
        write_report([])


@pytest.mark.parametrize("name", ["summary.json", "scenario.toml", "environment.json"])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    folder = build_run(tmp_path / "run", rounds=5)
    (folder / name).unlink()
    said = "not a run folder" if name == "scenario.toml" else f"has no {name}"
    with pytest.raises(DataError, match=said):
        write_report([folder])
    assert not (folder / "report.html").exists()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", rounds=5)
    for broken, said in (("{", "is damaged: wanted a JSON object"), ("[]", "holds a list")):
        (folder / "summary.json").write_text(broken)
        with pytest.raises(DataError, match=said):
            write_report([folder])


def test_a_damaged_part_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", rounds=40)
    (folder / "rows" / "service" / "part-00000.parquet").write_bytes(b"PAR1 no table PAR1")
    page = Page(write_report([folder]).read_text(encoding="utf-8"))
    assert page.words.count("part-00000.parquet: cannot be read") == 1
    titles = {chart["title"] for chart in page.data["charts"]}
    assert "Test accuracy" in titles
    assert not {"Training loss", "Round trips"} & titles


def test_a_failed_run_without_rows_still_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    nothing = dict.fromkeys(("accuracy", "best_accuracy", "loss", "simulated_seconds"))
    stated = nothing | {
        "epsilon": [],
        "staleness": {},
        "scenario": "",
        "method": "dpzv",
        "seed": 0,
        "status": "failed",
        "format": SUMMARY_FORMAT,
        "private": False,
        "private_reason": "it failed",
    }
    (folder / "summary.json").write_text(json.dumps(stated))
    (folder / "scenario.toml").write_text("")
    (folder / "environment.json").write_text("{}")
    page = write_report([folder]).read_text(encoding="utf-8")
    words = Page(page).words
    assert "<title>dpzv</title>" in page
    assert "no rows to draw" in words
    assert "failed" in words
    assert "states no ε" in words


def test_pictures_for_papers_have_the_form_asked_for_and_others_go(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=40)
    for form, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        first = write_report([run], form=form)
        found = {p.name: p.read_bytes() for p in (run / "plots").iterdir()}
        assert {name.partition(".")[2] for name in found} == {form}
        assert all(picture.startswith(start) for picture in found.values())
        assert first == write_report([run], form=form)
        assert found == {p.name: p.read_bytes() for p in (run / "plots").iterdir()}
    with pytest.raises(InputError, match="format: wanted one of png, pdf, svg"):
        write_report([run], form="gif")
