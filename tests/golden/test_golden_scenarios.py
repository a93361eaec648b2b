"""Every scenario's and comparison's resolved values, defaults included, as they are on record
beside this file.

They change only together with a scenario file, or where a default changes, which changes every run
that relies on it.
After a change that is meant: `python -m tests.golden.test_golden_scenarios`, and the differences go
into the commit.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.config import catalog
from raydpzv.config.paths import PATHS
from raydpzv.config.toml import as_tree

RECORD = Path(__file__).parent / "scenarios.json"
AGAIN = (
    "if meant: `python -m tests.golden.test_golden_scenarios`, and commit what it writes beside the"
    " change"
)


def scenario_values(name: str) -> dict[str, Any]:
    return as_plain(portable(as_tree(catalog.load(name))))


def comparison_values(name: str) -> dict[str, Any]:
    """The comparison's own values once, and of each line's scenario what differs from the first
    line's.
    """
    path = catalog.comparison(name)
    assert path is not None
    found = resolved(read_comparison_file(path))
    trees = [flat(as_plain(portable(as_tree(line.spec)))) for line in found.lines]
    return as_plain(
        {
            "name": found.name,
            "title": found.title,
            "seeds": [int(seed) for seed in found.seeds],
            "targets": list(found.targets),
            "shared": {
                k: v for k, v in trees[0].items() if all(k in t and t[k] == v for t in trees)
            },
            "lines": [
                {
                    "label": line.label,
                    "epsilon": line.epsilon,
                    "control": line.control,
                    "own": {
                        k: v
                        for k, v in tree.items()
                        if not all(k in t and t[k] == v for t in trees)
                    },
                }
                for line, tree in zip(found.lines, trees, strict=True)
            ],
        }
    )


def portable(tree: dict[str, Any]) -> dict[str, Any]:
    """Paths as the file has them: those of scenarios that come with the program count from the
    working folder.
    """
    for table, key in PATHS:
        if key in tree.get(table, {}):
            tree[table][key] = os.path.relpath(tree[table][key])
    return tree


def flat(tree: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= (
            flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
        )
    return found


def as_plain(value: Any) -> Any:
    return json.loads(json.dumps(value, sort_keys=True))


def everything() -> dict[str, dict[str, Any]]:
    return {
        "scenarios": {name: scenario_values(name) for name in catalog.names()},
        "comparisons": {
            name: comparison_values(name) for name in catalog.names(catalog.COMPARISONS)
        },
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    before, after = flat(before), flat(after)
    return [
        f"{key}: was {before.get(key, 'absent')!r}, is {after.get(key, 'absent')!r}"
        for key in sorted({*before, *after})
        if before.get(key, "absent") != after.get(key, "absent")
    ]


def on_record() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", catalog.names())
def test_a_scenarios_values_are_those_on_record(name):
    changed = differences(on_record()["scenarios"].get(name, {}), scenario_values(name))
    assert not changed, f"{name}: {'; '.join(changed)}; {AGAIN}"


@pytest.mark.parametrize("name", catalog.names(catalog.COMPARISONS))
def test_a_comparisons_values_are_those_on_record(name):
    changed = differences(on_record()["comparisons"].get(name, {}), comparison_values(name))
    assert not changed, f"{name}: {'; '.join(changed)}; {AGAIN}"


def test_nothing_is_on_record_that_is_gone():
    record = on_record()
    assert sorted(record["scenarios"]) == catalog.names(), AGAIN
    assert sorted(record["comparisons"]) == sorted(catalog.names(catalog.COMPARISONS)), AGAIN


if __name__ == "__main__":
    RECORD.write_text(json.dumps(everything(), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
