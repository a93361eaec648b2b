"""ε of a whole search, against accounts that were not derived from it."""

import math

import pytest

from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.mean import participation_epsilon
from raydpzv.search.composition import SearchClaims, compose, sentences

UNIT = "so many releases; unit: one record"


def claim(
    epsilon,
    *,
    delta=1e-3,
    adversary="client",
    relation="replace",
    accountant="closed form (GDP)",
    **more,
):
    terms = {
        "adversary": adversary,
        "relation": relation,
        "accountant": accountant,
        "holds": True,
        "scope": UNIT,
    }
    return {**terms, "epsilon": epsilon, "delta": delta, **more}


def spent(*epsilons, **how):
    runs = {f"trial {i}": [e if isinstance(e, dict) else claim(e)] for i, e in enumerate(epsilons)}
    given = {"same_data": True, "cut": False, "planned": runs} | how
    (found,) = compose(SearchClaims(runs["trial 0"], runs, **given))
    return found


def test_trials_that_share_out_the_releases_of_one_run_spend_what_it_spends():
    def gaussian(n):
        return participation_epsilon(participations=n, sensitivity=0.2, sigma=1.7, delta=1e-5)

    parts = [claim(gaussian(n), delta=1e-5) for n in (40, 25, 10, 5)]
    assert spent(*parts).spent == pytest.approx(gaussian(80), rel=1e-9)
    assert spent(*parts).spent < sum(p["epsilon"] for p in parts)
    assert spent(parts[0]).spent == pytest.approx(parts[0]["epsilon"], rel=1e-9)


def test_other_noise_and_other_deltas_compose_as_the_loss_distributions_do():
    """dp-accounting composes the two mechanisms itself, from their noise multipliers."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    for z in (2.0, 5.0):
        accountant.compose(dp_accounting.GaussianDpEvent(z))
    parts = [
        claim(epsilon_of(1 / 2.0, 1e-4), delta=1e-4),
        claim(epsilon_of(1 / 5.0, 1e-6), delta=1e-6),
    ]
    found = spent(*parts)
    assert found.delta == 1e-6
    assert found.spent == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-3)


def test_what_was_cut_short_is_claimed_by_its_plan():
    whole = {"trial 0": [claim(1.0)], "trial 1": [claim(1.0)], "trial 2": [claim(1.0)]}
    made = whole | {"trial 1": [claim(0.3)]}
    del made["trial 2"]
    found = {
        cut: compose(SearchClaims(whole["trial 0"], made, whole, True, cut))[0]
        for cut in (True, False)
    }
    assert found[True].spent == found[False].spent < found[True].planned
    assert found[True].claimed == found[True].planned
    assert found[False].claimed == found[False].spent
    assert f"ε={found[True].planned:.4g} of all that were planned" in found[True].sentence()
    assert "planned" not in found[False].sentence()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (claim(math.inf), "trial 1 has no proved ε"),
        (claim(1.0, holds=False), "trial 1 has no proved ε"),
        (claim(1.0, adversary="server"), "trial 1 has no proved ε against client"),
        (claim(1.0, relation="add_remove"), "trial 1 has no proved ε"),
        (claim(1.0, accountant="PLD (dp-accounting), Poisson sampling"), "the accountant is PLD"),
        (claim(1.0, scope="x; unit: one record's features at one client"), "protects another unit"),
    ],
)
def test_no_number_where_none_is_justified(other, said):
    found = spent(1.0, other)
    assert math.isnan(found.spent)
    assert math.isnan(found.planned)
    assert said in found.missing
    assert "nothing may be claimed" in found.sentence()
    assert not spent(1.0, claim(1.0)).missing


def test_no_number_for_trials_on_other_data():
    assert "not on the same data" in spent(1.0, 1.0, same_data=False).sentence()


def test_claims_that_do_not_hold_and_the_papers_are_not_composed():
    runs = {
        "trial 0": [
            claim(1.0, adversary="paper"),
            claim(1.0, holds=False),
            claim(2.0, relation="add_remove"),
        ]
    }
    (found,) = compose(SearchClaims(runs["trial 0"], runs, runs, same_data=True, cut=False))
    assert (found.relation, found.spent) == ("add_remove", pytest.approx(2.0))


def test_noise_that_results_chose_has_no_epsilon_of_the_whole_search():
    """The control: settings that move no ε may be chosen by results."""
    found = spent(1.0, 2.0, adaptive=True)
    assert math.isnan(found.spent)
    assert "were chosen by the results of earlier trials" in found.sentence()
    assert spent(1.0, 1.0, adaptive=True).spent == spent(1.0, 1.0).spent
    assert spent(1.0, 2.0).missing == ""


def unchosen(made, **how):
    runs = {f"trial {i}": claims for i, claims in enumerate(made)}
    return compose(
        SearchClaims(None, runs, **{"planned": runs, "same_data": True, "cut": False} | how)
    )


def test_without_a_winner_all_that_any_trial_released_is_composed():
    """What a winner among the same trials makes of the search; a trial that claims nothing has no
    number.
    """
    (found,) = unchosen([[claim(1.0)], [claim(2.0)]])
    assert found.spent == spent(1.0, 2.0).spent
    assert math.isnan(found.winner)
    assert "winner alone" not in found.sentence()
    assert found.sentence().endswith("and that is the number to claim of all trials together.")
    (cut,) = unchosen(
        [[claim(1.0)]], planned={"trial 0": [claim(1.0)], "trial 1": [claim(2.0)]}, cut=True
    )
    assert (cut.spent, cut.claimed) == (pytest.approx(1.0), pytest.approx(found.spent))
    assert f"ε={found.spent:.4g} of all that were planned" in cut.sentence()
    assert (
        "since results may have decided when trials ended, the plan's is the number to claim"
        in cut.sentence()
    )
    (missing,) = unchosen([[], [claim(2.0)]])
    assert missing.sentence() == (
        "Against client no ε is justified of what the search released: "
        "trial 0 has no proved ε against client (replace)."
    )
    (unlike,) = unchosen([[claim(1.0)], [claim(1.0, scope="x; unit: one user")]])
    assert "trial 1 protects another unit (one user, trial 0 one record)" in unlike.sentence()
    paper = claim(1.0, adversary="paper")
    both = unchosen([[paper, claim(1.0), claim(1.0, relation="add_remove")]] * 2)
    assert [one.relation for one in both] == ["replace", "add_remove"]
    assert unchosen([]) == []


def composed(adversary, *epsilons, **how):
    return spent(*(claim(e, adversary=adversary) for e in epsilons), **how)


def test_what_may_be_claimed_is_said_once_whomever_it_is_against():
    alike = [composed(name, 1.0, 2.0) for name in ("external", "client", "all_clients")]
    verdict, figures, reason = sentences(alike)
    assert verdict.startswith("The search as a whole: PRIVATE. ε = ")
    assert (
        "is proved against all clients together and anyone who sees the final model: an attacker"
        in verdict
    )
    assert figures.startswith(
        "Against external, client and all_clients the winner alone spent ε=1, the whole"
    )
    assert f"{figures} {reason}" == alike[0].sentence().replace(
        "external", "external, client and all_clients"
    )
    other = composed("server", 3.0, 2.0)
    _, first, second, once = sentences([alike[0], alike[1], other])
    assert (first, second) == (
        figures.replace(", client and all_clients", " and client"),
        other.figures(),
    )
    assert once == reason
    assert sentences([]) == []


def test_why_nothing_may_be_claimed_is_said_once_too():
    alike = [composed(name, 1.0, 2.0, same_data=False) for name in ("external", "client")]
    verdict, said = sentences(alike)
    assert verdict == "The search as a whole: NOT PRIVATE: no ε is proved."
    assert said.startswith("Against external and client nothing may be claimed of the winner")
    missing, proved = composed("client", 1.0, 2.0, same_data=False), composed("server", 1.0, 2.0)
    assert sentences([missing, proved])[1:] == [
        proved.figures(),
        proved.reason(),
        missing.sentence(),
    ]
