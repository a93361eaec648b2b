"""Nothing outside a kind of release's own file asks which kind a plan or an account is."""

from __future__ import annotations

import ast

from raydpzv.privacy.integers import IntegerReleasePlan
from raydpzv.privacy.mean import MeanReleasePlan
from raydpzv.privacy.memoized import MemoizedReleasePlan
from raydpzv.privacy.release import BatchReleasePlan, ReleaseAccount, ReleasePlan
from raydpzv.privacy.rows import RowReleasePlan
from raydpzv.privacy.users import UserReleasePlan
from tests.unit.methods.test_descriptor import ROOT, files, type_tests

KINDS = (MeanReleasePlan, RowReleasePlan, IntegerReleasePlan, MemoizedReleasePlan, UserReleasePlan)


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def owners() -> dict[str, str]:
    """Each plan's and account's class, with the module that declares it."""
    found = subclasses(ReleasePlan) | subclasses(ReleaseAccount)
    return {kind.__name__: kind.__module__ for kind in found if kind.__module__.startswith("raydpzv.")}


def asked(module: str, source: str) -> list[str]:
    """Names of plans and accounts of other modules that a source asks an object's type for."""
    known = owners()
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
        assert asked(module, path.read_text()) == [], f"{module}: give {ReleasePlan.__name__} a method"


def test_the_guard_sees_type_tests_tables_by_class_and_matches() -> None:
    for source in (
        "isinstance(plan, MeanReleasePlan | RowReleasePlan)",
        "isinstance(account, users.UserAccount)",
        "type(plan) is MemoizedReleasePlan",
        "{IntegerReleasePlan: 1}[type(plan)]",
        "match plan:\n    case UserReleasePlan():\n        pass",
    ):
        assert asked("raydpzv.report.tables", source), source
    assert asked("raydpzv.privacy.users", "isinstance(plan, UserReleasePlan)") == [], "its own file may"
