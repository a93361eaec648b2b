"""Which engine computes a vertical run's models: one for all parties of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from raydpzv.engine.dense import DenseNetwork
from raydpzv.errors import SpecError

Engine = Literal["torch", "compiled"]
ENGINES: tuple[Engine, ...] = ("torch", "compiled")

MOST_PARAMETERS = 20_000
"""Parameters of a party's model up to which "auto" takes the compiled engine.

CPU time of an update under torch by that under compiled kernels, the roles of DPZV (VAFL) on digits, one thread of an
AVX-512 machine: 12 (10) at 600 parameters a part, 8 (7) at 1,900, 3.6 (6) at 7,600, 3.2 (2.3) at 15,000, 2.1 (1.6) at
30,000. A batch of 64; beyond, matrix products count more than calls, and BLAS catches up.
"""


def choose(
    asked: Literal["auto", "torch", "compiled"],
    networks: Mapping[str, DenseNetwork | None],
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
    reason = _against_compiled(networks, engines, accelerator)
    if asked == "compiled":
        if reason:
            raise SpecError(
                f'model.engine: "compiled" cannot run {reason}; it runs model.bottom = "mlp" or "linear" with '
                'model.head = "mlp", "linear" or "sum" on CPUs: use engine = "auto" or "torch"'
            )
        return "compiled"
    small = all(network is not None and network.size <= MOST_PARAMETERS for network in networks.values())
    return "compiled" if small and not reason else "torch"


def _against_compiled(
    networks: Mapping[str, DenseNetwork | None], engines: Sequence[Engine], accelerator: bool
) -> str | None:
    """Return what it is that compiled kernels cannot run, or None."""
    if "compiled" not in engines:
        return "this method, whose roles compute with torch themselves"
    if accelerator:
        return "on a GPU (resources.client_gpus, resources.server_gpus)"
    return next((name for name, network in networks.items() if network is None), None)
