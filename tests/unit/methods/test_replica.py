from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from raydpzv.errors import RunError
from raydpzv.ledger.entries import SHARED
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.replica import Replica
from raydpzv.zo.update import Rule, Step
from tests.helpers import seed_parties as toy

PLAIN, HEAVY = toy.settings(), toy.settings(momentum=0.5)


replica_of = partial(toy.replica, step_seeds=False)


def filled(count: int = 5, **options: Any) -> Ledger:
    """Updates of parties 0, 1, 0, 1, ... with two steps of two pairs each."""
    ledger = toy.ledger(PLAIN, **options)
    for round in range(1, count + 1):
        seeds = np.arange(4, dtype=np.uint64) + np.uint64(100 * round)
        ledger.append(
            party=round % 2,
            read=round - 1,
            lr=0.1 / round,
            step=[0, 0, 1, 1],
            perturbation=[0, 1, 0, 1],
            seed=seeds,
            scalar=np.linspace(-1, 2, 4).astype(np.float32),
        )
    return ledger


def same(a: Replica, b: Replica) -> bool:
    return a.version == b.version and toy.bits(a.state()) == toy.bits(b.state())


@pytest.mark.parametrize("how", [PLAIN, HEAVY])
@pytest.mark.parametrize("stops", [[5], [1, 2, 3, 4, 5], [2, 2, 5]])
def test_the_stops_on_the_way_move_no_bits(how: Any, stops: list[int]) -> None:
    ledger, whole, broken = filled(), replica_of(how), replica_of(how)
    whole.go_to(5, ledger)
    for stop in stops:
        broken.go_to(stop, ledger)
    assert same(whole, broken)
    assert not same(whole, replica_of(how))


def test_a_replica_goes_forward_only_and_skips_nothing() -> None:
    ledger, replica = filled(), replica_of(PLAIN)
    replica.go_to(3, ledger)
    before = replica.state()
    with pytest.raises(RunError, match="at update 3 cannot go back to 2"):
        replica.go_to(2, ledger)
    for first in (2, 4):
        with pytest.raises(RunError, match=f"at update 3 got the updates after {first}"):
            replica.follow(ledger.since(first, 5))
    assert toy.bits(replica.state()) == toy.bits(before)
    assert replica.version == 3


def test_a_replica_of_one_party_follows_that_party_alone() -> None:
    ledger = filled()
    one = Replica(toy.initial(), PLAIN.rule, party=1)
    one.go_to(5, ledger)
    by_hand = replica_of(PLAIN)
    for round in (1, 3, 5):
        update = ledger.since(round - 1, round)
        assert set(update.party.tolist()) == {1}
        by_hand.apply_steps([Step(s, c, lr) for s, c, lr in update.steps()])
    assert one.version == 5
    assert toy.bits(one.x) == toy.bits(by_hand.x)
    nobody = Replica(toy.initial(), PLAIN.rule, party=SHARED)
    nobody.go_to(5, ledger)
    assert toy.bits(nobody.x) == toy.bits(toy.initial())


@pytest.mark.parametrize("how", [PLAIN, HEAVY])
def test_a_twin_and_a_fork_continue_alone_and_a_state_is_a_copy(how: Any) -> None:
    ledger, replica = filled(), replica_of(how)
    replica.go_to(2, ledger)
    state = replica.state()
    assert state.shape == (1 + bool(how.rule.momentum), toy.D)
    twin, fork = replica.twin(), replica.fork()
    twin.go_to(5, ledger)
    fork.apply([Step([3], [1.0], 0.1)])
    assert toy.bits(replica.state()) == toy.bits(state)
    replica.go_to(5, ledger)
    assert same(replica, twin)
    assert toy.bits(state) != toy.bits(replica.state())


@pytest.mark.parametrize("how", [PLAIN, HEAVY])
def test_who_adopts_a_state_continues_as_its_owner(how: Any) -> None:
    ledger, owner, other = filled(), replica_of(how), replica_of(how)
    owner.go_to(3, ledger)
    state = owner.state()
    state.flags.writeable = False
    other.adopt(state, 3)
    for replica in (owner, other):
        replica.go_to(5, ledger)
    assert same(owner, other)


def test_momentum_is_part_of_the_state() -> None:
    """The control: with the parameters alone, who adopts goes elsewhere."""
    ledger, owner, other = filled(), replica_of(HEAVY), replica_of(HEAVY)
    owner.go_to(3, ledger)
    other.adopt(np.stack([owner.state()[0], np.zeros(toy.D, np.float32)]), 3)
    owner.go_to(5, ledger)
    other.go_to(5, ledger)
    assert not same(owner, other)


@pytest.mark.parametrize("how", [PLAIN, HEAVY])
def test_threads_move_no_bits(how: Any) -> None:
    """More elements than one thread's least share, so that the work is really shared out."""
    ledger, made = filled(), []
    for threads in (1, 2, 3):
        replica = Replica(torch.linspace(-1, 1, 150_000), how.rule, threads=threads)
        replica.go_to(5, ledger)
        made.append(toy.bits(replica.state()))
    assert made[0] == made[1] == made[2]


def test_a_secret_shifts_every_seed_once() -> None:
    ledger = filled()
    insider, outsider = replica_of(PLAIN, toy.SECRET), replica_of(PLAIN)
    by_hand = Replica(toy.initial(), PLAIN.rule)
    for seeds, scalars, lr in ledger.since(0).steps():
        by_hand.apply_steps([Step(insider.seeds(seeds), scalars, lr)])
    insider.go_to(5, ledger)
    outsider.go_to(5, ledger)
    assert toy.bits(insider.x) == toy.bits(by_hand.x) != toy.bits(outsider.x)
    assert (
        toy.bits(insider.twin().seeds(seeds)) == toy.bits(insider.seeds(seeds)) != toy.bits(seeds)
    )
    twin = insider.twin()
    for replica in (insider, twin):
        replica.apply_steps([Step([1], [2.0], 0.1)])
    assert same(insider, twin)


def test_a_steps_seed_stands_for_the_directions_that_follow_of_it() -> None:
    ledger = toy.ledger(PLAIN)
    for round, (width, first) in enumerate(
        ((2, 1 << 10), (3, 7 << 40), (1, (1 << 64) - (1 << 10))), 1
    ):
        seeds = np.repeat(np.array([first, first ^ 1 << 20], np.uint64), width)
        ledger.append(
            party=SHARED,
            read=round - 1,
            lr=0.1,
            step=np.repeat([0, 1], width),
            perturbation=np.tile(np.arange(width), 2),
            seed=seeds,
            scalar=np.linspace(-1, 2, 2 * width).astype(np.float32),
        )
    for secret in (None, toy.SECRET):
        replica, by_hand = toy.replica(PLAIN, secret), replica_of(PLAIN, secret)
        for seeds, scalars, lr in ledger.since(0).steps():
            by_hand.apply_steps([Step(toy.directions(int(seeds[0]), len(seeds)), scalars, lr)])
        replica.go_to(3, ledger)
        assert toy.bits(replica.x) == toy.bits(by_hand.x)
        literal = replica_of(PLAIN, secret)
        literal.go_to(3, ledger)
        assert toy.bits(replica.x) != toy.bits(literal.x)
    early = toy.replica(PLAIN)
    early.go_to(1, ledger)
    twin = early.twin()
    for one in (early, twin):
        one.go_to(3, ledger)
    assert same(early, twin)


def test_the_form_of_the_momentum_is_the_rules() -> None:
    """v <- βv + (1-β)g as in Eq. (8), not v <- βv + g: with one step they differ by the factor
    1-β.
    """
    x = torch.zeros(50)
    moved = []
    for damped in (True, False):
        replica = Replica(x.clone(), Rule("rademacher", 0.75, damped))
        replica.apply_steps([Step([9], [1.0], 1.0)])
        moved.append(replica.x)
    assert torch.equal(moved[0], moved[1] / 4)
    assert torch.equal(moved[1].abs(), torch.ones(50))
