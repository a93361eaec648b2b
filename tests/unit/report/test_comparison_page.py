import math
from pathlib import Path

import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from raydpzv.report.comparison_lines import band, lines, named
from raydpzv.report.comparison_page import About, write_comparison
from tests.helpers.report_views import Page, asks_a_network
from tests.helpers.synthetic_comparison import Made, field, printed, view

ALL = {
    "accuracy_over_epsilon", "accuracy_over_updates", "accuracy_over_bytes", "accuracy_over_seconds",
    "bytes_to_target", "seconds_to_target",
}  # fmt: skip

ABOUT = About("Field <i>", 'name = "a&b"', [0.8, 0.99])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("comparison")
    assert write_comparison(made, field().tables, ABOUT) == made / "comparison.html"
    return made


def test_every_file_is_there_and_no_half_written_one(folder: Path) -> None:
    assert {p.stem for p in folder.glob("plots/*.png")} == ALL
    names = [f"rows/{n}" for n in ("runs", "curves", "claims")] + ["table"]
    assert all((folder / f"{n}.{kind}").is_file() for n in names for kind in ("parquet", "csv"))
    assert not [p for p in folder.rglob(".*") if p.is_file()]


def test_the_page_draws_every_line_and_asks_nothing_of_a_network(folder: Path) -> None:
    source = (folder / "comparison.html").read_text(encoding="utf-8")
    assert not asks_a_network(source)
    accuracy, costs = Page(source).data["charts"]
    runs, curves, _ = field().tables
    found = lines(runs, curves)
    assert [one["name"] for one in accuracy["series"]] == [
        named(line.label, line.epsilon) for line in found
    ]
    for one, line in zip(accuracy["series"], found, strict=True):
        assert one["y"] == pytest.approx(band(line.curves, "update").median.tolist(), rel=1e-6)
    assert costs["series"][1]["notes"] == ["ε 1"]


def test_labels_title_and_plan_are_escaped_on_the_page(folder: Path) -> None:
    page = Page((folder / "comparison.html").read_text(encoding="utf-8"))
    assert not {"b", "i"} & set(page.tags)
    for part in ("Field <i>", "quick <b>bold</b>", "langsam λ [red]", 'name = "a&b"'):
        assert part in page.words
    assert "2 methods, 1 control, 3 seeds, 15 runs, 1 of them FAILED" in page.words


def test_equal_tables_give_equal_files(folder: Path, tmp_path: Path) -> None:
    write_comparison(tmp_path, field().tables, ABOUT)
    files = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert [f for f in files if (folder / f).read_bytes() != (tmp_path / f).read_bytes()] == []


def test_parquet_and_csv_read_back_with_infinities(folder: Path) -> None:
    runs, curves, claims = field().tables
    folded = view(runs, curves, [0.8, 0.99]).table
    for name, rows in (
        ("table", folded),
        ("rows/runs", runs),
        ("rows/curves", curves),
        ("rows/claims", claims),
    ):
        assert pq.read_table(folder / f"{name}.parquet").schema == rows.schema
        kept = pcsv.ConvertOptions(column_types=rows.schema, strings_can_be_null=False)
        again = pcsv.read_csv(folder / f"{name}.csv", convert_options=kept).to_pydict()
        for column, values in rows.to_pydict().items():
            for value, read in zip(values, again[column], strict=True):
                lost = isinstance(value, float) and math.isnan(value)
                text = value is None and isinstance(read, str)  # null is empty, as a text is
                wanted = "" if text else value
                assert (read is None or math.isnan(read)) if lost else read == wanted, column
    plain = pcsv.read_csv(folder / "table.csv")
    assert plain["seconds_0.99_median"].to_pylist() == [math.inf] * 5
    assert plain["epsilon"].to_pylist() == [None, 1.0, None, 10.0, None]


def test_an_earlier_picture_that_is_no_longer_drawn_goes(tmp_path: Path) -> None:
    made = Made().run("a", None, 0, 0.9).tables
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "bytes_to_target.png").write_bytes(b"old")
    page = write_comparison(tmp_path, made, About("t", "", [])).read_text(encoding="utf-8")
    assert not (tmp_path / "plots" / "bytes_to_target.png").exists()
    assert (
        "bytes to target is left out: no line that sends anything reached a target with half of "
        "its runs." in page
    )


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_a_comparison_of_one_run(tmp_path: Path, epsilon: float | None) -> None:
    made = Made().run("日本 $x$ _", epsilon, 0, 0.9)
    page = write_comparison(tmp_path, made.tables, About("one", "", [0.8])).read_text(
        encoding="utf-8"
    )
    missing = {"accuracy_over_epsilon"} if epsilon is None else set()
    assert {p.stem for p in tmp_path.glob("plots/*.png")} == ALL - missing
    assert "日本 $x$ _" in page
    assert "1 method, 0 controls, 1 seed, 1 run" in page
    assert "FAILED" not in Page(page).words
    assert "90.00 %" in printed(made.tables, [0.8])


def test_all_runs_failed_before_they_began(tmp_path: Path) -> None:
    made = Made()
    for seed in (0, 1):
        made.run(
            "a",
            1.0,
            seed,
            0.5,
            outcome="failed",
            status="missing",
            accuracy=math.nan,
            reason="no memory",
        )
    made.curves.clear()
    page = Page(
        write_comparison(tmp_path, made.tables, About("none", "", [0.8])).read_text(
            encoding="utf-8"
        )
    )
    assert {p.stem for p in tmp_path.glob("plots/*.png")} == {"accuracy_over_epsilon"}
    assert "accuracy over updates is left out: no run has finished." in page.words
    assert "2 failed" in page.words
    assert "No run reached it." in page.words
    assert page.words.count("no memory") == 2


def test_nothing_was_run_at_all(tmp_path: Path) -> None:
    made = Made().run("a", 1.0, 0, 0.5, outcome="not run", status="missing", accuracy=math.nan)
    made.curves.clear()
    page = Page(
        write_comparison(tmp_path, made.tables, About("none", "", [0.8])).read_text(
            encoding="utf-8"
        )
    )
    assert not list(tmp_path.glob("plots/*.png"))
    assert "1 not run" in page.words
