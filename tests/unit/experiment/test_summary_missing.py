"""What a summary claims of a run that lost its account, where updates may have been made elsewhere: nothing."""

from __future__ import annotations

from dataclasses import replace

import scenarios
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.summary import Ending, summarise
from raydpzv.records.schema import SCHEMAS


def test_the_plan_is_no_bound_where_updates_may_have_been_made_elsewhere():
    prepared = prepare(scenarios.load("digits_private", ["data.train_rows=200"]))
    rows = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    ending = Ending("failed", "the server was lost", 1.0, 1.0, 0, None)
    assert summarise("x", prepared, rows, ending)["epsilon"]
    lost = summarise("x", replace(prepared, missing=3), rows, ending)
    assert lost["private"] is False
    assert not lost["epsilon"]
