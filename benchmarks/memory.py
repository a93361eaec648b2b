"""Peak memory of a client's training step: DPZV beside first-order training of the same model on
the same batch.

The model: 24 linear layers of 1450 x 1450 with ReLU between, 50.5 million parameters, 4.2 % of them
in each layer. DPZV keeps one perturbed layer beside the parameters: a model with one dominant layer
needs more. Below a million parameters it keeps the direction too
(`raydpzv.engine.kept_directions`).

The step: DPZV's is `DpzvClient.perform` (apply the last answer, then two forward passes). First
order is forward, backward and `torch.optim.SGD`, whose gradients are all alive at the end of the
way back. (Taking the step inside the way back, layer by layer, would save first order that; it is
not what people run, and is not measured.)

The measurement, each variant in a process of its own: the high-water mark of resident memory during
the steps less what was resident before the model was made, when libraries, compiled kernels and
workspaces had been warmed up on two layers of the same width. Activations are subtracted by formula
(`activation_bytes`); the batch is small, so that they are below 1 % of the parameters in any case.
The second opinion adds up the live storages that torch's operators return, and numba's scratch. On
a GPU the peak is torch's CUDA allocator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from common import environment, median, options, show, spread, verdict, write
from fresh_process import in_fresh_process
from peaks import Cuda, LiveStorages, Meter, Resident, predictable_malloc

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import BottomTraining
from raydpzv.engine.torch_engine import TorchBottom
from raydpzv.keys import Key
from raydpzv.methods.roles import Order
from raydpzv.methods.schedule import Schedule
from raydpzv.methods.vertical.dpzv import DpzvClient, ZerothOrder
from raydpzv.models.bottoms import mlp
from raydpzv.models.flat import FlatModel
from raydpzv.wire.messages import Slopes, Start
from raydpzv.zo.update import Rule

TARGET = 1.15
"""DPZV without momentum: peak over parameter bytes."""
NUMBA_SCRATCH = 2 * 4 * 256 * 4 + 1024 * 8
"""Bytes that raydpzv.zo.numba_kernel allocates in compiled code: normals and words, lanes of the
norm.
"""
_STEPS = 3


@dataclass(frozen=True)
class Shape:
    """The model, `layers` linear layers of width x width, and the batch, `rows` rows."""

    layers: int = 24
    width: int = 1450
    rows: int = 8

    def make(self) -> torch.nn.Module:
        """Build the bottom model."""
        return mlp([self.width], [self.width] * (self.layers - 1), self.width)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all weights and biases, float32."""
        return 4 * self.layers * (self.width**2 + self.width)


Build = Callable[[Shape, torch.Tensor, float], Callable[[], None]]


def dpzv(shape: Shape, x_BF: torch.Tensor, momentum: float) -> Callable[[], None]:
    """Return DPZV's training step, everything it keeps allocated."""
    key = Key(0)
    model = FlatModel(shape.make, key / "client" / 0, x_BF.device)
    batches = Batches("shuffle", shape.rows, shape.rows, key / "batches" / 0)
    settings = ZerothOrder(1e-3, Schedule(1e-6), momentum)
    bottom = TorchBottom(model, x_BF, x_BF, BottomTraining(Rule(settings.law, momentum)))
    client = DpzvClient(0, bottom, batches, settings, key)
    client.process(Order(0, Start()))
    answer = Order(0, Slopes(np.array([0.5], np.float32)))

    def step() -> None:
        client.process(answer)

    return step


def first_order(shape: Shape, x_BF: torch.Tensor, momentum: float) -> Callable[[], None]:
    """Return a training step by backpropagation."""
    model = FlatModel(shape.make, Key(0) / "client" / 0, x_BF.device)
    sgd = torch.optim.SGD(model.module.parameters(), lr=1e-6, momentum=momentum, foreach=False)
    gradient_BE = torch.full_like(x_BF, 1e-3)

    def step() -> None:
        sgd.zero_grad()
        model.module(x_BF).backward(gradient_BE)
        sgd.step()

    return step


VARIANTS: dict[str, tuple[Build, float]] = {
    "DPZV": (dpzv, 0.0),
    "DPZV, momentum 0.9": (dpzv, 0.9),
    "first order": (first_order, 0.0),
    "first order, momentum 0.9": (first_order, 0.9),
}


def activation_bytes(shape: Shape, variant: str) -> int:
    """Return the bytes of activations alive at the peak.

    First order keeps for the way back every layer's input but the first, which is the data (a ReLU
    keeps its output, the next layer's input); at the top there are also the output, the gradient by
    it, and its source. Without a gradient there are the batch's rows, a layer's input, its output,
    and the first point's embeddings. Part of them is gone again when the last gradient is made: to
    subtract all favours first order, by below 1 %.
    """
    held = shape.layers - 1 + 3 if VARIANTS[variant][0] is first_order else 4
    return held * shape.rows * shape.width * 4


def measure(variant: str, shape: Shape, device: str) -> dict[str, int]:
    """Return the peak bytes of a variant's step, by the process and by storages; the process must
    be fresh.
    """
    torch.set_num_threads(1)
    predictable_malloc()
    build, momentum = VARIANTS[variant]
    values = (
        (Key(0) / "features").generator().standard_normal((shape.rows, shape.width), np.float32)
    )
    x_BF = torch.from_numpy(values).to(device)
    _peak(LiveStorages(), build, Shape(2, shape.width, shape.rows), x_BF, momentum)
    process = _peak(Resident() if device == "cpu" else Cuda(), build, shape, x_BF, momentum)
    with LiveStorages() as live:
        storages = _peak(live, build, shape, x_BF, momentum)
    scratch = NUMBA_SCRATCH if build is dpzv else 0
    is_query = activation_bytes(shape, variant)
    return {
        "process": process - is_query,
        "storages": storages + scratch - is_query,
        "activations": is_query,
    }


def _peak(meter: Meter, build: Build, shape: Shape, x_BF: torch.Tensor, momentum: float) -> int:
    before = meter.now()
    step = build(shape, x_BF, momentum)
    # drawing the first parameters needs more than training them, and is over when training starts
    meter.reset()
    for _ in range(_STEPS):
        step()
    return meter.peak() - before


def report(shape: Shape, repeats: int, device: str) -> dict[str, Any]:
    """Measure every variant `repeats` times in turn, print the table and return the figures."""
    before = environment()
    runs: dict[str, list[dict[str, int]]] = {name: [] for name in VARIANTS}
    for _ in range(repeats):
        for name in VARIANTS:
            runs[name].append(in_fresh_process(measure, name, shape, device))
    peaks = {name: median([run["process"] for run in found]) for name, found in runs.items()}
    variants = {}
    for name, found in runs.items():
        rival = name.replace("DPZV", "first order")
        variants[name] = {
            "peak_bytes": peaks[name],
            "peak_bytes_second_opinion": median([run["storages"] for run in found]),
            "activation_bytes_aside": found[0]["activations"],
            "over_parameters": peaks[name] / shape.parameter_bytes,
            "over_first_order": peaks[name] / peaks[rival],
            "spread": spread([run["process"] for run in found]),
        }
    _print(shape, variants)
    return {
        "shape": asdict(shape),
        "parameter_bytes": shape.parameter_bytes,
        "largest_layer_share": 1 / shape.layers,
        "device": device,
        "repeats": repeats,
        "target": {"variant": "DPZV", "over_parameters_at_most": TARGET},
        "met": variants["DPZV"]["over_parameters"] < TARGET,
        "variants": variants,
        "environment": before,
    }


def _print(shape: Shape, variants: dict[str, dict[str, float]]) -> None:
    rows = [
        [
            name,
            f"{v['peak_bytes'] / 1e6:.1f}",
            f"{v['peak_bytes_second_opinion'] / 1e6:.1f}",
            f"{v['over_parameters']:.3f}",
            verdict(v["over_parameters"], TARGET if name == "DPZV" else None, at_most=True),
            f"{v['over_first_order']:.3f}",
            f"{v['spread']:.2%}",
        ]
        for name, v in variants.items()
    ]
    title = (
        f"Peak memory of a training step, activations aside: {shape.layers} layers of "
        f"{shape.width} x {shape.width}, {shape.parameter_bytes / 4e6:.1f} M parameters = "
        f"{shape.parameter_bytes / 1e6:.1f} MB, batch {shape.rows}"
    )
    columns = [
        "variant",
        "peak MB",
        "2nd opinion MB",
        "/ parameters",
        "target",
        "/ first order",
        "spread",
    ]
    show(title, columns, rows)


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    chosen = parser.parse_args()
    shape = Shape(layers=8, width=384) if chosen.quick else Shape()
    repeats = chosen.repeats or (1 if chosen.quick else 3)
    write("memory", report(shape, repeats, chosen.device), chosen.json)


if __name__ == "__main__":
    main()
