from types import SimpleNamespace

import numpy as np
import pytest

from raydpzv.audit.canaries import Canary, chosen
from raydpzv.data.table import Table
from raydpzv.errors import SpecError


def run(rows: int = 10, on: str = "mean", source: str = "csv", kind: str = "float32"):
    plan = SimpleNamespace(on=on)
    spec = SimpleNamespace(method=SimpleNamespace(name="dpzv"), data=SimpleNamespace(source=source))
    numbers = np.arange(rows)[::-1].copy()
    server = SimpleNamespace(y_train=np.zeros(rows, np.int64))
    return SimpleNamespace(
        numbers=numbers,
        privacy=SimpleNamespace(plan=plan),
        spec=spec,
        server=server,
        clients=[SimpleNamespace(x_train=np.zeros((rows, 2), kind))],
    )


def table(**more) -> Table:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    return Table("t", x, np.array([0, 1, 2, 2]), 3, **more)


@pytest.mark.parametrize(
    ("kind", "features", "label"), [("label", [9, 10, 11], 0), ("features", [-450, -500, -550], 2)]
)
def test_one_record_is_changed_and_no_other(kind, features, label):
    before = table()
    after = Canary(0, 3, kind).change(before)
    assert after.x[3].tolist() == features
    assert after.y[3] == label
    assert np.array_equal(after.x[:3], before.x[:3])
    assert np.array_equal(after.y[:3], before.y[:3])
    assert before.y.tolist() == [0, 1, 2, 2]
    assert Canary(0, 3, "absent").change(before) is before


def test_another_type_is_that_of_one_records_numbers():
    before = table()
    before.x[3] = [2, 2.25, -3]
    after = Canary(0, 3, "type").change(before)
    assert after.x[3].tolist() == [2.5, 2, -2.5]
    assert np.array_equal(after.x[:3], before.x[:3])
    levels = table(features=("a", "b", "c"), levels=(0, 20, 20))
    assert Canary(0, 3, "type").change(levels).x[3].tolist() == [9.5, 10, 11]


@pytest.mark.parametrize(
    ("source", "kind", "usual"),
    [
        ("csv", "float32", ["label", "features", "type", "new_label"]),
        ("digits", "float32", ["label", "features", "type", "label"]),
        ("tokens", "float32", ["label", "features", "new_label", "label"]),
        ("csv", "int64", ["label", "type", "new_label", "label"]),
    ],
)
def test_a_ledger_is_audited_by_tables_that_may_be_refused(source, kind, usual):
    found = chosen(run(source=source, kind=kind), "replace", count=4, refusable=True)
    assert [canary.kind for canary in found] == usual


def test_token_ids_and_categories_stay_what_they_are():
    tokens = Canary(0, 3, "features").change(table(vocabulary=20))
    assert tokens.x[3].tolist() == [10, 9, 8]
    levels = Canary(0, 0, "features").change(table(features=("a", "b", "c"), levels=(0, 2, 5)))
    assert levels.x[0].tolist() == [0, 0, 2]


def test_rows_are_drawn_once_and_kinds_taken_in_turn():
    found = chosen(run(), "replace", count=4)
    assert [c.kind for c in found] == ["label", "features", "label", "features"]
    assert len({c.row for c in found}) == 4
    assert all(c.number == 9 - c.row for c in found)
    assert found == chosen(run(), "replace", count=4)
    assert [c.row for c in chosen(run(), "labels", count=1, rows=[5, 5])] == [5, 5]
    assert {c.kind for c in chosen(run(), "add_remove", count=3)} == {"absent"}


@pytest.mark.parametrize(
    ("relation", "on", "asked", "said"),
    [
        ("replace", "ids", {"count": 1, "kinds": ["features"]}, "rows are ids"),
        ("replace", "mean", {"count": 11}, "--canaries: wanted 1..10"),
        (
            "replace",
            "mean",
            {"count": 1, "rows": [-1]},
            "--row: wanted a training row, 0..9, got -1",
        ),
        ("labels", "mean", {"count": 1, "kinds": ["features"]}, "is no neighbour"),
        ("replace", "embedding", {"count": 1, "kinds": ["absent"]}, "use label or features"),
    ],
)
def test_what_is_no_canary_is_refused(relation, on, asked, said):
    with pytest.raises(SpecError, match=said):
        chosen(run(on=on, kind="int64" if on == "ids" else "float32"), relation, **asked)
