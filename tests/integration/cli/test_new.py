import json
import re
from pathlib import Path

import pytest

from raydpzv.records.store import read_all
from tests.helpers.commands import call, complaint
from tests.helpers.own_table import PARTIES, write_own_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where both commands were given, one after the other, with no other step."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_own_table(folder / "own.csv")
        options = ("--data", "own.csv", "--parties", PARTIES, "--private", "--public-from-data")
        for command in (
            ("new", "own", *options),
            ("run", "own.toml", "--out", "run", "--quiet", "--explain"),
        ):
            done = call(*command)
            assert done.exit_code == 0, done.output
    (folder / "printed").write_text(done.stdout)
    return folder


def test_two_commands_lead_from_a_table_to_a_proved_epsilon(folder):
    summary = json.loads((folder / "run/summary.json").read_text())
    (proved,) = (c for c in summary["epsilon"] if c["adversary"] == "all_clients")
    assert (summary["private"], proved["holds"], proved["relation"]) == (True, True, "replace")
    assert proved["epsilon"] == pytest.approx(1, rel=1e-9)
    assert summary["accuracy"] > summary["largest_class_share"] + 0.1
    assert summary["parties"] == ["bank", "shop"]
    assert summary["warnings"] == [
        "no client holds the columns name, gaps: they are not used; list them in split.parties"
    ]
    assert "PRIVATE. ε = 1 (" in call("privacy", folder / "own.toml").stdout
    assert 'DPZV with a proved ε"' in (folder / "own.toml").read_text(), (
        "--set may change ε, not the title"
    )


@pytest.mark.usefixtures("unrendered")
def test_tables_and_pages_name_the_parties_and_rows_the_clients(folder):
    assert re.search(
        r"^ *bank +\d+ .*\n *shop +\d+ ", (folder / "printed").read_text(), re.MULTILINE
    )
    assert call("report", folder / "run").exit_code == 0
    page = (folder / "run/report.html").read_text()
    assert all(len(re.findall(f"<th[^>]*>{name}</th>", page)) == 1 for name in ("bank", "shop"))
    rows = read_all(folder / "run")
    assert set(rows["service"].column("client").to_pylist()) == {0, 1}
    assert {"client 0", "client 1"} < set(rows["model"].column("party").to_pylist())


def test_replay_takes_a_party_by_name_or_number(folder):
    by_name, by_number = (call("replay", folder / "run", "--client", who) for who in ("shop", 1))
    assert by_name.exit_code == 0, by_name.output
    assert by_name.stdout == by_number.stdout
    assert "what shop (client 1) last had" in by_name.stdout
    assert "the final model has the recorded bits" in by_name.stdout
    assert 'Did you mean "shop"' in complaint(call("replay", folder / "run", "--client", "shp"))
    early = call("replay", folder / "run", "--client", "shop", "--at", "1")
    assert "1 updates; nothing is on record to compare with" in early.stdout


def test_what_was_published_knows_the_parties(folder):
    assert call("publish", folder / "run", "--out", folder / "public", "--quiet").exit_code == 0
    done = call("replay", folder / "public", "--client", "bank")
    assert done.exit_code == 0, done.output
    assert "bank (client 0): " in done.stdout


def test_without_noise_the_scenario_runs_and_claims_nothing(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert call("new", "open", "--data", "own.csv", "--parties", PARTIES).exit_code == 0
    done = call("run", "open.toml", "--out", "open", "--quiet", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["private"], summary["epsilon"]) == (False, [])
    assert summary["accuracy"] > 0.85


def test_messages_of_a_run_name_the_party(folder):
    late = ("--set", "clock.compute=[0.0, 2.0]", "--set", "budget.updates=40")
    done = call("run", folder / "own.toml", *late, "--out", folder / "late", "--quiet", "--json")
    assert done.exit_code == 0, done.output
    assert any(
        re.search(r"epochs fell into running round trips \(shop \d+ % ", said)
        for said in json.loads(done.stdout)["warnings"]
    )


def described(heading, row):
    """What `new` says of a table of 90 rows in the working folder."""
    Path("own.csv").write_text("\n".join([heading, *map(row, range(90))]))
    return call("new", "own", "--data", "own.csv").stdout


def warnings_of_its_run():
    done = call("run", "own.toml", "--set", "budget.updates=2", "--quiet", "--out", "run")
    assert done.exit_code == 0, done.output
    return json.loads(Path("run/summary.json").read_text())["warnings"]


def test_a_word_that_counts_as_a_gap_is_named(tmp_path, monkeypatch):
    """NA is North America, or a missing cell: the table cannot say."""
    monkeypatch.chdir(tmp_path)
    regions = ("EU", "AS", "NA")
    said = described("region,a,label", lambda n: f"{regions[n % 3]},{n % 7}.5,{n % 2}")
    assert 'column "region" has 30 cells without a value, such as "NA"; if that is a value' in said
    text = Path("own.toml").read_text().replace('["AS", "EU"]', '["AS", "EU", "NA"]')
    Path("own.toml").write_text(text.replace('missing = "mean"', 'missing = "refuse"'))
    warnings_of_its_run()  # NA is a category as listed, so that no cell is missing


def test_a_frames_row_numbers_are_left_out_and_no_run_warns_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = described(",a,b,label", lambda n: f"{n},{n % 7}.5,{n % 5},{n % 2}")
    assert "not used: a column (it has no name, as a frame's row numbers)" in said
    assert not [line for line in warnings_of_its_run() if "no client holds" in line]
