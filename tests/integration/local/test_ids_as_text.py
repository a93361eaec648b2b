"""Users that are told apart in the file are told apart in the claim and in the sums."""

from pathlib import Path

import pytest

import raydpzv
from raydpzv.errors import DataError

IDS = {
    "short": [str(k) for k in range(8)],
    "20 digits": [str(89490200001000000000 + k) for k in range(8)],
    "zeros": ["0" * k + "7" for k in range(8)],
    "exponents": ["1E2", "100", "1E02", "0100", "1e2", "+100", "100.", "100.0"],
}


def scenario(path: Path, ids: list[str], *more: str):
    rows = [f"{ids[i % len(ids)]},{i // 100},{i % 7}.5,{i % 2}" for i in range(200)]
    path.write_text("\n".join(["id,silo,a,label", *rows]) + "\n")
    given = (
        "data.source=csv",
        f"data.file={path}",
        "data.target=label",
        "data.centre=0",
        "data.spread=1",
        "data.classes=[0, 1]",
        'users={how="column", silos="column", columns=["id", "silo"]}',
        "split.clients=2",
        "budget.updates=3",
        "evaluate.every=3",
    )
    return raydpzv.load("digits_users", [*given, *more])


@pytest.mark.parametrize("kind", IDS)
def test_eight_ids_are_eight_users(tmp_path: Path, kind: str) -> None:
    spec = scenario(tmp_path / "own.csv", IDS[kind])
    assert all("U=8 users in" in claim["scope"] for claim in raydpzv.privacy(spec).claims)
    run = raydpzv.run(spec)
    assert (run.summary["user_level"]["users"], run.summary["user_level"]["pairs"]) == (8, 16)


def test_names_that_look_alike_are_a_warning_of_the_run_and_of_the_check(tmp_path: Path) -> None:
    spec = scenario(tmp_path / "own.csv", ["a1", "A1", "b", "c"])
    said = 'column "id" of "own.csv" has "A1" in row 1 and "a1" in row 0'
    assert [w for w in raydpzv.run(spec).summary["warnings"] if said in w]
    assert any(said in line for line in raydpzv.check(spec).lines())


def test_a_silo_that_is_spelt_apart_is_another_silo(tmp_path: Path) -> None:
    spec = scenario(tmp_path / "own.csv", IDS["short"], "split.clients=3")
    text = spec_file(spec).read_text()
    spec_file(spec).write_text(text.replace(",1,", ",01,", 25))
    assert raydpzv.run(spec).summary["user_level"]["silos"] == 3


def test_a_class_that_is_spelt_apart_is_not_in_the_list(tmp_path: Path) -> None:
    spec = scenario(tmp_path / "own.csv", IDS["short"])
    text = spec_file(spec).read_text()
    spec_file(spec).write_text(text.replace(",1\n", ",01\n", 1))
    with pytest.raises(DataError, match=r'"01" in row 1 .* it has "1"'):
        raydpzv.run(spec)


def spec_file(spec) -> Path:
    return Path(spec.data.file)
