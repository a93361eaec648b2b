"""`raydpzv export`: write a run's weights for other libraries."""

from __future__ import annotations

import math

from raydpzv.weights_export import export
from scenarios.command_options import ExportCommand


def export_command(options: ExportCommand) -> None:
    """Write weights, and print where they are and how many."""
    shapes = export(
        options.run,
        options.out,
        format=options.format,
        party=options.party,
        at=options.at,
        moved=options.moved or (),
    )
    numbers = sum(math.prod(shape) for shape in shapes.values())
    print(f"written: {options.out} ({len(shapes)} tensors, {numbers:,} numbers)")
