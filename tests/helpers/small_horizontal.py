"""Small horizontal scenarios of every method, and ways to stop them and to continue."""

import threading
from pathlib import Path
from typing import Any

import scenarios
from raydpzv.config.scenario import HorizontalScenario
from raydpzv.config.toml import override
from raydpzv.experiment.finalize import Run
from raydpzv.experiment.resuming import resuming
from raydpzv.registry import METHODS as DESCRIPTORS
from tests.helpers.runs import run_prepared

SMALL = (
    "data.train_rows=150",
    "data.test_rows=60",
    "model.hidden=[6]",
    "split.clients=12",
    "method.cohort=4",
    "method.batch=8",
    "budget.updates=24",
    "evaluate.every=5",
)
OFTEN = "record.checkpoint_updates=1"
"""A checkpoint after every round."""
MESSY = (
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "clock.service=0.03",
    "clock.service_law=exponential",
    "network.latency=0.05",
    "network.up=50000",
)
DECOMFL = (*MESSY, "method.perturbations=3", "method.local_steps=2", "method.momentum=0.5")
ASYNC = ("method.asynchronous=true", "method.perturbations=3", "clock.compute=0.3")
METHODS: dict[str, tuple[str, ...]] = {
    "decomfl": DECOMFL,
    "per_client": (*DECOMFL, "method.replicas=per_client"),
    "pulling": (
        *DECOMFL,
        "method.server_model=true",
        "method.pull_after=2",
        "method.perturbations=20",
        "model.hidden=[1]",
    ),
    "add_back": (
        *MESSY,
        "method.perturbations=3",
        "method.local_steps=2",
        "method.perturbations_at=[[7, 5], [15, 1]]",
        "method.replicas=per_client",
        "method.revert=add_back",
    ),
    "schedules": (
        *DECOMFL,
        "method.lr_at=[[9, 0.01]]",
        "method.perturbations_at=[[7, 5], [15, 1]]",
    ),
    "secret": (*DECOMFL, "method.private_seed_shift=true"),
    "mezo": ("split.clients=1",),
    "fedavg": (*MESSY, "method.momentum=0.5", "method.local_steps=3", "method.weights=rows"),
    "fedcom": MESSY,
    "topk": MESSY,
    "fedzo": (*MESSY, "method.perturbations=3", "method.local_steps=2"),
    "asynchronous": ASYNC,
    "adam": (*DECOMFL, "method.optimizer=adam", "method.lr=0.01"),
    "svrg": (*DECOMFL[:-1], "method.optimizer=svrg", "method.epoch=5", "method.last_round=clients"),
    "feedsign": (*MESSY, "method.perturbations=3", "method.local_steps=2"),
    "fzoo": (*MESSY, "method.perturbations=3", "method.local_steps=2"),
    "fedkseed": (*MESSY, "method.pool=16", "method.perturbations=3", "method.local_steps=2"),
    "generated": (*DECOMFL, "data.source=synthetic_clients"),
}
SEEDED = tuple(kind for kind in METHODS if kind not in ("fedavg", "fedcom", "topk", "fedzo"))


def small(kind: str, *overrides: str) -> HorizontalScenario:
    """A scenario of 24 updates; methods other than DeComFL take the place of the file's [method]
    section.
    """
    name = kind if kind in DESCRIPTORS else "decomfl"
    wanted = [*SMALL, *METHODS[kind], *overrides]
    if name == "mezo":
        wanted = [w for w in wanted if not w.startswith("method.cohort")]
    base = scenarios.load("digits_decomfl", [])
    assert isinstance(base, HorizontalScenario)
    blank = base.model_copy(
        update={"method": type(base.method)() if name == "decomfl" else DESCRIPTORS[name].config()}
    )
    spec = override(blank, wanted)
    assert isinstance(spec, HorizontalScenario)
    return spec


def stop_after(updates: int) -> dict[str, Any]:
    """Return the arguments of a run that stop it after these updates, as its user would."""
    stop = threading.Event()
    return {
        "stop": stop,
        "progress": lambda status: stop.set() if status.updates >= updates else None,
    }


def stopped(spec: HorizontalScenario, folder: Path, updates: int = 9) -> None:
    summary = scenarios.run(spec, folder, **stop_after(updates)).summary
    assert (summary["status"], summary["updates"]) == ("stopped", updates)


def resume(folder: Path, **options: Any) -> Run:
    prepared, opened, _ = resuming(folder)
    return run_prepared(prepared, opened, runner="local", **options)


def same(run: Run, whole: Run) -> None:
    for name in ("digest", "model_digest", "updates", "bytes_up", "bytes_down"):
        assert run.summary[name] == whole.summary[name], name
    # of no part of the digest
    assert run.summary["vector_length"] == whole.summary["vector_length"]
    assert run.summary["status"] == "done"
    if "ledger" in whole.summary:
        assert run.summary["ledger"]["digest"] == whole.summary["ledger"]["digest"]


def contents(folder: Path) -> dict[str, bytes]:
    kept = [p for p in sorted(folder.rglob("*")) if p.is_file() and ".lock" not in p.name]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}
