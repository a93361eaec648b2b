"""What a user states to be public is in the verdict, wherever an ε is printed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import raydpzv
from raydpzv.errors import SpecError
from raydpzv.privacy.claim_words import judge, stated
from raydpzv.records.publish import publication
from raydpzv.records.summary_fields import faults
from raydpzv.report.comparison_privacy import privacy_line
from raydpzv.report.comparison_table import CLAIMS
from raydpzv.search.composition import SearchClaims, compose, sentences

SMALL = ("budget.updates=4", "evaluate.every=4", "data.train_rows=200", "data.test_rows=50")
BEGINS = "You state that these are public: "
READ = f"{BEGINS}data.centre and data.spread (read off the data)."
CONFIRMED = 'data.confirmed=["centre", "spread"]'


def scenario(*more: str) -> Any:
    return raydpzv.load("digits_private", [*SMALL, *more])


def test_what_was_read_off_the_data_is_in_every_form_of_the_verdict(tmp_path: Path) -> None:
    spec = scenario(CONFIRMED)
    found = raydpzv.privacy(spec)
    assert READ in found.verdict.headline()
    assert READ in repr(found)
    assert READ in found._repr_html_()
    assert {c["premise"] for c in found.claims if c["holds"]} == {READ}
    raydpzv.run(spec, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["privacy_verdict"].count(READ) == 1
    assert stated(summary).text == summary["privacy_verdict"]
    assert not list(faults(summary))
    page = raydpzv.report(tmp_path / "run", tmp_path / "page.html").read_text()
    shown, _, _ = page.partition("<details>")
    assert READ in shown, "it is not folded away"
    outside = publication(summary, {}, {})
    assert READ in outside.summary["privacy_verdict"]


def test_without_such_a_statement_the_verdict_has_no_such_sentence() -> None:
    found = raydpzv.privacy(scenario())
    assert BEGINS not in found.verdict.text
    assert "data.centre and data.spread are taken as known without the data" in found.verdict.text
    confirmed = raydpzv.privacy(scenario(CONFIRMED)).verdict.text
    assert "taken as known" not in confirmed


def test_where_nothing_is_proved_there_is_no_premise() -> None:
    group, small = "method={name='uldp_group', group='max'}", ["budget.updates=2", "users.count=20"]
    spec = raydpzv.load("digits_users", [*small, CONFIRMED, group])
    found = raydpzv.privacy(spec)
    assert not any(c["holds"] for c in found.claims)
    assert not any(c["premise"] for c in found.claims)
    assert BEGINS not in found.verdict.text


@pytest.mark.parametrize("given", ['["clases"]', '"centre spread"', "[3]"])
def test_an_unknown_name_is_refused(given: str) -> None:
    with pytest.raises(SpecError, match=r"data\.confirmed"):
        scenario(f"data.confirmed={given}")


def test_the_records_that_ids_join_are_a_premise() -> None:
    x = np.linspace(-1, 1, 240, dtype=np.float32).reshape(60, 4)
    small: dict[str, Any] = {
        "updates": 3,
        "embedding": 2,
        "batch": 4,
        "classes": [0, 1],
        "server": "joint",
        "privacy": {"mode": "proved", "epsilon": 4.0, "clip": 1.0},
        "data": {"split": "plain"},
    }
    views, labels = [x[:, :2], x[:, 2:]], np.arange(60) % 2
    ids = [np.arange(60), np.arange(60)[::-1]]
    joined = raydpzv.vertical("mlp", views, labels, ids=ids, **small)
    said = f"{BEGINS}which records all parties have (ids)."
    assert said in raydpzv.privacy(joined).verdict.headline()
    beside = raydpzv.vertical("mlp", views, labels, **small)
    assert BEGINS not in raydpzv.privacy(beside).verdict.text


def test_k_and_the_silos_record_counts_are_a_premise() -> None:
    group = "method={name='uldp_group', group=4, rate=1.0}"
    small = ["data.train_rows=200", "data.test_rows=50", "budget.updates=2", "users.count=20"]
    found = raydpzv.privacy(raydpzv.load("digits_users", [*small, group]))
    said = f"{BEGINS}k = 4 (method.group); how many records each silo uses."
    assert said in found.verdict.headline()
    other = raydpzv.privacy(raydpzv.load("digits_users", small))
    assert BEGINS not in other.verdict.text


def claim(**changed: Any) -> dict[str, Any]:
    usual = {
        "adversary": "external",
        "epsilon": 1.0,
        "delta": 1e-5,
        "holds": True,
        "mechanism": "Gaussian",
        "relation": "replace",
        "accountant": "closed form (GDP)",
        "scope": "unit: one record",
        "note": "",
        "guess": 0.56,
        "premise": READ,
    }
    return usual | changed


def test_a_sentence_of_several_claims_is_said_once() -> None:
    rows = [claim(), claim(adversary="client"), claim(adversary="server", holds=False, premise="x")]
    assert judge(rows).headline().count(READ) == 1
    assert "x" not in judge(rows).premise
    assert judge([claim(premise=None)]).premise == "", "of an older summary"


def test_a_comparison_and_a_search_say_it_too() -> None:
    spec = scenario(CONFIRMED)
    row = claim(label="a", epsilon=1.0, seed=0, claimed=1.0, sensitivity=1.0)
    claims = pa.Table.from_pylist([row], schema=CLAIMS)
    run = {"label": "a", "epsilon": 1.0, "private": True, "outcome": "ok"}
    runs = pa.Table.from_pylist([run | {"multiplier": None, "sigma": None}])
    assert READ in privacy_line(claims, runs)
    trials = {"trial 0": raydpzv.privacy(spec).claims}
    search = SearchClaims(trials["trial 0"], trials, trials, same_data=True, cut=False)
    assert READ in sentences(compose(search))[0]
