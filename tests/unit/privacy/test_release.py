"""What a proof supposes of a run beside its noise: where it fails, no row holds, and the note says
what fails.
"""

import ast
import dataclasses

import pytest

import raydpzv
from raydpzv.experiment.privacy_setting import privacy_setting
from raydpzv.privacy.claims import Claim
from raydpzv.privacy.integers import IntegerReleasePlan
from raydpzv.privacy.mean import MeanReleasePlan
from raydpzv.privacy.memoized import MemoizedReleasePlan
from raydpzv.privacy.release import (
    BatchReleasePlan,
    ReleaseAccount,
    ReleasePlan,
    Spent,
    default_delta,
    verdict,
)
from raydpzv.privacy.rows import RowReleasePlan
from raydpzv.privacy.users import UserReleasePlan
from tests.helpers.public_data import PUBLIC
from tests.unit.methods.test_descriptor import ROOT, files, type_tests

MEAN = ("privacy={mode='paper', sigma=1.0, delta=1e-5, clip=1.0}",)
FROZEN = ("digits_dpzv", *MEAN, *PUBLIC, "method.server=frozen")
HIDDEN = ("digits_dpzv", *MEAN)
ZOO = ("zoo_vfl", *MEAN, *PUBLIC)
GRADIENT = ("vafl", *MEAN, "method.noise_on=gradient")


def setting(scenario: str, *changes: str) -> ReleasePlan:
    found = privacy_setting(raydpzv.load(scenario, changes), 1000).claims
    assert found is not None
    return found


@pytest.mark.parametrize("scenario", [FROZEN, HIDDEN, ZOO, GRADIENT])
def test_the_epsilon_of_one_update_is_no_bound_of_a_run_of_unknown_length(
    scenario: tuple[str, ...],
) -> None:
    planned = setting(*scenario)
    unplanned = setting(*scenario, "budget={seconds=60}")
    assert any(c.holds for c in planned.claims()), "control"
    assert not any(c.holds for c in unplanned.claims())
    held = [c for c in dataclasses.replace(unplanned, planned=True).claims() if c.holds]
    assert all(
        "ONE update" in c.note
        for c in unplanned.claims()
        if c.adversary in {h.adversary for h in held}
    )
    assert "ONE update" in verdict(unplanned).text
    made = unplanned.as_made(
        Spent(releases=6, counted=4, largest_batch=64, rows=384, uploads=6), done=True
    )
    assert any(c.holds for c in made.claims()), "what was counted is no plan"


def test_a_lost_account_is_bounded_by_a_plan_that_no_release_exceeds() -> None:
    planned, unplanned = setting(*FROZEN), setting(*FROZEN, "budget={seconds=60}")
    assert planned.as_made(None, done=True) is planned
    assert planned.as_made(None, done=True, beyond_plan=True) is None
    assert unplanned.as_made(None, done=True) is None


def test_a_delta_of_one_over_the_records_is_too_large() -> None:
    plan = setting(*FROZEN)
    assert "not below 1/D" in dataclasses.replace(plan, delta=1 / plan.protected).large_delta()
    assert dataclasses.replace(plan, delta=0.999 / plan.protected).large_delta() == ""


POISSON = (*FROZEN, "method.batches=poisson", "method.coins=system")


def external(found: ReleasePlan) -> Claim:
    return next(c for c in found.claims() if (c.adversary, c.relation) == ("external", "replace"))


def client(found: ReleasePlan) -> Claim:
    return next(c for c in found.claims() if (c.adversary, c.relation) == ("client", "replace"))


@pytest.mark.parametrize(
    "limit", ["budget.seconds=1e6", "budget.bytes=10000000", "budget.epsilon=9.0"]
)
def test_an_outsiders_epsilon_is_amplified_only_if_a_number_of_updates_ends_the_run(
    limit: str,
) -> None:
    alone, limited = setting(*POISSON), setting(*POISSON, limit)
    assert external(alone).epsilon < client(alone).epsilon, "control"
    assert external(limited).epsilon == client(limited).epsilon
    assert limit.split("=")[0] in external(limited).note
    assert external(limited).holds
    own = setting(*POISSON, "budget.epsilon=9.0", "budget.adversary=external")
    assert external(own).epsilon == external(alone).epsilon


def test_nor_is_it_if_the_run_broke_off() -> None:
    spent = Spent(releases=500, counted=40, largest_batch=90)
    whole, broken = (setting(*POISSON).as_made(spent, done=done) for done in (True, False))
    assert whole is not None
    assert broken is not None
    assert external(whole).epsilon < client(whole).epsilon, "control"
    assert external(broken).epsilon == client(broken).epsilon


@pytest.mark.parametrize("scenario", [FROZEN, ZOO])
@pytest.mark.parametrize(
    ("change", "said", "not_said"),
    [
        ("data.split=stratified", "drawn by class", "scaled by"),
        (
            'data={source="digits", scale="standard", split="plain"}',
            'data.scale = "standard"',
            "drawn by class",
        ),
        (
            'data={source="digits", scale="unit", split="plain"}',
            'data.scale = "unit"',
            "drawn by class",
        ),
    ],
)
def test_no_row_holds_where_scaling_or_split_look_at_records(
    scenario, change, said, not_said
) -> None:
    looked = setting(*scenario, change)
    held = {c.adversary for c in setting(*scenario).claims() if c.holds}
    assert held, "control"
    assert not any(c.holds for c in looked.claims())
    assert all(
        said in c.note and not_said not in c.note for c in looked.claims() if c.adversary in held
    )
    assert not verdict(looked).private
    assert said in verdict(looked).text
    assert not_said not in verdict(looked).text


def test_the_range_of_releases_bounds_any_two_tables_however_they_were_scaled() -> None:
    for scenario in (HIDDEN, GRADIENT):
        assert setting(*scenario).claims() == setting(*scenario, *PUBLIC).claims()


def test_nor_if_the_seed_tells_the_batches() -> None:
    seeded = setting(*POISSON, "method.coins=seed")
    assert external(seeded).epsilon == client(seeded).epsilon > external(setting(*POISSON)).epsilon
    assert "seed" in external(seeded).note


@pytest.mark.parametrize("rows", [1, 1437, 60_000])
def test_the_default_delta_lets_no_record_be_published_whole(rows: int) -> None:
    assert default_delta(rows) * rows == pytest.approx(0.1)


# Nothing outside a kind of release's own file asks which kind a plan or an account is.

KINDS = (MeanReleasePlan, RowReleasePlan, IntegerReleasePlan, MemoizedReleasePlan, UserReleasePlan)


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def owners() -> dict[str, str]:
    """Each plan's and account's class, with the module that declares it."""
    found = subclasses(ReleasePlan) | subclasses(ReleaseAccount)
    return {
        kind.__name__: kind.__module__ for kind in found if kind.__module__.startswith("raydpzv.")
    }


def asked(module: str, source: str) -> list[str]:
    """Names of plans and accounts of other modules that a source asks an object's type for."""
    known = owners()
    if not any(name in source for name in known):  # parsing all files takes seconds
        return []
    tree = ast.parse(source)
    looked_up = [
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.Dict)
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    ]
    return [name for name in (*type_tests(tree), *looked_up) if known.get(name, module) != module]


def test_nobody_asks_which_kind_of_release_it_is() -> None:
    assert set(KINDS) | {BatchReleasePlan} <= subclasses(ReleasePlan)
    for path in files():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert asked(module, path.read_text()) == [], (
            f"{module}: give {ReleasePlan.__name__} a method"
        )


def test_the_guard_sees_type_tests_tables_by_class_and_matches() -> None:
    for source in (
        "isinstance(plan, MeanReleasePlan | RowReleasePlan)",
        "isinstance(account, users.UserAccount)",
        "type(plan) is MemoizedReleasePlan",
        "{IntegerReleasePlan: 1}[type(plan)]",
        "match plan:\n    case UserReleasePlan():\n        pass",
    ):
        assert asked("raydpzv.report.tables", source), source
    assert asked("raydpzv.privacy.users", "isinstance(plan, UserReleasePlan)") == [], (
        "its own file may"
    )
