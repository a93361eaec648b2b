"""`raydpzv compare`: methods, values of ε and seeds on one scenario, side by side, and one table of
them.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from raydpzv.compare import compare_methods
from raydpzv.compare.compare_methods import PoolWatch
from raydpzv.compare.file import ComparisonFile, asked, resolved
from raydpzv.compare.plan import MOST_SEEDS, Comparison, Planned
from raydpzv.compare.results import FAILED, OK
from raydpzv.compare.run_comparison import PoolOptions
from raydpzv.config import catalog
from raydpzv.errors import SpecError, missing
from raydpzv.report.comparison_table import Compared
from scenarios import screen
from scenarios.command_options import CompareCommand, Execution
from scenarios.comparison_progress import comparison_progress, show_comparison
from scenarios.exit_codes import leave
from scenarios.options import chosen_runner, numbers, output_folder
from scenarios.progress import foreground


def compare_command(options: CompareCommand) -> None:
    """Make a new comparison, or resume the one in `out`."""
    if options.latex and options.as_json:
        raise SpecError(
            "--latex: prints a table in place of JSON; choose one of --latex and --json"
        )
    comparison = resolved(asked_for(options), options.set_ or [])
    carry_out(
        comparison,
        output_folder(options.out, f"compare-{comparison.name}"),
        options,
        latex=options.latex,
        notes=[] if options.epsilons else noise_dropped(options.what, comparison),
    )


def carry_out(
    comparison: Comparison,
    folder: Path,
    how: Execution,
    *,
    latex: bool = False,
    notes: Sequence[str] = (),
) -> None:
    """Make the remaining runs of a comparison, then write and print its tables.

    notes: sentences to print before the first run, in addition to those of the lines.
    Exits with 130 if the user stopped it, raises RunError if runs failed otherwise than by
    diverging.
    """
    console = screen.console(stderr=True)
    said = (line.spec.note for line in comparison.lines)
    for note in dict.fromkeys([*notes, *(note for note in said if note)]):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    compared, stopped = made(comparison, folder, how, console)
    show_comparison(comparison, folder, compared, as_json=how.as_json, latex=latex)
    rows = compared.runs.to_pylist()
    failed = [f"{row['run']}: {row['reason']}" for row in rows if row["outcome"] == FAILED]
    some = any(row["outcome"] == OK for row in rows if not row["control"])
    nothing = (
        f"no method has a result: every run diverged or failed (see {folder / 'comparison.html'})"
    )
    leave(folder, f"{len(rows)} runs", failed, stopped=stopped, nothing="" if some else nothing)


def made(
    comparison: Comparison, folder: Path, how: Execution, console: Console
) -> tuple[Compared, bool]:
    """Make the remaining runs of a comparison and write its tables; return them, and whether the
    user stopped it.
    """
    stopped = threading.Event()

    @contextmanager
    def watched(todo: list[Planned]) -> Iterator[PoolWatch]:
        shown = comparison_progress(comparison, todo, console, stopped, quiet=how.quiet)
        with foreground(console, stopped), shown as watch:
            yield watch

    pool = PoolOptions("ray" if _on_ray(how) else "local", how.jobs, how.address, how.verbose)
    return compare_methods.carry_out(comparison, folder, pool, watched), stopped.is_set()


def noise_dropped(what: Sequence[str], comparison: Comparison) -> list[str]:
    """Return a sentence for each scenario that adds noise by itself but none in a comparison
    without values of ε.
    """
    if catalog.comparison(what[0]) is not None or any(
        line.epsilon is not None for line in comparison.lines
    ):
        return []
    noisy = [name for name in what if catalog.load(name).noised]
    return [f"noise of {name} dropped: no --epsilons given" for name in noisy]


def _on_ray(how: Execution) -> bool:
    """Return whether runs go to Ray: asked for, or there is Ray and more than one core to use."""
    runner, address = chosen_runner(how.runner, "auto"), how.address
    if runner == "local" and address:
        raise SpecError("--address: goes with --runner ray; without Ray there is nothing to join")
    if runner != "auto":
        return runner == "ray"
    if importlib.util.find_spec("ray") is None:
        if address:
            raise missing("--address: Ray", "ray")
        return False
    return bool(address or os.environ.get("RAY_ADDRESS")) or (
        (os.cpu_count() or 1) > 1 and how.jobs != 1
    )


def asked_for(options: CompareCommand) -> ComparisonFile:
    """Return the comparison that the command line asks for."""
    given = {
        "seeds": _seeds(options.seeds),
        "epsilons": None if options.epsilons is None else _epsilons(options.epsilons),
        "targets": None if options.targets is None else numbers("--targets", options.targets),
        "heads": options.heads,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    listed = [name.strip() for name in (options.methods or "").split(",") if name.strip()]
    return asked(options.what, listed, changes)


def _seeds(text: str | None) -> int | tuple[int, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (-1,)
    many = len(found) == 1 and "," not in text
    if any(not 0 <= seed < 2**63 for seed in found) or (many and not 0 < found[0] <= MOST_SEEDS):
        raise SpecError(
            f'--seeds: wanted how many (3, at most {MOST_SEEDS:,}) or which (0,7,9), got "{text}"'
        )
    return found[0] if many else found


def _epsilons(text: str) -> tuple[float | str, ...]:
    return tuple(
        epsilon
        for part in text.split(",")
        for epsilon in (["none"] if part.strip() == "none" else numbers("--epsilons", part))
    )
