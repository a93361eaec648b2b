import pytest

import scenarios
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import run, run_local

CHANGE = 13
SMALL = (
    "budget.updates=24",
    "evaluate.every=8",
    "clock.kind=virtual",
    "privacy.mode=none",
    "data.source=digits",
    "data.train_rows=80",
    "data.test_rows=40",
)
QUIET_NOISE = (  # rounds to nothing: two runs differ by their settings alone
    "privacy.mode=proved",
    "privacy.noise=system",
    "privacy.clip=1.0",
    "privacy.noise_multiplier=1e-9",
    "data.scale=none",
    "data.split=plain",
    "model.embedding=10",
    "method.perturbations=2",
)
JOINT = (*QUIET_NOISE, "method.server=joint", "model.head=linear")
GATHERED = (*JOINT, "method.gather=2", "method.batch=8", "method.batches=shuffle")
CLIENTS = {
    "dpzv": ("digits_dpzv", ()),
    "several directions": ("digits_dpzv", ("method.perturbations=3",)),
    "proved": ("digits_dpzv", (*QUIET_NOISE, "method.server=frozen", "model.head=sum")),
    "gathered": ("digits_dpzv", GATHERED),
    "vafl": ("vafl_digits", ("method.momentum=0.5",)),
    "decayed": ("vafl_digits", ("method.lr_decay=5",)),
    "sgd": ("sgd", ()),
    "zoo_vfl": ("zoo_vfl", ()),
    "czofo": ("czofo", ()),
}
SERVERS = {
    "sgd head": ("digits_dpzv", ("method.server=sgd",)),
    "two-point head": ("digits_dpzv", ("method.server=zo",)),
    "joint head": ("digits_dpzv", JOINT),
    "gathered": ("digits_dpzv", GATHERED),
    "vafl": ("vafl_digits", ()),
    "synchronous": ("vafl_digits", ("method.synchrony=synchronous",)),
    "frozen": ("frozen", ()),
    "sgd": ("sgd", ()),
    "zoo_vfl": ("zoo_vfl", ()),
    "czofo": ("czofo", ()),
}
CASES = [
    *(("lr", *case) for case in CLIENTS.values()),
    *(("server_lr", *case) for case in SERVERS.values()),
]
NAMES = [*(f"clients-{name}" for name in CLIENTS), *(f"head-{name}" for name in SERVERS)]
ENGINES = ["torch", "compiled"] * len(CASES)
"""In turn: a method has one engine for its clients' row and the other for its head's, or for its
neighbour's.
"""
cases = pytest.mark.parametrize(("name", "scenario", "changes"), CASES, ids=NAMES)


def spec(engine, scenario, changes, *more):
    return scenarios.load(scenario, [*SMALL, f"model.engine={engine}", *changes, *more])


def digest(*of):
    return run(spec(*of)).summary["digest"]


@pytest.mark.parametrize(
    ("engine", "name", "scenario", "changes"),
    [(engine, *case) for engine, case in zip(ENGINES, CASES, strict=False)],
    ids=NAMES,
)
def test_a_step_size_from_the_first_update_on_is_that_step_size(engine, name, scenario, changes):
    """And one from a later update on is neither the first one throughout nor the later one."""
    of = engine, scenario, changes
    first = getattr(spec(*of).method, name)
    other = 2 * first
    throughout = digest(*of, f"method.{name}={other}")
    assert digest(*of, f"method.{name}_at=[[1,{other}]]") == throughout
    unchanged = digest(*of)
    assert digest(*of, f"method.{name}_at=[[{CHANGE},{first}]]") == unchanged
    assert digest(*of, f"method.{name}_at=[[{CHANGE},{other}]]") not in (throughout, unchanged)


@cases
def test_a_run_with_changed_step_sizes_continues_and_is_computed_again_to_the_same_bits(
    tmp_path, name, scenario, changes
):
    """Stopped after the change: what goes on has its step sizes from the start."""
    other = 2 * getattr(spec("compiled", scenario, changes).method, name)
    found = spec("compiled", scenario, changes, f"method.{name}_at=[[{CHANGE},{other}]]")
    whole = run_local(prepare(found), RunOptions(tmp_path / "whole")).summary
    replay(tmp_path / "whole")
    stopped = run_local(prepare(found), RunOptions(tmp_path / "stopped", until=CHANGE + 3)).summary
    assert (stopped["status"], stopped["updates"]) == ("stopped", CHANGE + 3)
    experiment, folder, label = continued(tmp_path / "stopped")
    assert folder.checkpoint()
    assert run_local(experiment, RunOptions(folder, label)).summary["digest"] == whole["digest"]
