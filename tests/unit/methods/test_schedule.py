import pytest

import scenarios
from raydpzv.errors import SpecError
from raydpzv.methods.schedule import Schedule, never_reached, schedule_of, scheduled, without_effect
from raydpzv.registry import METHODS


def test_a_change_holds_from_its_round_on():
    lr = Schedule(1.0, ((3, 2.0), (5, 0.5)))
    assert [lr.at(round) for round in range(1, 7)] == [1.0, 1.0, 2.0, 2.0, 0.5, 0.5]
    assert lr.times(4.0) == Schedule(4.0, ((3, 8.0), (5, 2.0)))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dpzv", ["server_lr", "lr"]),
        ("frozen", ["server_lr"]),
        ("decomfl", ["perturbations", "lr"]),
        ("fedavg", []),
    ],
)
def test_the_settings_that_may_change_are_those_with_changes_beside_them(name, settings):
    assert scheduled(METHODS[name].config()) == settings


def test_a_setting_without_changes_stays_and_one_with_them_changes():
    changes = ["method.lr=0.5", "method.lr_at=[[4, 0.25]]"]
    method = scenarios.load("digits_dpzv", changes).method
    assert schedule_of(method, "lr") == Schedule(0.5, ((4, 0.25),))
    assert schedule_of(method, "server_lr") == Schedule(method.server_lr)


@pytest.mark.parametrize("scenario", ["digits_dpzv", "digits_decomfl"])
@pytest.mark.parametrize("rounds", [(5, 4), (4, 4)])
def test_changes_out_of_order_are_refused(scenario, rounds):
    made = [[round, 0.1] for round in rounds]
    with pytest.raises(
        SpecError, match=r"method\.lr_at: wanted changes in ascending order, one for each"
    ):
        scenarios.load(scenario, [f"method.lr_at={made}"])


def test_changes_after_the_last_update_are_named_by_the_first_of_them():
    made = ["method.lr_at=[[40, 0.25], [41, 0.5], [50, 0.1]]", "method.server_lr_at=[[40, 0.1]]"]
    method = scenarios.load("digits_dpzv", made).method
    (said,) = never_reached(method, 40)
    assert said.startswith(
        "method.lr_at: what it changes from 41 on comes after the last of 40 (budget.updates)"
    )
    assert list(never_reached(method, 50)) == []


def test_a_head_that_takes_no_steps_has_no_step_size_in_effect():
    assert list(without_effect(scenarios.load("digits_dpzv", ["method.server=frozen"]).method)) == [
        "server_lr"
    ]
    assert list(without_effect(scenarios.load("digits_dpzv").method)) == []
    assert list(without_effect(scenarios.load("digits_decomfl").method)) == []
