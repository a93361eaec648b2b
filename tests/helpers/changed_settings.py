"""One setting changed, and what a small run does differently: what tests of settings compare."""

import dataclasses
import os
import tempfile
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np

import scenarios
from actors.machines import Machine
from actors.placement import plan_run
from raydpzv.config.scenario import SCENARIOS, AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import RaydpzvError
from raydpzv.experiment.finalize import Run
from raydpzv.experiment.local_session import open_ledger
from raydpzv.experiment.prepare import prepare
from raydpzv.methods.descriptor import HorizontalMethod
from raydpzv.registry import METHODS
from raydpzv.settings.fields import section_of, settings_of

FILES = {"vertical": "digits_dpzv", "horizontal": "digits_decomfl"}
SMALL = (
    "data.train_rows=60",
    "data.test_rows=30",
    "evaluate.every=4",
    "method.batch=8",
    "model.hidden=[4]",
)
BASES = {
    "vertical": (*SMALL, "budget.updates=12", "privacy.noise=seeded"),
    "horizontal": (
        *SMALL,
        "budget.updates=6",
        "split.clients=6",
        "split.sizes=drawn",
        "method.cohort=3",
        "method.perturbations=2",
        "method.local_steps=2",
    ),
}
RUN = (
    "digest",
    "model_digest",
    "updates",
    "bytes_up",
    "bytes_down",
    "simulated_seconds",
    "refused",
)
"""What a change of a setting may change, where nothing else is said."""
HEAD, CLIENTS = "head", "clients"
"""The last parameters of one part of a vertical run: of the server, and of client 0."""
_ROUNDING = 1e-5
"""By how much parameters may differ where nothing that moves them does."""


@dataclass(frozen=True)
class Change:
    """A setting's other value, as TOML; "" takes one that differs from the usual.

    given: overrides under which it matters. watch: what must differ. refused: words of the refusal
    that is its effect.
    """

    to: str = ""
    given: tuple[str, ...] = ()
    watch: tuple[str, ...] = RUN
    refused: str = ""


def fields_of(kind: str) -> Iterator[tuple[str, Any]]:
    """Yield every setting of every section: its dotted key and its annotation."""
    for name, field in SCENARIOS[kind].model_fields.items():
        if name == "method":
            continue
        if section := section_of(field.annotation):
            yield from settings_of(section, name)
        else:
            yield name, field.annotation


def fields_of_method(name: str) -> Iterator[tuple[str, Any]]:
    """Yield every setting of a method but its name."""
    config = METHODS[name].config
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        if field.name != "name":
            yield f"method.{field.name}", hints[field.name]


def other(annotation: Any, value: Any) -> str:
    """Return a value that differs from this one, as TOML; "" where only a person knows one."""
    if typing.get_origin(annotation) is Literal:
        return f'"{next(v for v in typing.get_args(annotation) if v != value)}"'
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, int):
        return str(value + 1)
    return repr(value * 0.5 or 0.5) if isinstance(value, float) else ""


def scenario(kind: str, method: str, overrides: tuple[str, ...]) -> AnyScenario:
    """Return a small scenario of a method."""
    base = (*BASES[kind], *CONTROL) if METHODS[method].control else BASES[kind]
    known = {f"method.{f.name}" for f in dataclasses.fields(METHODS[method].config)}
    base = tuple(o for o in base if not o.startswith("method.") or o.partition("=")[0] in known)
    if getattr(METHODS[method], "agent", False):
        base = (*base, "split.clients=1")
    if protects_users(method):
        base = (*base, *OF_USERS)
    return scenarios.load(FILES[kind], [f"method.name={method}", *base, *overrides])


CONTROL = ("privacy.mode=none",)
OF_USERS = (
    "split.how=users",
    "split.clients=3",
    "users.count=8",
    "privacy.mode=user",
    "privacy.multiplier=0.5",
    "privacy.delta=1e-3",
    "privacy.clip=0.1",
    "privacy.noise=seeded",
)
"""What a method that protects users wants."""


def protects_users(method: str) -> bool:
    """Tell whether a method releases sums over users, so that it wants users, a clip and noise."""
    found = METHODS[method]
    return isinstance(found, HorizontalMethod) and found.users(found.config()) is not None


@cache
def observed(method: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a small run of a method does, under `RUN`'s names and those of `folder_of` and
    `placed`.
    """
    try:
        run = run_small(method, overrides)
    except RaydpzvError as error:
        return {"refused": str(error)}
    kept = {name: run.summary[name] for name in (*RUN[:-1], "scenario", "title", "stopped_by")}
    parts = {HEAD: run.models.get("server"), CLIENTS: run.models.get("client 0")}
    return kept | parts | {"refused": ""}


def run_small(method: str, overrides: tuple[str, ...] = ()) -> Run:
    """Run the small scenario of a method."""
    return scenarios.run(scenario(METHODS[method].kind, method, overrides))


@cache
def recorded(method: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a small run leaves on disk: parts of its rows, snapshots, calls of fsync."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(os, "fsync", wraps=os.fsync) as synced,
    ):
        out = Path(folder) / "run"
        summary = scenarios.run(scenario(METHODS[method].kind, method, overrides), out).summary
        return {
            "checkpoints": summary.get("checkpoints", {}).get("count"),
            "parts": len(list(out.glob("rows/message/part-*"))),
            "snapshots": len(list(out.glob("ledger/**/*snapshot*"))),
            "fsyncs": synced.call_count,
        }


@cache
def placed(method: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return how a scenario's parties are placed on a cluster of 8 CPUs and 8 GPUs, and what each
    is made of.
    """
    kind = METHODS[method].kind
    spec: Any = scenario(kind, method, overrides)
    found = {"plan": plan_run(spec, [Machine({"CPU": 8.0, "GPU": 8.0}, {"zone": "a"})])}
    if kind == "horizontal":
        prepared: Any = prepare(spec)
        with open_ledger(prepared, None) as ledger:
            group = type(prepared.client_group(ledger)).__name__
        found |= {"objectives": len(prepared.objectives()), "group": group}
    return found


def differs(method: str, key: str, change: Change) -> list[str]:
    """Return what one changed setting changes, of what is to be watched."""
    see = {"plan": placed, "objectives": placed, "group": placed}
    see |= dict.fromkeys(("parts", "snapshots", "fsyncs", "checkpoints"), recorded)
    look = see.get(change.watch[0], observed)
    before, after = look(method, change.given), look(method, (*change.given, f"{key}={change.to}"))
    assert not before.get("refused"), f"the base is refused: {before['refused']}"
    if change.refused:
        assert change.refused in after.get("refused", ""), after
        return ["refused"]
    assert not after.get("refused"), (
        f"the change is refused, say so in the table: {after['refused']}"
    )
    return [name for name in change.watch if _differs(before.get(name), after.get(name))]


def _differs(before: Any, after: Any) -> bool:
    """Tell whether two values differ; parameters by more than rounding does."""
    if isinstance(before, np.ndarray):
        return not np.allclose(before, after, rtol=0, atol=_ROUNDING)
    return bool(before != after)


def usual(method: str, key: str, overrides: tuple[str, ...] = ()) -> Any:
    """Return the value of a setting in the small scenario of a method; None where it is left
    out.
    """
    table: Any = as_tree(scenario(METHODS[method].kind, method, overrides))
    for part in key.split("."):
        table = table.get(part) if table else None
    return table
