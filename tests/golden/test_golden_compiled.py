"""Small runs of every method under the compiled engine: digests that hold on every x86-64 machine.

Their losses and final parameters are on record beside this file. After a change of numbers that is
meant: `python -m tests.golden.test_golden_compiled`, and the differences go into the commit.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import scenarios
from raydpzv.registry import METHODS

RECORD = Path(__file__).parent / "compiled_runs.json"
SMALL = (
    "data.train_rows=300",
    "data.test_rows=60",
    "evaluate.every=20",
    "method.batch=16",
    "model.hidden=[8]",
    "budget.updates=60",
    "model.engine=compiled",
)
QUIET, SEEDED = ("privacy.mode=none",), ("privacy.noise=seeded",)
DEEP = ("model.hidden=[9, 6]", "model.head=linear")
RUNS = {
    "dpzv": ("dpzv", SEEDED),
    "dpzv, several directions": (
        "dpzv",
        (*SEEDED, "method.perturbations=3", "method.server=zo", *DEEP),
    ),
    "frozen": ("frozen", QUIET),
    "sgd": ("sgd", QUIET),
    "vafl": ("vafl", SEEDED),
    "vafl, noise inside": ("vafl", (*SEEDED, "method.layer_noise=[0.1]", *DEEP)),
    "vafl, noise down": ("vafl", (*SEEDED, "method.noise_on=gradient")),
    "vafl, two at a time": (
        "vafl",
        (
            *QUIET,
            "method.synchrony=t-synchronous",
            "method.wait_for=2",
            "method.l2=0.1",
            "method.momentum=0.5",
        ),
    ),
    "zoo_vfl": ("zoo_vfl", SEEDED),
    "zoo_vfl, signs and sums": (
        "zoo_vfl",
        (
            *QUIET,
            "method.direction=rademacher",
            "model.bottom=linear",
            "model.head=sum",
            "model.embedding=10",
        ),
    ),
    "zoo_vfl, one-sided head": (
        "zoo_vfl",
        (
            *QUIET,
            "method.server=zo_one_sided",
            "method.server_lr=5e-4",
            "method.server_momentum=0.5",
        ),
    ),
    "czofo": ("czofo", SEEDED),
    "czofo, compressed": (
        "czofo",
        (*SEEDED, "method.directions=normal", "method.upload_bits=4", "method.answer_bits=8"),
    ),
    "czofo, coordinates": ("czofo", (*QUIET, "method.directions=coordinate", *DEEP)),
    "czofo, by rows": ("czofo", (*SEEDED, "method.variant=per_row")),
}
FEW = (
    "data.train_rows=300",
    "data.test_rows=60",
    "evaluate.every=5",
    "method.batch=16",
    "model.hidden=[8]",
    "split.clients=12",
    "budget.updates=15",
    "model.engine=compiled",
)
COHORT = ("method.cohort=4",)
HORIZONTAL_RUNS = {
    "decomfl": ("decomfl", (*COHORT, "method.perturbations=3")),
    "decomfl, local steps": (
        "decomfl",
        (
            *COHORT,
            "method.perturbations=3",
            "method.local_steps=2",
            "method.momentum=0.5",
            "method.direction=sphere",
            "method.estimate=central",
            "model.hidden=[9, 6]",
        ),
    ),
    "decomfl, projection of signs": (
        "decomfl",
        (
            *COHORT,
            "method.perturbations=3",
            "method.estimate=projection",
            "method.direction=rademacher",
        ),
    ),
    "decomfl, asynchronous": ("decomfl", ("method.asynchronous=true", "method.perturbations=3")),
    "mezo": ("mezo", ("split.clients=1",)),
    "feedsign": (
        "feedsign",
        (*COHORT, "method.perturbations=3", "method.local_steps=2", "method.lr=0.02"),
    ),
    "fzoo": ("fzoo", (*COHORT, "method.perturbations=3", "method.local_steps=2", "method.lr=1e-4")),
    "fedkseed": ("fedkseed", (*COHORT, "method.pool=32", "method.local_steps=2", "method.lr=0.01")),
    "fedavg": (
        "fedavg",
        (*COHORT, "method.local_steps=3", "method.momentum=0.5", "method.weights=rows"),
    ),
    "fedavg, logistic": ("fedavg", (*COHORT, "model.kind=logistic")),
    "fedcom": ("fedcom", COHORT),
    "topk": ("topk", COHORT),
    "fedzo": ("fedzo", (*COHORT, "method.local_steps=2", "method.perturbations=3")),
}
OF_USERS = (
    "data.train_rows=300",
    "data.test_rows=60",
    "evaluate.every=5",
    "model.hidden=[8]",
    "split.how=users",
    "split.clients=3",
    "users.count=12",
    "budget.updates=15",
    "model.engine=compiled",
    "privacy.mode=user",
    "privacy.multiplier=1.0",
    "privacy.delta=1e-5",
    "privacy.clip=0.5",
    "privacy.noise=seeded",
)
USER_RUNS = {
    "uldp_naive": ("uldp_naive", ("method.local_epochs=2",)),
    "uldp_group": ("uldp_group", ("method.group=3", "method.rate=0.5")),
    "uldp_sgd": ("uldp_sgd", ("method.sampling=0.5",)),
    "uldp_sgd, uniform": ("uldp_sgd", ("method.weights=uniform",)),
    "uldp_avg": ("uldp_avg", ("method.local_epochs=2", "method.batch=4", "method.count_cap=4")),
    "uldp_zo": ("uldp_zo", ("method.perturbations=3", "method.local_steps=2")),
}


def digests(name: str) -> list[str]:
    """Of the services' losses and evaluations, and of all final parameters."""
    if name in RUNS:
        (method, overrides), scenario, small = RUNS[name], "digits_dpzv", SMALL
    elif name in USER_RUNS:
        (method, overrides), scenario, small = USER_RUNS[name], "digits_decomfl", OF_USERS
    else:
        (method, overrides), scenario, small = HORIZONTAL_RUNS[name], "digits_decomfl", FEW
    run = scenarios.run(scenarios.load(scenario, [f"method.name={method}", *small, *overrides]))
    assert run.summary["engine"] == "compiled"
    losses = [
        run.rows("service")["loss"],
        run.rows("evaluation")["loss"],
        run.rows("evaluation")["accuracy"],
    ]
    found = b"".join(column.to_numpy().astype(np.float64).tobytes() for column in losses)
    return [hashlib.sha256(found).hexdigest(), run.summary["model_digest"]]


@pytest.mark.parametrize("name", [*RUNS, *HORIZONTAL_RUNS, *USER_RUNS])
def test_a_compiled_run_has_the_digests_on_record(name: str) -> None:
    assert digests(name) == json.loads(RECORD.read_text())[name]


def test_every_method_is_on_record() -> None:
    for runs, kind in ((RUNS, "vertical"), (HORIZONTAL_RUNS | USER_RUNS, "horizontal")):
        assert {method for method, _ in runs.values()} == {
            n for n in METHODS if METHODS[n].kind == kind
        }
    record = json.loads(RECORD.read_text())
    assert set(record) == {*RUNS, *HORIZONTAL_RUNS, *USER_RUNS}
    models = [model for _, model in record.values()]
    assert len(set(models)) == len(models), "two runs that differ have one model"


if __name__ == "__main__":
    RECORD.write_text(
        json.dumps(
            {name: digests(name) for name in (*RUNS, *HORIZONTAL_RUNS, *USER_RUNS)}, indent=1
        )
        + "\n"
    )
