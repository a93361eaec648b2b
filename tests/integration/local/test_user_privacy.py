import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import raydpzv
from raydpzv.config.validation import user_contradictions
from raydpzv.errors import SpecError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import run_local
from raydpzv.privacy import group_accountant
from raydpzv.privacy.user_mechanism import user_epsilon
from raydpzv.privacy.users import UserReleasePlan
from tests.helpers.kills import Killed

BASE = (
    "data.train_rows=120",
    "data.test_rows=30",
    "evaluate.every=50",
    "model.kind=logistic",
    "data.scale=public",
    "data.centre=0.3",
    "data.spread=0.3",
    "data.split=plain",
    "split.how=users",
    "split.clients=3",
    "users.count=10",
    "budget.updates=4",
)
PRIVATE = ("privacy.mode=user", "privacy.delta=1e-3", "privacy.clip=0.1")
NOISE = (*PRIVATE, "privacy.multiplier=5.0")
GROUP = ("method.group=2", "method.rate=0.5")
METHODS = {
    "uldp_sgd": (),
    "uldp_avg": (),
    "uldp_naive": (),
    "uldp_group": GROUP,
    "uldp_zo": ("method.perturbations=2",),
}


def scenario(name: str, *overrides: str) -> Any:
    return raydpzv.load(
        "digits_decomfl", [f"method.name={name}", *BASE, *METHODS[name], *overrides]
    )


def made(name: str, *overrides: str) -> raydpzv.Run:
    return raydpzv.run(scenario(name, *overrides))


def stated(run: raydpzv.Run, adversary: str, relation: str = "add_remove") -> float:
    (found,) = [
        c
        for c in run.summary["epsilon"]
        if (c["adversary"], c["relation"]) == (adversary, relation)
    ]
    return float(found["epsilon"])


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coarser grid for mixtures of Gaussians: what agrees on it agrees on the usual one, which is
    slow.
    """
    monkeypatch.setattr(group_accountant, "_POINTS", 2000)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_noised_and_accounted_for(name: str) -> None:
    run = made(name, *PRIVATE, "privacy.epsilon=2.0")
    assert run.summary["private"]
    assert stated(run, "external") == pytest.approx(2.0, rel=1e-3)
    rows = run.rows("user_epsilon").to_pylist()
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["external"] == pytest.approx(stated(run, "external"), rel=1e-6)
    released = run.rows("release").to_pylist()
    assert {row["source"] for row in released} == {"system"}
    assert {row["mechanism"] for row in released} == {"discrete gaussian"}
    again = made(name, *PRIVATE, "privacy.epsilon=2.0")
    assert again.summary["model_digest"] != run.summary["model_digest"]


def test_seeded_noise_repeats_and_proves_nothing() -> None:
    one, two = (made("uldp_sgd", *NOISE, "privacy.noise=seeded") for _ in range(2))
    assert one.summary["digest"] == two.summary["digest"]
    assert not one.summary["private"]
    assert (
        one.summary["model_digest"] != made("uldp_sgd", "privacy.clip=0.1").summary["model_digest"]
    )


@pytest.mark.parametrize("changed", [("privacy.clip=0.05",), ("privacy.multiplier=7.0",)])
def test_clip_and_multiplier_reach_the_silos(changed: tuple[str, ...]) -> None:
    usual = (*NOISE, "privacy.noise=seeded")
    assert (
        made("uldp_sgd", *usual).summary["model_digest"]
        != made("uldp_sgd", *usual, *changed).summary["model_digest"]
    )


def test_sampled_users_are_counted() -> None:
    run = made("uldp_sgd", *NOISE, "method.sampling=0.5", "budget.updates=6")
    notes = {c["adversary"]: c["note"] for c in run.summary["epsilon"]}
    assert "as counted" in notes["server"]
    assert stated(run, "external") < stated(run, "server")


def one_round(**changed: Any) -> UserReleasePlan:
    usual: dict[str, Any] = {"users": 10, "silos": 3, "clip": 0.1, "delta": 1e-3, "multiplier": 5.0}
    return UserReleasePlan(**usual | {"releases": 1, "weights": "records"} | changed)


@pytest.mark.parametrize("against", ["external", "client", "server"])
def test_a_budget_of_epsilon_ends_before_the_round_that_would_pass_it(against: str) -> None:
    limit = 1.0001 * user_epsilon(one_round(releases=3), against)
    run = made("uldp_sgd", *NOISE, f"privacy.against={against}", f"budget.epsilon={limit}")
    assert run.summary["updates"] == 3
    assert "would exceed the budget" in run.summary["stopped_by"]
    assert stated(run, against) <= limit
    assert len(run.rows("release")) == 9


def cut_off(name: str, folder: Path, after: int, *overrides: str) -> None:
    """Run until so many rounds are done, and end without a word."""

    def progress(status: Any) -> None:
        if status.updates >= after:
            raise Killed

    with pytest.raises(Killed):
        raydpzv.run(scenario(name, *overrides), folder, progress=progress)
    (folder / "summary.json").unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["uldp_sgd", "uldp_zo"])
@pytest.mark.parametrize("sampling", ["1.0", "0.5"])
def test_a_run_that_continues_keeps_what_is_spent(name: str, sampling: str, tmp_path: Path) -> None:
    """What the killed process may have released after its last checkpoint is charged as well."""
    cut_off(name, tmp_path / "run", 2, *NOISE, f"method.sampling={sampling}")
    prepared, folder, scenario_name = continued(tmp_path / "run")
    run = run_local(prepared, RunOptions(folder, scenario_name))
    spent = one_round(releases=5, sampling=float(sampling), remade=1)
    assert stated(run, "external") == pytest.approx(user_epsilon(spent), rel=1e-6)
    rows = run.rows("user_epsilon").to_pylist()
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["external"] == pytest.approx(stated(run, "external"), rel=1e-6)


def test_a_run_that_was_stopped_between_rounds_continues_as_if_it_had_not(tmp_path: Path) -> None:
    stop = threading.Event()

    def progress(status: Any) -> None:
        if status.updates == 2:
            stop.set()

    first = scenario("uldp_sgd", *NOISE)
    run_local(prepare(first), RunOptions(tmp_path / "run", "", progress, stop))
    prepared, folder, scenario_name = continued(tmp_path / "run")
    run = run_local(prepared, RunOptions(folder, scenario_name))
    assert stated(run, "external") == pytest.approx(user_epsilon(one_round(releases=4)), rel=1e-6)


def test_no_secret_of_the_coins_leaves_the_operators_file(tmp_path: Path) -> None:
    raydpzv.run(scenario("uldp_sgd", *NOISE, "method.sampling=0.5"), tmp_path / "run")
    coins = json.loads((tmp_path / "run" / "operator.json").read_text())["coins"]
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file() and path.name != "operator.json":
            content = path.read_bytes()
            assert coins.encode() not in content, path
            assert bytes.fromhex(coins) not in content, path


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("method.name=fedavg", "privacy.clip=0.1"),
            "privacy: goes with methods that protect users",
        ),
        (("method.name=fedavg", "budget.epsilon=1.0"), "budget.epsilon: goes with methods"),
        ((), "privacy.clip: wanted"),
        (("privacy.clip=0.1", "privacy.epsilon=1.0"), 'has no meaning with privacy.mode = "none"'),
        (("privacy.clip=0.1", "budget.epsilon=1.0"), 'has no meaning with privacy.mode = "none"'),
        (
            ("privacy.mode=user", "privacy.delta=1e-5", "privacy.epsilon=1.0"),
            "privacy.clip: wanted",
        ),
        (("privacy.mode=user", "privacy.clip=0.1", "privacy.epsilon=1.0"), "privacy.delta: wanted"),
        (PRIVATE, "got neither"),
        ((*NOISE, "privacy.epsilon=1.0"), "got both"),
        ((*NOISE, "privacy.noise=seeded", "budget.epsilon=1.0"), "seeded noise proves no ε"),
        ((*PRIVATE, "privacy.epsilon=1.0", "privacy.against=nobody"), "privacy.against"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        scenario("uldp_sgd", *overrides)


def test_epsilon_wants_planned_updates() -> None:
    spec = scenario("uldp_sgd", *PRIVATE, "privacy.epsilon=1.0")
    assert spec.budget.updates == 4
    unplanned = spec.model_copy(update={"budget": spec.budget.model_copy(update={"updates": None})})
    assert any(said.startswith("budget.updates: wanted") for said in user_contradictions(unplanned))


def test_a_budget_that_no_round_fits_is_refused() -> None:
    with pytest.raises(SpecError, match="not one round fits"):
        made("uldp_sgd", *NOISE, "budget.epsilon=0.01")


def test_a_large_delta_is_a_warning() -> None:
    run = made("uldp_sgd", *NOISE, "privacy.delta=0.1")
    assert any("not below 1/U = 0.1" in said for said in run.summary["warnings"])


def test_the_setting_is_that_of_the_method() -> None:
    prepared: Any = prepare(scenario("uldp_group", *NOISE, "method.group=max"))
    counts = prepared.parts.counts().sum(0)
    assert dataclasses.replace(prepared.setting, group=int(counts.max())) == prepared.setting
    assert (prepared.setting.group_rule, prepared.setting.steps) == ("max", 2)
