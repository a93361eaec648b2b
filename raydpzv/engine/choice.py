"""The choice of the engine that computes a run's models: for all parties, or for the head and the
bottoms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from raydpzv.engine.dense import DenseNetwork
from raydpzv.errors import SpecError

Engine = Literal["torch", "compiled", "compiled_head"]
ENGINES: tuple[Engine, ...] = ("torch", "compiled")
"""Those that compute every kind of model; "compiled_head" is the one for the head and the other for
the bottoms.
"""


@dataclass(frozen=True)
class Compilable:
    """The models of one kind of method that compiled kernels run, and where "auto" takes them.

    models: in words of a scenario; gpus: the settings that ask for a GPU share, which kernels have
    no use for; most: parameters of a party's model up to which they are quicker than torch; work:
    likewise, rows of a batch times
    parameters, None: whatever the batch.
    """

    models: str
    gpus: str
    most: int
    work: int | None = None

    def small(self, network: DenseNetwork | None, rows: int) -> bool:
        """Tell whether kernels are quicker than torch with this model, None where it is none of
        dense layers.
        """
        return (
            network is not None
            and network.size <= self.most
            and (self.work is None or rows * network.size <= self.work)
        )


SPLIT_BY_GRADIENTS = Compilable(
    'model.bottom = "mlp" or "linear" with model.head = "mlp", "linear" or "sum"',
    "resources.client_gpus, resources.server_gpus",
    1_000_000,
    64_000_000,
)
"""Bottoms that learn by gradients, and heads.

CPU time under torch by that under compiled kernels, forward and backward of a bottom of 196
features, one thread of an AVX-512 machine with other work on it; batches of 4, 64 and 256: 9.4, 2.9
and 1.1 at 27,280 parameters, 3.9, 1.7 and 1.0 at 109,072, 2.1, 1.0 and .7 at 436,240, 1.6, .85 and
.6 at 872,464, .8, .6 and .4 at 4,632,592. A whole update with batches of 64, now that a layer moves
while its gradient is made: 1.47 at 872,464, .98 at 4,632,592 (another machine).
"""

SPLIT_BY_DIRECTIONS = replace(SPLIT_BY_GRADIENTS, most=5_000_000, work=300_000_000)
"""Bottoms that learn by scalars along directions.

The same with embeddings at w + λu and w - λu and a step: 15, 10 and 3.8 at 27,280 parameters, 5.6,
4.1 and 1.9 at 109,072, 3.1, 2.4 and 1.1 at 436,240, 2.5, 1.9 and 1.0 at 872,464; 1.2 and 1.1 with
batches of 4 and 64 at 4,632,592.
"""

WHOLE_MODELS = Compilable('model.kind = "mlp" or "logistic"', "resources.host_gpus", 200_000)
"""Models of horizontal methods.

CPU time under torch by that under compiled kernels, batches of 32 with 784 features, one thread of
an AVX-512 machine with other work on it; losses of one client along 1 and 10 directions, of 10
clients along 10, and a gradient: 2.5, 2.8, 2.8 and 1.7 at 2,395 parameters, 1.8, 1.2, 1.3 and 1.7
at 50,890, 1.1, .9, 1.2 and 1.8 at 203,530, 1.0, .8, 1.1 and 1.2 at 814,090. torch takes several
directions in one product per layer.
"""


def kernels_know(loss: str) -> dict[str, DenseNetwork | None]:
    """Return the loss by its name in messages where compiled kernels do not have it, for `choose`;
    else {}.
    """
    return {} if loss == "cross_entropy" else {f'model.loss = "{loss}"': None}


def kernels_move(method: Any) -> dict[str, DenseNetwork | None]:
    """Return, likewise, what of a method's directions compiled kernels do not have."""
    found: dict[str, DenseNetwork | None] = {}
    if getattr(method, "direction", None) == "rank_one":
        found['method.direction = "rank_one"'] = None
    return found | ({"method.groups": None} if getattr(method, "groups", None) else {})


def choose(
    asked: Literal["auto", "torch", "compiled"],
    networks: Mapping[str, DenseNetwork | None],
    family: Compilable,
    *,
    rows: int = 1,
    engines: Sequence[Engine] = ENGINES,
    accelerator: bool = False,
) -> Engine:
    """Return the engine of a run.

    networks: every party's model by its name in messages, None where it is none of dense layers;
    rows: of a batch;
    engines: those that the method's roles can run under; accelerator: a GPU share is asked for.
    Raises SpecError where "compiled" was asked for and cannot be.
    """
    if asked == "torch":
        return "torch"
    reason = _against_compiled(networks, family, engines, accelerator)
    if asked == "compiled":
        if reason:
            raise SpecError(
                f'model.engine: "compiled" cannot run {reason}; it runs {family.models} on CPUs: '
                'use engine = "auto" or "torch"'
            )
        return "compiled"
    small = all(family.small(network, rows) for network in networks.values())
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
