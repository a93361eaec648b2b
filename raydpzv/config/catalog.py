"""Scenarios by name: the TOML files that come with the program, or a path. Light until one is
loaded.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydpzv.config.tree import read_tree
from raydpzv.errors import SpecError, command, suggest
from raydpzv.foreign import handle, is_foreign, resolve
from raydpzv.registry import METHODS, SCENARIO_FOLDERS

if TYPE_CHECKING:
    from raydpzv.config.scenario import AnyScenario

FOLDER = SCENARIO_FOLDERS[0]
COMPARISONS = FOLDER / "comparisons"
SPACES = FOLDER / "spaces"


def names(folder: Path = FOLDER) -> list[str]:
    """Return the names of what comes with the program in one of its folders: scenarios, comparisons
    or spaces.
    """
    return sorted(path.stem for path in folder.glob("*.toml"))


@dataclass(frozen=True)
class Entry:
    """A scenario, or a comparison by the scenario it is run on, as a list shows it; `source`: its
    data set.
    """

    name: str
    title: str
    horizontal: bool
    source: str


def entries(folder: Path = FOLDER) -> list[Entry]:
    """Return what comes with the program in one of its folders, as a list shows it."""
    found = []
    for name in names(folder):
        tree = _tree(name, folder)
        scenario = tree if folder == FOLDER else _tree(tree["scenario"])
        horizontal = is_horizontal(scenario["method"]["name"])
        found.append(Entry(name, tree.get("title", ""), horizontal, scenario["data"]["source"]))
    return found


def _tree(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    return tomllib.loads((folder / f"{name}.toml").read_text())


def written_keys(name: str) -> set[str]:
    """Return the dotted keys that the file of a scenario sets."""
    tree = _tree(name)
    tables = {key: value for key, value in tree.items() if isinstance(value, dict)}
    return {*tree} - {*tables} | {
        f"{table}.{key}" for table, value in tables.items() for key in value
    }


def is_horizontal(method: str) -> bool:
    """Return a method's kind: by its room, which imports nothing, or by its descriptor if it lives
    elsewhere.
    """
    for kind in ("vertical", "horizontal"):
        if METHODS.module_of(method).startswith(f"raydpzv.methods.{kind}."):
            return kind == "horizontal"
    return bool(METHODS[method].one_model)


def load(scenario: str, overrides: Sequence[str] = ()) -> AnyScenario:
    """Load a scenario by name or path, with `key=value` overrides. Raises SpecError.

    Paths of data in a file count from the file's folder; a scenario that comes with the program has
    no data beside it, so that its paths count from the working folder. A word with a colon names a
    scenario of a module or of this process.
    """
    from raydpzv.config import toml  # and with it pydantic and the methods: not for a list of names

    if is_object(scenario):
        found = _checked(resolve(scenario, "scenario"), scenario)
        return toml.override(found, overrides) if overrides else found
    path, base = _file(scenario)
    return toml.load(path, overrides, base)


def written(scenario: str) -> dict[str, Any]:
    """Return what a scenario sets, by name or path, before defaults; of an object all that it has.

    Settings applied to it make the same scenario as `load` with these overrides. Raises SpecError.
    """
    from raydpzv.config import toml

    if is_object(scenario):
        return toml.as_tree(_checked(resolve(scenario, "scenario"), scenario))
    return toml.written(*_file(scenario))


def _file(scenario: str) -> tuple[Path, Path | None]:
    """Return a scenario's file, and the folder that paths of its data count from (None: the
    file's).
    """
    refuse_standard_input(scenario)
    path, base = Path(scenario), None
    if path.suffix != ".toml" and not path.exists():
        path, base = FOLDER / f"{scenario}.toml", Path()
        if scenario in names(COMPARISONS):
            raise SpecError(
                f"{scenario}: is a comparison of many runs: {command('compare', scenario)}"
            )
        if scenario not in names():
            raise SpecError(
                f'scenario "{scenario}" is unknown. {suggest(scenario, names())}Give a path to a '
                "TOML file or a name "
                "that raydpzv list prints"
            )
    return path, base


def refuse_standard_input(scenario: str) -> None:
    """Raise SpecError for "-", which other programs take for their standard input."""
    if scenario == "-":
        raise SpecError(
            "-: no scenario is read from standard input; save it as a .toml file and give its path"
        )


def is_object(scenario: str) -> bool:
    """Return whether a word names a scenario by "module:attribute", and no file."""
    path = Path(scenario)
    return is_foreign(scenario) and path.suffix != ".toml" and not path.exists()


def name_of(scenario: AnyScenario | str) -> str:
    """Return the name by which `load` finds a scenario in this process. Raises SpecError for any
    other object.
    """
    if isinstance(scenario, str):
        return scenario
    from raydpzv.config.toml import scenario_sha256

    checked = _checked(scenario, "scenario")
    return handle(checked, label_of(checked), scenario_sha256(checked))


def label_of(scenario: AnyScenario | str) -> str:
    """Return what a scenario is called in tables: its own name or title, else its file's or its
    method's.
    """
    found = load(scenario) if isinstance(scenario, str) and is_object(scenario) else scenario
    if isinstance(found, str):
        return Path(found).stem
    method: str = found.method.name
    own = method.partition(":")[2].partition("-")[0]
    return found.name or found.title or own or method


def scenario_of(scenario: AnyScenario | str) -> AnyScenario:
    """Return a scenario that is given by its name or path, or as what it is. Raises SpecError for
    anything else.
    """
    return load(scenario) if isinstance(scenario, str) else _checked(scenario, "scenario")


def _checked(found: Any, name: str) -> AnyScenario:
    from raydpzv.config.scenario import AnyScenario
    from raydpzv.config.toml import in_own_values

    if isinstance(found, AnyScenario):
        return in_own_values(found)
    raise SpecError(
        f"{name}: wanted a scenario's name, its TOML file, or what raydpzv.horizontal, vertical or "
        f"load returns, got {type(found).__name__}"
    )


def comparison(name: str) -> Path | None:
    """Return the file of a comparison by name or path; None if it is no comparison but, maybe, a
    scenario.
    """
    path = Path(name)
    if path.suffix != ".toml" and not path.exists():
        found = COMPARISONS / f"{name}.toml"
        return found if found.is_file() and name not in names() else None
    try:
        tree = read_tree(path, "the comparison file")
    except SpecError:
        return None  # loaded as a scenario, it says what is wrong with it
    return path if isinstance(tree.get("scenario"), str) else None


def space(name: str) -> Path:
    """Return the file of a space by name or path. Raises SpecError."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    known = names(SPACES)
    if name not in known:
        raise SpecError(
            f'--space: "{name}" is unknown. {suggest(name, known)}Give a path to a TOML file or '
            f"one of: {', '.join(known)}"
        )
    return SPACES / f"{name}.toml"
