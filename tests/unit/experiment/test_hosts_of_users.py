"""What a host of silos gets: its own rows, numbers of others' records only where its work needs them, the same bits."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from tests.helpers.changed_settings import scenario
from tests.helpers.runs import run_prepared

FEW = ("budget.updates=2", "split.clients=4")
METHODS = {
    "records": ("uldp_avg", ()),
    "uniform": ("uldp_sgd", ("method.weights=uniform",)),
    "masked": ("uldp_sgd", ("method.aggregation=masked", "method.count_cap=2")),
    "private": (
        "uldp_sgd",
        ("method.aggregation=private_weights", "method.count_cap=2", "method.key_bits=2048"),
    ),
    "naive": ("uldp_naive", ()),
    "group": ("uldp_group", ("method.group=2",)),
}
NEED_NUMBERS = ("records", "masked", "group")


class Dealt(PreparedHorizontal):
    """Two hosts in one process, each made of its own part alone."""

    def client_group(self, updates=None, device="cpu"):
        groups = [PreparedHorizontal.client_group(self.for_host(host, 2), updates, device) for host in (0, 1)]

        class Group:
            def process(self, orders):
                return [groups[order.client % 2].process([order])[0] for order in orders]

        return Group()


def prepared_as(name):
    method, given = METHODS[name]
    return prepare_horizontal(scenario("horizontal", method, (*FEW, *given)))


@pytest.mark.parametrize("name", METHODS)
def test_hosts_with_their_own_rows_alone_give_the_bits_of_one_process(name):
    whole = prepared_as(name)
    dealt = Dealt(**{f.name: getattr(whole, f.name) for f in dataclasses.fields(whole)})
    assert run_prepared(dealt).summary["digest"] == run_prepared(whole).summary["digest"]


@pytest.mark.parametrize("name", METHODS)
def test_others_numbers_of_records_are_there_only_where_weights_or_choices_need_them(name):
    whole = prepared_as(name)
    seen = whole.for_host(1, 4)
    own = whole.split.train.x[whole.parts.rows(1)]
    assert np.array_equal(seen.split.train.x, own)
    assert np.array_equal(seen.split.train.x[seen.parts.rows(1)], own)
    assert np.array_equal(seen.parts.counts()[1], whole.parts.counts()[1])
    needed = name in NEED_NUMBERS
    assert np.array_equal(seen.parts.counts(), whole.parts.counts()) == needed
    if not needed:
        assert seen.parts.counts()[[0, 2, 3]].sum(0).tolist() == [3] + [0] * (whole.parts.users - 1)
    assert seen.parts.users == whole.parts.users


def test_a_hosts_bytes_have_no_row_of_another_silo():
    whole = prepared_as("records")
    train, parts = whole.split.train.x, whole.parts
    own = {train[row].tobytes() for row in parts.rows(2)}
    foreign = {row.tobytes() for row in train} - own
    data = pickle.dumps(whole.for_host(2, 4))
    assert all(row in data for row in own)
    assert not any(row in data for row in foreign)
    control = pickle.dumps(whole)
    assert all(row in control for row in foreign)
