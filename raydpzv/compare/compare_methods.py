"""A whole comparison, from what is asked for to its tables: what `raydpzv.compare(...)` does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from raydpzv.compare.file import asked, resolved
from raydpzv.compare.folder import PLAN, begun, left
from raydpzv.compare.plan import Comparison
from raydpzv.compare.results import Compared, collect
from raydpzv.compare.run_comparison import check_ready, one_by_one
from raydpzv.sim.interfaces import Status


def compare(
    what: str | Sequence[str],
    out: str | Path,
    *,
    methods: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    epsilons: Sequence[float | str] | None = None,
    targets: Sequence[float] | None = None,
    heads: str | None = None,
    overrides: Sequence[str] = (),
    progress: Callable[[Mapping[str, Status]], None] | None = None,
    stop: threading.Event | None = None,
) -> Compared:
    """Compare methods x values of ε x seeds on one split and budget, one run after the other in this process.

    what: a comparison by name or path, or scenarios: the first gives data, split, model and budget, all give their
    methods; methods: further ones by name. seeds, epsilons ("none" adds no noise), targets, heads: left out, the
    comparison file's, else 3 seeds, no noise, 0.8 and 0.9. out: the folder to write, or to go on with.
    progress: called ten times a second with where the run in progress stands. Raises InputError before anything is
    written.
    """
    names = [what] if isinstance(what, str) else list(what)
    given = {"seeds": seeds, "epsilons": epsilons, "targets": targets, "heads": heads}
    changes = {k: v if isinstance(v, int | str) else tuple(v) for k, v in given.items() if v is not None}
    comparison, folder = resolved(asked(names, methods, changes), overrides), Path(out)
    check_ready(comparison)
    reasons: dict[str, str] = {}
    with begun(folder, comparison):
        one_by_one(
            left(folder, comparison),
            folder,
            progress=progress or (lambda standing: None),
            ended=lambda planned, reason: reasons.update({planned.folder: reason} if reason else {}),
            stop=stop or threading.Event(),
        )
        compared = collect(comparison, folder, reasons)
        write(comparison, folder, compared)
    return compared


def write(comparison: Comparison, folder: Path, compared: Compared, out: Path | None = None) -> Path:
    """Write tables, pictures and the page of a comparison, by default into its folder; return the page."""
    from raydpzv.report.comparison_page import write_comparison

    return write_comparison(
        out or folder,
        comparison.title or comparison.name,
        (folder / PLAN).read_text(encoding="utf-8"),
        compared.runs,
        compared.curves,
        compared.claims,
        comparison.targets,
        comparison.heads,
    )
