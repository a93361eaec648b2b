import itertools
import math
from typing import Any

import pytest

from raydpzv.privacy.release import verdict
from raydpzv.privacy.user_mechanism import user_epsilon
from raydpzv.privacy.users import OpenSums, UserReleasePlan
from raydpzv.secure.attempts import Attempt


def setting(**changed: Any) -> UserReleasePlan:
    usual: dict[str, Any] = {"users": 100, "silos": 5, "releases": 20, "clip": 0.1, "delta": 1e-5}
    return UserReleasePlan(**usual | {"multiplier": 5.0, "weights": "records"} | changed)


GROUP = {"kind": "group", "weights": "uniform", "group": 12, "rate": 0.05, "steps": 20}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [{}, {"sampling": 0.3}, {"kind": "naive", "weights": "uniform"}, GROUP]
)
def test_every_adversary_has_a_row_under_both_relations(changed: dict[str, Any]) -> None:
    given = setting(**changed)
    rows = given.claims()
    assert [(r.adversary, r.relation) for r in rows] == [
        ("paper", "add_remove"),
        *(
            (who, how)
            for who in ("external", "client", "server")
            for how in ("add_remove", "replace")
        ),
    ]
    for row in rows[1:]:
        assert row.epsilon == user_epsilon(given, row.adversary, row.relation)
        assert row.holds
    for row in rows:
        known = given.counts_shared and row.adversary in ("client", "server")
        assert row.scope.endswith("unit: one user" + (", its record counts known" if known else ""))
        assert row.mechanism.startswith("discrete Gaussian")
        assert row.accountant != "none"
        assert row.note


def note(given: UserReleasePlan, adversary: str) -> str:
    return next(r.note for r in given.claims() if r.adversary == adversary)


def test_a_note_says_what_its_adversary_sees() -> None:
    seen = {
        "external": "every released sum",
        "client": "its own sum and its share",
        "server": "every silo's own sum",
    }
    for adversary, words in seen.items():
        assert words in note(setting(), adversary)
    assert "Sees the sum alone" in note(setting(weights="uniform", aggregation="masked"), "server")
    assert "no other silo" in note(setting(silos=1), "client")
    assert "alone" in note(setting(weights="uniform", asynchronous=True), "client")


def test_the_papers_numbers_are_true_where_they_are_no_smaller() -> None:
    assert setting().claims()[0].holds
    naive = setting(kind="naive", weights="uniform").claims()[0]
    assert not naive.holds
    assert naive.epsilon == pytest.approx(setting(weights="uniform").claims()[0].epsilon)
    assert "up to 2C·S" in naive.note
    assert not any(
        r.adversary == "paper" for r in setting(weights="uniform", asynchronous=True).claims()
    )


def test_a_lost_segment_may_have_had_a_release_of_each_silo_under_way_where_silos_do_not_wait() -> (
    None
):
    assert setting().under_way == 1, "a round"
    alone = setting(weights="uniform", asynchronous=True)
    assert alone.under_way == alone.silos > 1


def test_a_group_size_that_is_read_off_the_data_proves_nothing() -> None:
    for rule in ("max", "median"):
        given = setting(**GROUP | {"rate": 1.0, "group_rule": rule})
        assert not any(row.holds for row in given.claims())
        reason = f"k = 12 is the {rule} of users' record counts, read off the data (method.group)"
        assert reason in note(given, "external")
        assert verdict(given).text.startswith(f"NOT PRIVATE: {reason}; give a public number.")
    control = setting(**GROUP | {"rate": 1.0}).claims()
    assert all(row.holds for row in control if row.adversary != "paper")


@pytest.mark.slow
def test_groups_say_where_the_lemmas_orders_do_not_hold() -> None:
    figure_2 = GROUP | {"rate": 0.01, "steps": 5000}
    assert "where the lemma does not hold" in note(setting(**figure_2 | {"group": 32}), "paper")
    assert "does not hold" not in note(setting(**figure_2 | {"group": 8}), "paper")
    assert "no power of 2" in note(setting(**GROUP), "paper")


def test_groups_say_what_a_record_has() -> None:
    record = user_epsilon(setting(**GROUP | {"group": 1}))
    assert f"For one record (k = 1) ε is {record:.4g}" in note(setting(**GROUP), "external")


def test_known_counts_and_coins_are_said() -> None:
    assert "known to the coordinator" in note(setting(), "external")
    assert "known to the coordinator" not in note(
        setting(aggregation="private_weights"), "external"
    )
    assert "it draws the users' coins" in note(setting(sampling=0.3), "server")
    assert "silos know who is drawn" in note(setting(sampling=0.3), "client")
    private = setting(sampling=0.3, aggregation="private_weights")
    assert "silos' processes hold the coins' key" in note(private, "client")
    assert "at most 7 rounds, as counted" in note(setting(sampling=0.3, counted=7), "client")
    assert "stay secret" in note(setting(sampling=0.3), "external")


def test_the_verdict_states_every_adversary() -> None:
    given = setting(target=3.0, releases=100)
    found = verdict(given)
    assert found.private
    assert found.lead == "PRIVATE against anyone who sees the released models alone."
    assert (
        f"ε = {user_epsilon(given):.4g} (δ = 1e-05, add or remove one user) is proved"
        in found.bounds
    )
    assert "Replace one user: no useful ε is proved." in found.bounds
    assert "Against one silo and the server no useful ε is proved." in found.bounds
    assert verdict(setting()).lead == "PRIVATE."
    assert "not the target ε = 3" in found.text
    assert "1/U" not in found.text
    assert "not below 1/U" in verdict(setting(delta=0.02)).text


def test_seeded_noise_proves_nothing() -> None:
    rows = setting(noise="seeded").claims()
    assert all(r.epsilon == math.inf and not r.holds and "seed" in r.note for r in rows)
    assert not verdict(setting(noise="seeded")).private


@pytest.mark.parametrize("changed", [{"fitted": ("features are scaled",)}, {"planned": False}])
def test_what_the_proof_supposes_is_looked_at(changed: dict[str, Any]) -> None:
    given = setting(**changed)
    assert not any(r.holds for r in given.claims())
    assert not verdict(given).private
    assert verdict(given).text.startswith("NOT PRIVATE")


# How many sums of a round are open: one for each attempt whose uploads have all come, and the
# newest.

FIRST = Attempt(1, 0, (0, 1, 2))


def counted(sums: OpenSums, *uploads: tuple[int, Attempt]) -> list[bool]:
    """Which of these uploads makes for a release more; asking before moves nothing."""
    found = []
    for silo, attempt in uploads:
        asked = sums.more(silo, attempt), sums.more(silo, attempt)
        found.append(sums.add(silo, attempt))
        assert asked == (found[-1], found[-1])
    return found


def test_a_round_is_one_release_whoever_takes_part() -> None:
    sums = OpenSums(hidden=True)
    assert counted(sums, (0, FIRST), (2, FIRST), (1, FIRST)) == [True, False, False]
    assert counted(sums, (1, Attempt(2, 0, (1, 2))), (2, Attempt(2, 0, (1, 2)))) == [True, False]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_late_upload_opens_a_second_sum_whenever_it_comes(late: int) -> None:
    second = FIRST.again([1], least=2)
    sums = OpenSums(hidden=True)
    assert counted(sums, (0, FIRST), (2, FIRST)) == [True, False]
    uploads = [(0, second), (2, second)]
    uploads.insert(late, (1, FIRST))
    assert sum(counted(sums, *uploads)) == 1
    assert not any(counted(OpenSums(hidden=True), (0, FIRST), (2, FIRST), *uploads[:late])[1:])


def test_what_lacks_one_of_its_uploads_is_not_charged() -> None:
    third = FIRST.again([1], least=2).again([], least=2)
    sums = OpenSums(hidden=True)
    assert counted(sums, (0, FIRST), (1, FIRST), (0, third), (2, third)) == [
        True,
        False,
        False,
        False,
    ]


def test_an_attempt_that_is_begun_anew_with_new_keys_opens_one_sum_in_whatever_order() -> None:
    for before, after in itertools.product(
        itertools.permutations((0, 1)), itertools.permutations((0, 1, 2))
    ):
        uploads = [(silo, FIRST) for silo in (*before, *after)]
        assert sum(counted(OpenSums(hidden=True), *uploads)) == 1
        # in the open whoever looks has two sums of a silo
        assert sum(counted(OpenSums(hidden=False), *uploads)) > 1
