import dataclasses
import pickle

import numpy as np
import pytest

from raydpzv.errors import RunError
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.experiment.run_horizontal import warm_up
from raydpzv.keys import Key
from raydpzv.secure.attempts import Attempt
from tests.helpers.changed_settings import scenario
from tests.helpers.runs import run_prepared


def rows_in(data: bytes, prepared: PreparedHorizontal) -> int:
    return sum(row.tobytes() in data for row in np.unique(prepared.split.train.x, axis=0))


def test_a_server_of_users_sums_gets_no_training_row_and_nobodys_numbers_of_records() -> None:
    prepared = prepare_horizontal(scenario("horizontal", "uldp_avg", ()))
    seen = prepared.for_server()
    assert rows_in(pickle.dumps(seen), prepared) == 0
    assert rows_in(pickle.dumps(prepared), prepared) > 50  # control
    assert seen.parts.sizes.tolist() == [1, 1, 1]
    assert (seen.plan, seen.setting) == (prepared.plan, prepared.setting)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(seen.split.held_out, prepared.split.held_out, strict=True)
    )


def test_the_server_of_another_method_gets_what_there_is() -> None:
    prepared = prepare_horizontal(scenario("horizontal", "decomfl", ()))
    assert prepared.for_server() is prepared


# What a host of silos gets: its own rows, numbers of others' records only where its work needs
# them, the same bits.

FEW = ("budget.updates=1", "split.clients=4")
METHODS = {
    "records": ("uldp_avg", ()),
    "uniform": ("uldp_sgd", ("method.weights=uniform",)),
    "masked": ("uldp_sgd", ("method.aggregation=masked", "method.count_cap=2")),
    "private": (
        "uldp_sgd",
        (
            "method.aggregation=private_weights",
            "method.count_cap=2",
            "method.key_bits=2048",
            "method.sampling=0.5",
        ),
    ),
    "sampled": ("uldp_sgd", ("method.sampling=0.5",)),
    "naive": ("uldp_naive", ()),
    "group": ("uldp_group", ("method.group=2",)),
}
NEED_NUMBERS = ("records", "masked", "sampled", "group")


class Dealt(PreparedHorizontal):
    """Two hosts in one process, each made of its own part alone."""

    def client_group(self, updates=None, device="cpu"):
        groups = [
            PreparedHorizontal.client_group(self.for_host(host, 2), updates, device)
            for host in (0, 1)
        ]

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
        assert (seen.parts.counts()[[0, 2, 3]] == 1).all()
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


@pytest.mark.parametrize(("name", "knows"), [("private", False), ("sampled", True)])
def test_the_key_of_the_users_coins_is_where_silos_draw_by_it_alone(name, knows):
    method, given = METHODS[name]
    whole = prepare_horizontal(
        scenario("horizontal", method, (*FEW, *given, "privacy.noise=system"))
    )
    secret = whole.secret.to_bytes(32, "little").rstrip(b"\0")  # as pickle writes a number
    assert secret in pickle.dumps(whole)
    assert secret in pickle.dumps(whole.for_server()), "who draws has it"
    host = whole.for_host(0, 2)
    assert (secret in pickle.dumps(host)) == knows
    if not knows:
        warm_up(host, "cpu")
        with pytest.raises(RunError, match="a process of silos that need not know who is drawn"):
            host.privacy.noise.coin("users of a round")


def test_the_account_of_a_sample_that_silos_do_not_know_is_that_of_one_they_tell():
    told, hidden = (
        prepare_horizontal(
            scenario("horizontal", method, (*FEW, *given, "privacy.noise=system")), secret=5
        )
        for method, given in (METHODS["sampled"], METHODS["private"])
    )
    coins = (Key(5) / "users of a round" / r for r in (1, 2, 3))
    samples = [np.flatnonzero(c.generator().random(told.parts.users) < 0.5) for c in coins]
    accounts = told.privacy_filter(), hidden.privacy_filter()
    nobody_says = np.empty(0, np.int64)
    for round, sample in enumerate(samples, 1):
        for silo in range(4):
            attempt = Attempt(round, 0, (0, 1, 2, 3))
            accounts[0].charge(silo, sample, 1, attempt)
            accounts[1].charge(silo, nobody_says, 1, attempt)
    counts = np.bincount(np.concatenate(samples), minlength=told.parts.users)
    assert [account.state()["drawn"] for account in accounts] == [counts.tolist()] * 2
    assert 0 < counts.min() + counts.max() < 6, "control: not everybody in all rounds"
