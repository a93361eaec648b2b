"""Names that tell the runs of one report apart: the method, and what differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_MOST = 3  # settings in one label
_IGNORED = ("name", "title", "seed", "method.name")

Facts = Sequence[Mapping[str, Any]]


def labels(summaries: Facts, scenarios: Facts = ()) -> list[str]:
    """Return one label per run: its method, and what runs of the same method differ in.

    That is the scenario and the seed, then settings; scenarios: the runs' settings as trees. Runs that no few
    settings tell apart are numbered.
    """
    names = [str(s.get("method")) for s in summaries]
    names = _distinguished(names, summaries, _scenario_and_seed)
    if scenarios:
        names = _distinguished(names, [dict(_leaves(tree)) for tree in scenarios], _settings)
    if len(set(names)) < len(names):
        return [f"{name}, run {i}" for i, name in enumerate(names, 1)]
    return names


def _distinguished(names: Sequence[str], facts: Facts, say: Callable[[Facts], list[list[str]]]) -> list[str]:
    """Return the names, those that several runs share with what is to be said about just these runs."""
    found = list(names)
    for name in {n for n in names if names.count(n) > 1}:
        same = [i for i, n in enumerate(names) if n == name]
        for i, words in zip(same, say([facts[i] for i in same]), strict=True):
            found[i] = ", ".join(dict.fromkeys([name, *words]))
    return found


def _scenario_and_seed(summaries: Facts) -> list[list[str]]:
    differing = [k for k in ("scenario", "seed") if len({str(s.get(k)) for s in summaries}) > 1]
    return [[str(s.get(k)) if k == "scenario" else f"{k} {s.get(k)}" for k in differing] for s in summaries]


def _settings(settings: Facts) -> list[list[str]]:
    """Return the settings in which the runs differ, the method's alone if they do; nothing if they are too many."""
    keys = [k for k in dict.fromkeys(k for s in settings for k in s) if len({s.get(k) for s in settings}) > 1]
    method = [k for k in keys if k.startswith("method.")]
    for chosen in (method, keys):
        words = [[f"{k.split('.')[-1]}={s[k]}" for k in chosen if k in s] for s in settings]
        if len(chosen) <= _MOST and len({tuple(w) for w in words}) == len(settings):
            return words
    return [[] for _ in settings]


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of a tree as (dotted key, value in words)."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        elif f"{path}{key}" not in _IGNORED:
            yield f"{path}{key}", value if isinstance(value, str) else json.dumps(value, default=str)
