"""A whole comparison, from its arguments to its tables: the work of `raydpzv.compare(...)`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from raydpzv.compare.file import asked, resolved
from raydpzv.compare.folder import PLAN, opened, unfinished
from raydpzv.compare.plan import Comparison
from raydpzv.compare.results import collect
from raydpzv.compare.run_comparison import check_ready, one_by_one
from raydpzv.errors import InputError
from raydpzv.report.comparison_table import Compared
from raydpzv.sim.interfaces import Status


class Changes(TypedDict, total=False):
    """Arguments of `compare` that take the place of those of a comparison file."""

    seeds: int | Sequence[int] | None
    epsilons: Sequence[float | str] | None
    targets: Sequence[float] | None
    heads: str | None


def compare(
    source: str | Sequence[str],
    out: str | Path,
    *,
    methods: Sequence[str] = (),
    overrides: Sequence[str] = (),
    progress: Callable[[Mapping[str, Status]], None] | None = None,
    stop: threading.Event | None = None,
    **changes: Unpack[Changes],
) -> Compared:
    """Compare methods x values of ε x seeds on one split and budget, one run after the other in this process.

    source: a comparison by name or path, or scenarios: the first gives data, split, model and budget, all give their
    methods; methods: further ones by name. seeds, epsilons ("none" adds no noise), targets, heads: left out, the
    comparison file's, else 3 seeds, no noise, 0.8 and 0.9. out: the folder to write, or to resume.
    progress: called ten times a second with the status of the run in progress. Raises InputError before anything is
    written.
    """
    if unknown := set(changes) - set(Changes.__annotations__):
        raise TypeError(f"compare() got an unexpected keyword argument '{min(unknown)}'")
    one = isinstance(source, str) or not isinstance(source, Sequence)
    names: list[Any] = [source] if one else list(source)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"compare: wanted names or TOML files, got a {type(name).__name__}; a scenario file names your own "
                'model and data as "module:attribute" (docs/own.md)'
            )
    asked_for = {key: value for key, value in dict[str, Any](**changes).items() if value is not None}
    given = {key: v if isinstance(v, int | str) else tuple(v) for key, v in asked_for.items()}
    comparison, folder = resolved(asked(names, methods, given), overrides), Path(out)
    check_ready(comparison)
    reasons: dict[str, str] = {}
    with opened(folder, comparison):
        one_by_one(
            unfinished(folder, comparison),
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
    from raydpzv.report.comparison_page import About, write_comparison

    plan = (folder / PLAN).read_text(encoding="utf-8")
    about = About(comparison.title or comparison.name, plan, comparison.targets, comparison.heads)
    return write_comparison(out or folder, compared, about)
