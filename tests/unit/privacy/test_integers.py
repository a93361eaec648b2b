import dataclasses
import math
from typing import Any

import pytest

from raydpzv.privacy.claims import Claim
from raydpzv.privacy.integers import IntegerReleasePlan, solve
from raydpzv.privacy.release import Spent, default_delta, verdict


def setting(**changes: Any) -> IntegerReleasePlan:
    shared = {
        "rows": 1000,
        "batch": 100,
        "delta": default_delta(1000),
        "clip": 0.5,
        "perturbations": 4,
    }
    shared |= {"updates": 40, "noise_multiplier": 1.0}
    return solve(IntegerReleasePlan(**{**shared, **changes}), epsilon=1.0, updates=40)


def table(found: IntegerReleasePlan) -> dict[str, Claim]:
    claims = [c for c in found.table() if c.relation == found.relation]
    assert [c.adversary for c in claims] == ["external", "client", "all_clients", "server"]
    return {c.adversary: c for c in claims}


POISSON = {"batches": "poisson"}


@pytest.mark.parametrize("relation", ["replace", "labels", "add_remove"])
@pytest.mark.parametrize("batches", ["shuffle", "poisson"])
def test_every_row_says_all_that_gives_an_epsilon_its_meaning(relation: str, batches: str) -> None:
    found = setting(relation=relation, batches=batches)
    rows = table(found)
    for who in ("external", "client", "all_clients"):
        row = rows[who]
        assert row.holds
        assert (row.relation, row.delta) == (relation, 1e-4)
        assert "rounded Gaussian" in row.mechanism
        assert f"{found.noise_multiplier:.4g}" in row.mechanism
        assert row.sensitivity == pytest.approx(
            (1 if relation == "add_remove" else 2) * 0.5 * 2 / 100
        )
        assert row.note
        assert row.scope
    assert rows["client"].epsilon == rows["all_clients"].epsilon == pytest.approx(1.0)
    assert rows["client"].accountant == rows["all_clients"].accountant == "closed form (GDP)"
    assert rows["external"].accountant.startswith("PLD" if batches == "poisson" else "closed form")


def test_beside_adding_and_removing_a_record_is_what_replacing_it_costs() -> None:
    both, alone = setting(relation="add_remove"), setting(relation="replace")
    costs = {c.adversary: c.epsilon for c in both.table() if c.relation == "replace"}
    assert set(costs) == {"external", "client", "all_clients"}
    twice = dataclasses.replace(both, relation="replace")
    assert set(costs.values()) == {twice.clients_epsilon()}
    assert twice.clients_epsilon() > 2
    assert {c.relation for c in alone.table()} == {"replace"}
    said = verdict(both).headline()
    assert "ε = 1 (δ = 0.0001, add or remove one record) is proved" in said
    assert f"Replace one record: ε = {twice.clients_epsilon():.4g}, " in said


def test_nothing_is_proved_against_the_server() -> None:
    server = table(setting())["server"]
    assert server.epsilon == math.inf
    assert not server.holds
    assert (server.mechanism, server.accountant) == ("none", "none")


def test_an_outsiders_row_is_amplified_or_names_the_premise_that_fails() -> None:
    amplified, shuffled = setting(**POISSON), setting()
    exposed = setting(**POISSON, exposed="their coins come from the run's seed")
    assert table(amplified)["external"].epsilon == amplified.external_epsilon() < 0.6
    assert "stay with the operator" in table(amplified)["external"].note
    for broken, said in ((shuffled, '"shuffle"'), (exposed, "coins come from the run's seed")):
        row = table(broken)["external"]
        assert row.epsilon == broken.clients_epsilon() == pytest.approx(1.0)
        assert said in row.note


def test_a_finished_run_states_what_was_counted() -> None:
    planned = setting(**POISSON)
    done = planned.counted_as(Spent(releases=40, counted=10))
    assert "bounded by the plan" in table(planned)["client"].note
    assert "at most 10, as counted" in table(done)["client"].note
    assert table(done)["client"].epsilon < 0.6 * table(planned)["client"].epsilon
    assert table(done)["external"].epsilon == table(planned)["external"].epsilon


def test_a_run_that_broke_off_is_amplified_no_more() -> None:
    """When it broke off may hang on what its batches held; the setting may name an outsider all the
    same.
    """
    planned = setting(**POISSON, adversary="external")
    broken = planned.as_made(Spent(releases=30, counted=9), done=False)
    assert table(broken)["external"].epsilon == broken.clients_epsilon()
    assert table(planned)["external"].epsilon < planned.clients_epsilon(), "control"


def test_a_trained_heads_noise_is_named() -> None:
    rows = table(setting(server="dp_sgd", head_share=0.2))
    assert "z_0" in rows["client"].mechanism
    assert rows["client"].epsilon == pytest.approx(1.0)
    assert "z_0" not in table(setting())["client"].mechanism
    assert "floating-point" in verdict(setting(server="dp_sgd", head_share=0.2)).text


def test_the_verdict_is_a_yes_with_its_terms() -> None:
    found = verdict(setting())
    assert found.private
    assert found.text.startswith(
        "PRIVATE. ε = 1 (δ = 0.0001, replace one record) is proved against all clients"
    )
    assert "hyper-parameter search" in found.text
    assert "1/D" not in found.text
    assert "1/D" in verdict(setting(delta=1e-2, permit_large_delta=True)).text
    assert "change the label of one record" in verdict(setting(relation="labels")).text
