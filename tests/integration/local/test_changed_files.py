"""A table that is written again in one process: every claim is of the rows that it has now."""

import os
from pathlib import Path
from typing import Any

import pytest

import raydpzv
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import run_local
from raydpzv.keys import Key

RECORDS = (
    "data.source=csv",
    "data.file=own.csv",
    "data.target=label",
    "data.classes=[0, 1]",
    "data.centre=0",
    "data.spread=1",
    "split.how=columns",
    "split.clients=2",
    "model.embedding=2",
    "budget.updates=8",
    "method.batch=8",
    "method.batches=poisson",
    "method.coins=system",
    "method.perturbations=1",
    "evaluate.every=8",
    'privacy.adversary="external"',
    "privacy.epsilon=none",
    "privacy.noise_multiplier=2",
    "privacy.delta=1e-5",
)
OPEN = ("method.batches=shuffle", "method.coins=seed", "privacy.adversary=client")
USERS = (
    "data.source=csv",
    "data.file=own.csv",
    "data.target=label",
    "data.classes=[0, 1]",
    "data.centre=0",
    "data.spread=1",
    'users={how="column", silos="column", columns=["id", "silo"]}',
    "split.clients=2",
    "budget.updates=3",
    "evaluate.every=3",
)


def write_table(path: Path, rows: int, users: int = 8) -> None:
    draws = (Key(5) / "table").generator()
    cells = draws.random((rows, 2))
    lines = [
        f"{row % users:03d},{row // users % 2},{a:.4f},{b:.4f},{row % 2}"
        for row, (a, b) in enumerate(cells)
    ]
    path.write_text("\n".join(["id,silo,a,b,label", *lines]) + "\n")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own.csv"


def records(*more: str) -> Any:
    return raydpzv.load("digits_private", [*RECORDS, "split.columns=[['a'], ['b']]", *more])


def users(*more: str) -> Any:
    return raydpzv.load("digits_users", [*USERS, *more])


def epsilon(found: Any) -> float:
    return float(found.claims[0]["epsilon"])


def test_privacy_of_records_is_that_of_the_rows_there_are(table: Path) -> None:
    write_table(table, 4000)
    spec = records()
    before = epsilon(raydpzv.privacy(spec))
    assert epsilon(raydpzv.privacy(spec)) == before
    write_table(table, 100)
    after = epsilon(raydpzv.privacy(spec))
    assert after == raydpzv.run(spec).summary["epsilon"][0]["epsilon"] > 10 * before


def test_privacy_of_users_is_that_of_the_users_there_are(table: Path) -> None:
    write_table(table, 200, users=20)
    spec = users()
    assert raydpzv.privacy(spec).plan.users == 20  # type: ignore[union-attr]
    size, times = table.stat().st_size, table.stat().st_mtime_ns
    write_table(table, 200, users=8)
    os.utime(table, ns=(times, times))
    assert (table.stat().st_size, table.stat().st_mtime_ns) == (size, times)
    assert raydpzv.privacy(spec).plan.users == 8  # type: ignore[union-attr]
    assert raydpzv.run(spec).summary["user_level"]["users"] == 8


def test_the_largest_record_count_follows_the_table(table: Path) -> None:
    write_table(table, 200, users=20)
    spec = users("method={name='uldp_group', group='max'}")
    before = raydpzv.privacy(spec).plan.group  # type: ignore[union-attr]
    write_table(table, 200, users=4)
    after = raydpzv.privacy(spec).plan.group  # type: ignore[union-attr]
    assert after > 2 * before


def test_a_search_starts_no_trial_that_its_limit_forbids_now(table: Path) -> None:
    write_table(table, 4000)
    spec, space = records(), {"method.lr": {"grid": [0.1]}}
    limit = 2 * epsilon(raydpzv.privacy(spec))
    write_table(table, 100)
    with pytest.raises(SpecError, match="--epsilon"):
        raydpzv.tune(spec, space, "forbidden", epsilon=limit)
    write_table(table, 4000)
    found = raydpzv.tune(spec, space, "allowed", epsilon=limit)
    assert found.table.column("epsilon").to_pylist()[0] <= limit, "a control: it would have started"


def test_check_and_audit_look_at_the_table_of_now(table: Path) -> None:
    write_table(table, 400)
    spec = records(*OPEN)
    assert raydpzv.check(spec).remarks == ()
    folder = table.parent / "run"
    run = raydpzv.run(spec, out=folder)
    write_table(table, 100)
    after = raydpzv.run(spec).summary["epsilon"][0]["epsilon"]
    assert after == epsilon(raydpzv.privacy(spec)) != run.summary["epsilon"][0]["epsilon"]
    with pytest.raises(InputError, match="the data"):
        raydpzv.audit(folder)
    table.write_text(table.read_text().replace(",1\n", ",2\n", 1))
    with pytest.raises(DataError, match='"2" in row'):
        raydpzv.check(spec)


def test_a_comparison_is_of_one_table(table: Path) -> None:
    write_table(table, 400)
    spec = records(*OPEN)
    asked: dict[str, Any] = {"seeds": 1, "epsilons": [3.0]}
    first = raydpzv.compare([spec], "first", **asked)
    write_table(table, 40)
    second = raydpzv.compare([spec], "second", **asked)
    noise = [set(found.claims.column("mechanism").to_pylist()) for found in (first, second)]
    assert noise[0] != noise[1], "calibrated to the rows there are"
    for seeds in (1, 2):
        with pytest.raises(InputError, match="its data have changed since"):
            raydpzv.compare([spec], "first", **asked | {"seeds": seeds})


def test_a_run_resumes_with_the_data_of_its_start_alone(table: Path) -> None:
    write_table(table, 400)
    spec, folder = records(*OPEN), table.parent / "cut"
    run_local(prepare(spec), RunOptions(folder, until=4))
    before, times = table.read_bytes(), table.stat().st_mtime_ns
    table.write_bytes(before.replace(b",1\n", b",0\n", 1))
    os.utime(table, ns=(times, times))
    with pytest.raises(InputError, match="the data"):
        raydpzv.resume(folder)
    table.write_bytes(before)
    assert raydpzv.resume(folder).summary["updates"] == 8
