"""Methods of comparisons against what papers print: every printed setting is the paper's, or has
its reason.

It holds for every comparison on a scenario that repeats a paper's runs. The scenario's own method
has what the paper prints for the scenario, or the scenario's value, whose reason is on file. What
is printed for other methods, or for one comparison, is an entry with `methods` or `comparisons` in
`scenarios/papers/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.compare.plan import PlannedLine
from raydpzv.config import catalog
from raydpzv.config.papers import FOLDER, Paper, PrintedValue, flat, shown, table_line
from raydpzv.config.toml import as_tree
from raydpzv.errors import SpecError

_AXES = {"privacy.mode", "privacy.epsilon", "privacy.multiplier", "privacy.delta"}
"""What a comparison's values of ε, or its multiplier, decide."""


def comparison_lines(paper: Paper) -> list[str]:
    """Return the scenarios page's lines on a paper's comparisons.

    Raises SpecError for a value that is neither the paper's nor has a reason, and for an entry that
    no method has.
    """
    names = [
        name
        for name in catalog.names(catalog.COMPARISONS)
        if _file(name).scenario in paper.scenarios
    ]
    if not names:
        return []
    used = {place for name in names for place in _used(paper, name)}
    lines = [
        "",
        f"**Comparisons.** Methods of {', '.join(f'`{name}`' for name in names)} have the values "
        "above of their scenario, or these.",
        "",
        "| setting | methods | here | the paper | where | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for place, entry in enumerate(paper.settings):
        if entry.of_comparisons:
            lines.append(_line(entry, [name for name in names if (place, name) in used], paper))
    return lines if lines[-1].startswith("| `") else lines[:3]


def _line(entry: PrintedValue, names: Sequence[str], paper: Paper) -> str:
    if not names or (entry.comparisons and len(names) < len(entry.comparisons)):
        idle = next(
            (name for name in entry.comparisons or () if name not in names), "any comparison"
        )
        raise SpecError(
            f"{paper.title}: no method of {idle} has {entry.key} = {shown(entry.value)} "
            f"({entry.where}); correct the comparison or drop the entry in {FOLDER.name}/"
        )
    who = f"{', '.join(entry.methods)} in " if entry.methods else ""
    said = entry.says or ("" if entry.why else shown(entry.value))
    verdict = (
        f"**differs**: {entry.why}" if entry.why else "equal as read" if entry.says else "equal"
    )
    methods = who + ", ".join(f"`{name}`" for name in names)
    return table_line(f"`{entry.key}`", methods, shown(entry.value), said, entry.where, verdict)


def _used(paper: Paper, name: str) -> Iterator[tuple[int, str]]:
    """Yield the place of each entry that a method of a comparison has; hold all its methods against
    the paper.
    """
    file = _file(name)
    own = catalog.load(file.scenario)
    for line in resolved(file).lines:
        if line.control:
            continue
        found = [
            (place, entry)
            for place, entry in enumerate(paper.settings)
            if _speaks_of(entry, name, file.scenario, line.spec.method.name, own.method.name)
        ]
        values, kept = flat(as_tree(line.spec)), flat(as_tree(own))
        for key in dict.fromkeys(entry.key for _, entry in found if entry.key not in _AXES):
            of_key = [(place, entry) for place, entry in found if entry.key == key]
            _check(name, line, key, values.get(key), kept.get(key), [entry for _, entry in of_key])
            yield from (
                (p, name) for p, e in of_key if e.of_comparisons and e.value == values.get(key)
            )


def _check(
    name: str, line: PlannedLine, key: str, given: Any, kept: Any, printed: Sequence[PrintedValue]
) -> None:
    """Refuse a value that is neither printed for methods of comparisons nor the scenario's, whose
    reason is on file.
    """
    if given not in [entry.value if entry.of_comparisons else kept for entry in printed]:
        papers = ", ".join(f"{shown(entry.value)} ({entry.where})" for entry in printed)
        raise SpecError(
            f"{name}: {key} of {line} is {shown(given)}, the paper's is {papers}; take the paper's "
            f"value, or give the reason in {FOLDER.name}/, in an entry with comparisons"
        )


def _speaks_of(entry: PrintedValue, name: str, scenario: str, method: str, own: str) -> bool:
    """Return whether an entry is about a method in a comparison on a scenario that has method
    `own`.
    """
    return (
        (entry.scenarios is None or scenario in entry.scenarios)
        and (entry.comparisons is None or name in entry.comparisons)
        and (method in entry.methods if entry.methods is not None else method == own)
    )


def _file(name: str) -> Any:
    path = catalog.comparison(name)
    assert path is not None
    return read_comparison_file(path)
