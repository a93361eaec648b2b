"""The choice of the engine that computes a run's models, one for all parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from raydpzv.engine.dense import DenseNetwork
from raydpzv.errors import SpecError

Engine = Literal["torch", "compiled"]
ENGINES: tuple[Engine, ...] = ("torch", "compiled")


@dataclass(frozen=True)
class Compilable:
    """The models of one kind of method that compiled kernels run, and where "auto" takes them.

    models: in words of a scenario; gpus: the settings that ask for a GPU share, which kernels have no use for; most:
    parameters of a party's model up to which they are quicker than torch.
    """

    models: str
    gpus: str
    most: int


SPLIT_MODELS = Compilable(
    'model.bottom = "mlp" or "linear" with model.head = "mlp", "linear" or "sum"',
    "resources.client_gpus, resources.server_gpus",
    20_000,
)
"""Bottoms and heads of vertical methods.

CPU time of an update under torch by that under compiled kernels, the roles of DPZV (VAFL) on digits, one thread of an
AVX-512 machine: 12 (10) at 600 parameters a part, 8 (7) at 1,900, 3.6 (6) at 7,600, 3.2 (2.3) at 15,000, 2.1 (1.6) at
30,000. A batch of 64; beyond, matrix products count more than calls, and BLAS catches up.
"""

WHOLE_MODELS = Compilable('model.kind = "mlp" or "logistic"', "resources.host_gpus", 10_000)
"""Models of horizontal methods.

CPU time under torch by that under compiled kernels, 10 clients' batches of 32, one thread of an AVX-512 machine with
other work on it; losses along 1, 10 and 25 directions, and a step of SGD: 12, 2.3, 2.0 and 8 at 2,410 parameters (mlp
on 64 features), 4.4, 1.3, 1.3 and 5.5 at 9,760, 2.4, .6, .8 and 2.3 at 15,010; 1.4, 1.1, 1.0 and 1.8 at 7,850 (logistic
on 784). torch takes several directions in one product per layer, so that less is to be gained than in split models.
"""


def kernels_know(loss: str) -> dict[str, DenseNetwork | None]:
    """Return the loss by its name in messages where compiled kernels do not have it, for `choose`; else {}."""
    return {} if loss == "cross_entropy" else {f'model.loss = "{loss}"': None}


def choose(
    asked: Literal["auto", "torch", "compiled"],
    networks: Mapping[str, DenseNetwork | None],
    family: Compilable,
    *,
    engines: Sequence[Engine] = ENGINES,
    accelerator: bool = False,
) -> Engine:
    """Return the engine of a run.

    networks: every party's model by its name in messages, None where it is none of dense layers; engines: those that
    the method's roles can run under; accelerator: a GPU share is asked for. Raises SpecError where "compiled" was
    asked for and cannot be.
    """
    if asked == "torch":
        return "torch"
    reason = _against_compiled(networks, family, engines, accelerator)
    if asked == "compiled":
        if reason:
            raise SpecError(
                f'model.engine: "compiled" cannot run {reason}; it runs {family.models} on CPUs: use engine = "auto" '
                'or "torch"'
            )
        return "compiled"
    small = all(network is not None and network.size <= family.most for network in networks.values())
    return "compiled" if small and not reason else "torch"


def _against_compiled(
    networks: Mapping[str, DenseNetwork | None],
    family: Compilable,
    engines: Sequence[Engine],
    accelerator: bool,
) -> str | None:
    """Return what it is that compiled kernels cannot run, or None."""
    if "compiled" not in engines:
        return "this method, whose roles compute with torch themselves"
    if accelerator:
        return f"on a GPU ({family.gpus})"
    return next((name for name, network in networks.items() if network is None), None)
