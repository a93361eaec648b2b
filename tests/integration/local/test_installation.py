import inspect
import tomllib
from pathlib import Path

import pytest

import raydpzv
from raydpzv.compare.compare_methods import compare
from tests.helpers.programs import python_said

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WITHOUT = """
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
import raydpzv

small = ["data.train_rows=100", "data.test_rows=30", "budget.updates=2"]
for name in ("digits_dpzv", "digits_users"):
    assert raydpzv.run(raydpzv.load(name, small)).summary["updates"] == 2
assert not {name.partition(".")[0] for name in sys.modules} & set(sys.argv[1].split(","))
try:
    raydpzv.run(raydpzv.load("digits_users", [*small, "method.aggregation=masked"]), sys.argv[2])
except raydpzv.errors.InputError as error:
    print(error)
try:
    raydpzv.run(raydpzv.load("digits_dpzv", small), sys.argv[2], runner="ray")
except raydpzv.errors.InputError as error:
    print(error)
"""
"""Run both kinds of learning without the libraries named; then what needs them."""


def test_runs_need_neither_ray_nor_extras_and_messages_say_so(tmp_path: Path) -> None:
    hidden = "ray,gmpy2,cryptography,pandas,tensorboardX,optuna,mlxtend,yaml"
    assert python_said("-c", WITHOUT, hidden, str(tmp_path / "run")).splitlines() == [
        "cryptography is not installed: pip install 'raydpzv[secure]'",
        "Ray is not installed: pip install 'raydpzv[ray]', or use --runner local",
    ]
    assert not (tmp_path / "run").exists()


def test_ray_is_a_plain_dependency_and_the_extras_keep_their_names() -> None:
    plain, extras = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]
    assert any(line.startswith("ray[default,tune]") for line in plain)
    assert {"ray", "tune", "tensorboard", "optuna", "mnist5k", "secure", "notebook", "all"} <= set(
        extras
    )
    (everything,) = extras["all"]
    named = set(everything.removeprefix("raydpzv[").removesuffix("]").split(","))
    apart = {"all", "dev", "docs", "mlflow", "trackio", "transformers", "wandb"}
    assert named == {name for name, lines in extras.items() if lines} - apart


def test_what_is_required_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    extras = PROJECT["project"]["optional-dependencies"].values()
    asked = [line for group in (PROJECT["project"]["dependencies"], *extras) for line in group]
    names = {line.partition(">=")[0].partition("[")[0].lower().replace("_", "-") for line in asked}
    assert names - {"raydpzv"} - pinned == set()


def test_every_package_of_the_wheel_says_that_it_is_typed() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [name for name in packages if not (ROOT / name / "py.typed").is_file()] == []


def test_dir_shows_the_public_names() -> None:
    assert dir(raydpzv) == sorted(raydpzv.__all__)
    assert all(getattr(raydpzv, name) for name in dir(raydpzv))


@pytest.mark.parametrize("look", [inspect.signature, inspect.getdoc])
def test_compare_shows_what_its_function_takes(look) -> None:
    assert look(raydpzv.compare) == look(compare)
    assert "methods" in str(look(compare))
