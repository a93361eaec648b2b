from typing import Any

import pytest

from raydpzv.report.page import labels


def runs(*triples: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [dict(zip(("method", "scenario", "seed"), t, strict=True)) for t in triples]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (("dpzv", "a", 1), ("vafl", "a", 2), ["dpzv", "vafl"]),
        (("dpzv", "a", 1), ("dpzv", "a", 2), ["dpzv, seed 1", "dpzv, seed 2"]),
        (("dpzv", "a", 1), ("dpzv", "b", 1), ["dpzv, a", "dpzv, b"]),
        (("frozen", "frozen", 1), ("frozen", "b", 1), ["frozen", "frozen, b"]),
        (("dpzv", "a", 1), ("dpzv", "a", 1), ["dpzv, run 1", "dpzv, run 2"]),
    ],
)
def test_labels_say_what_differs(
    first: tuple[str, str, int], second: tuple[str, str, int], said: list[str]
) -> None:
    assert labels(runs(first, second)) == said


def test_only_runs_of_the_same_method_need_more_than_its_name() -> None:
    mixed = runs(("decomfl", "a", 1), ("decomfl", "a", 2), ("fedavg", "b", 3))
    assert labels(mixed) == ["decomfl, seed 1", "decomfl, seed 2", "fedavg"]


def test_settings_tell_runs_of_one_scenario_apart() -> None:
    same = runs(*[("decomfl", "a", 0)] * 3, ("fedavg", "a", 0))
    trees = [
        {
            "method": {"name": "decomfl", "perturbations": p, "asynchronous": a},
            "clock": {"compute": c},
        }
        for p, a, c in ((10, False, 0.0), (25, False, 0.0), (25, True, 0.2))
    ]
    trees.append({"method": {"name": "fedavg"}, "clock": {"compute": 9.0}})
    assert labels(same, trees) == [
        "decomfl, perturbations=10, asynchronous=false",
        "decomfl, perturbations=25, asynchronous=false",
        "decomfl, perturbations=25, asynchronous=true",
        "fedavg",
    ]


def test_settings_beside_the_methods_are_named_where_it_takes_them() -> None:
    same = runs(("decomfl", "a", 0), ("decomfl", "a", 0))
    trees = [
        {"name": n, "title": n, "split": {"how": h}, "method": {"lr": 0.1}}
        for n, h in (("x", "iid"), ("y", "z"))
    ]
    assert labels(same, trees) == ["decomfl, how=iid", "decomfl, how=z"]


def test_many_differences_and_none_are_numbered() -> None:
    same = runs(("decomfl", "a", 0), ("decomfl", "a", 0))
    many = [{"method": dict.fromkeys("abcd", value)} for value in (1, 2)]
    assert labels(same, many) == labels(same, [{}, {}]) == ["decomfl, run 1", "decomfl, run 2"]
