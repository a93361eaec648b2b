from collections.abc import Sequence
from dataclasses import asdict

import pytest

from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.claim_words import Claim
from raydpzv.privacy.mean import MeanReleasePlan
from raydpzv.report.privacy import CONDITION, PrivacyBlock, privacy_table
from tests.helpers import report_views
from tests.helpers.synthetic_run import CLAIMS, MECHANISM, SCOPE, TERMS

PROVED = TERMS | {
    "adversary": "client",
    "epsilon": 8.25,
    "accountant": "PLD",
    "holds": True,
    "note": "why",
}
SIGMA = paper_sigma(epsilon=1.0, delta=1e-3, clip=2.0, releases=2000, rows=1437)


def setting(server: str, batches: str, target: float | None = 1.0) -> MeanReleasePlan:
    return MeanReleasePlan(
        rows=1437,
        batch=64,
        releases=2000,
        clip=2.0,
        sigma=SIGMA,
        delta=1e-3,
        batches=batches,
        server=server,
        noise="system",
        target=target,
        clients=4,
    )


def printed(stated: Sequence[Claim], width: int) -> list[str]:
    return [
        line.rstrip() for line in report_views.printed(PrivacyBlock(stated), width).splitlines()
    ]


def squeezed(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_what_rows_share_stands_once_above_and_every_note_once_below() -> None:
    stated = [PROVED, PROVED | {"relation": "add_remove"}, PROVED | {"note": "[b]other"}]
    lines = printed([*stated, PROVED | {"note": ""}], 80)
    said = squeezed(lines)
    for once in (MECHANISM, SCOPE, "δ = 1e-05", "[1] why", "[2] [b]other"):
        assert said.count(once) == 1
    assert said.index(SCOPE) < said.index("adversary") < said.index("[1] why")
    assert said.count("client [1] [2] replace, add/remove") == 1, "equal rows are one"
    assert "[0]" not in said


def test_rows_say_relation_standing_and_sensitivity() -> None:
    found = privacy_table(CLAIMS)
    heads = [head.partition("\n")[0] for head in found.grid.heads]
    cells = [dict(zip(heads, row, strict=True)) for row in found.grid.rows]
    assert [c["standing"] for c in cells] == [
        "claimed",
        "proved",
        "proved",
        "proved",
        "nothing proved",
    ]
    assert [c["ε"] for c in cells] == ["1", "8.25", "3.75", "1.01", "∞"]
    assert [c["sensitivity"] for c in cells] == ["0.3125", "0.3125", "0.1562", "0.3125", "–"]
    assert cells[2]["relation"] == "add/remove"


@pytest.mark.parametrize(("epsilon", "cell"), [(9.9, "9.9"), (10.0, "10"), (157480.3, "> 10")])
def test_a_proved_epsilon_above_ten_is_cut_and_its_note_has_it(epsilon: float, cell: str) -> None:
    found = privacy_table([PROVED | {"epsilon": epsilon}])
    (row,) = found.rows
    assert row.epsilon == cell
    assert (row.standing == "no useful ε") is (cell == "> 10")
    notes = [note for note in found.notes if "Proved (client, replace): ε = 157,480, which" in note]
    assert len(notes) == (cell == "> 10")
    short = privacy_table([PROVED | {"epsilon": epsilon}], explained=False)
    assert (short.rows[0].epsilon, short.notes) == (cell, ())


def test_the_conditional_column_is_there_only_with_a_conditional_number() -> None:
    without = squeezed(printed([PROVED], 100))
    assert "hidden" not in without
    said = squeezed(printed([PROVED | {"direct_only": 1.5}, PROVED], 100))
    assert said.count(CONDITION) == 1
    assert "state*" in said
    assert "PLD 1.5" in said
    assert "PLD –" in said


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("server", ["sgd", "frozen"])
@pytest.mark.parametrize("batches", ["shuffle", "poisson"])
def test_real_claims_fit_the_terminal_and_lose_no_word(
    server: str, batches: str, width: int
) -> None:
    stated = [asdict(c) for c in setting(server, batches).table()]
    lines = printed(stated, width)
    assert max(map(len, lines)) <= width
    said = squeezed(lines)
    assert "…" not in said
    for claim in stated:
        assert said.count(str(claim["note"])) == 1 or claim["note"] == ""
        for word in str(claim["accountant"]).split():
            assert word in said
    rule = next(i for i, line in enumerate(lines) if line.startswith("──"))
    table = lines[rule + 1 : lines.index("", rule)]
    assert len(table) <= len(stated) * (1 if width == 120 else 2)
    heads = " ".join(lines[rule - 3 : rule])
    for head in ("adversary", "relation", "ε", "standing", "sensitivity", "accountant"):
        assert head in heads
    assert ("hidden" in heads) == (server == "sgd")


def test_without_noise_there_is_no_table() -> None:
    bare = [PROVED | {"mechanism": "none", "epsilon": "infinity"}]
    assert privacy_table(bare) is None
    assert privacy_table([]) is None
    assert printed(bare, 80) == []


def test_claims_of_older_runs_without_the_newer_fields_still_print() -> None:
    old = {k: v for k, v in PROVED.items() if k not in ("sensitivity", "scope", "direct_only")}
    said = squeezed(printed([old], 80))
    assert "8.25 – proved – PLD" in said
    assert "Scope" not in said
