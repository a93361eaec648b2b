import math

import pytest

from raydpzv.records.publish import publication
from tests.helpers.synthetic_run import CLAIMS, PROVED

KNOWING = [c for c in CLAIMS if c["adversary"] != "external"]
UNAMPLIFIED = [
    *KNOWING,
    *(c | {"adversary": "external"} for c in CLAIMS if c["adversary"] == "client"),
]
MIND = f"{PROVED} Mind: δ is large."


def published(claims, settings=None, **summary):
    stated = {"private": True, "status": "done", "privacy_verdict": MIND, "epsilon": claims}
    return publication(stated | summary, settings or {}, {})


def left(found):
    return [(c["adversary"], c["relation"]) for c in found.summary["epsilon"]]


def test_rows_against_who_knows_the_batches_leave_whole():
    found = published(UNAMPLIFIED)
    assert found.adversary == "client"
    assert found.summary["epsilon"] == UNAMPLIFIED
    assert found.summary["privacy_verdict"] == MIND


def test_what_counts_secret_batches_stays_where_an_outsiders_row_rests_on_them():
    found = published(CLAIMS)
    assert found.adversary == "external"
    assert left(found) == [("external", "replace"), ("server", "replace")]
    said = found.summary["privacy_verdict"]
    assert said.startswith(
        "PRIVATE. ε = 1.01 (δ = 1e-05, replace one record) is proved against anyone"
    )
    assert "8.25" not in said
    assert said.endswith("Mind: δ is large.")


@pytest.mark.parametrize("adversary", ["all_clients", "client"])
def test_the_largest_epsilon_of_who_knows_batches_is_what_an_outsiders_is_held_against(adversary):
    other = {"all_clients": "client", "client": "all_clients"}[adversary]
    large, small = (
        {**CLAIMS[1], "adversary": who, "epsilon": e} for who, e in ((adversary, 2.0), (other, 0.5))
    )
    assert published([large, small, CLAIMS[3]]).adversary == "external"
    assert published([{**large, "epsilon": 1.01}, small, CLAIMS[3]]).adversary != "external", (
        "control"
    )


def test_without_a_row_that_holds_where_the_ledger_is_seen_there_is_no_adversary():
    assert published([CLAIMS[3]]).adversary == "external", "control"
    assert published([CLAIMS[0], CLAIMS[4]]).adversary == ""
    assert published([{**CLAIMS[1], "epsilon": None}]).adversary == ""
    assert published([{**CLAIMS[1], "epsilon": "infinity"}]).adversary == ""
    assert published([{**CLAIMS[1], "epsilon": math.inf}]).adversary == ""


def test_no_path_of_the_operators_and_nothing_unknown_leaves():
    settings = {
        "seed": 3,
        "data": {"source": "csv", "file": "mine/x"},
        "arrivals": {"file": "mine/y"},
    }
    found = publication(
        {
            "status": "failed",
            "stopped_by": "ValueError: loss 0.123",
            "loss": 0.5,
            "digest": "0f",
            "to come": 1,
            "epsilon": CLAIMS[1:2],
            "ledger": {"updates": 1, "pairs": 2, "digest": "ab", "bytes": 9, "to come": 1},
        },
        settings,
        {"python": "3", "data_hmac_sha256": "ab", "scenario_sha256": "ef", "to come": 1},
    )
    assert found.settings == {
        "seed": 3,
        "data": {"source": "csv", "file": "withheld"},
        "arrivals": {"file": "withheld"},
    }
    assert found.environment == {"python": "3"}
    assert set(found.summary) == {"status", "epsilon", "ledger", "published"}
    assert set(found.summary["ledger"]) == {"updates", "pairs", "digest"}
