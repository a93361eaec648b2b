"""The core starts light, and modules, names and files keep their places; `make style` checks the
layers.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.helpers.programs import Forked, said

ROOT = Path(__file__).parents[1]


LONG = 500
OUTER = {("actors",), ("scenarios",), ("benchmarks",)}
CLASSES_TWICE = {
    "_Driver": "private to the vertical and to the horizontal driver",
    "_Work": "private to each pool of actors: what one of them is doing",
}
MODULES_TWICE = {
    "privacy": "a command, and the privacy tables of a report",
    "publish": "a command, and what it writes of a run folder",
    "__init__": "every package has one",
    "__main__": "python -m of a package",
    "vertical": "the vertical half of its room",
    "horizontal": "the horizontal half of its room",
    "driver": "starts a run on actors: the vertical, the horizontal and what both share",
    "server_actor": "the server's actor: the vertical and the horizontal one, and what both share",
    "executor": "who carries out orders: the interface, and on actors",
    "table": "rows under named columns: data, and what a report prints",
    "frames": "bytes of a message: its body on the wire, and what surrounds it on a connection",
    "files": "small helpers for the room's files: the program's, the ledger's, those with data",
    "runner": "what carries a run out: found by name, and the one on Ray",
    "device": "where tensors live: directions made there, and an actor's share of it",
    "users": "one user's records: how data are shared out, and how sums over users are protected",
}


def program_files():
    return [
        p
        for room in ("raydpzv", "actors", "scenarios")
        for p in sorted((ROOT / room).rglob("*.py"))
    ]


def python_files():
    return [*program_files(), *sorted((ROOT / "benchmarks").rglob("*.py"))]


def test_the_core_runs_where_ray_pydantic_and_the_accountant_are_not_installed():
    """The GPU machines' benchmarks import these rooms; a run without them must not need what they
    do not use.
    """
    code = (
        "import sys\nfor name in ('ray', 'pydantic', 'dp_accounting', 'matplotlib', 'typer', "
        "'rich'):\n    sys.modules[name] = None\nimport raydpzv.methods.vertical.dpzv, "
        "raydpzv.sim.virtual, raydpzv.records.recorder, raydpzv.data.sources\n"
    )
    said(Forked(["-c", code]))


def test_loading_a_scenario_imports_neither_ray_nor_the_accountant_nor_torch_compiler():
    code = (
        "import sys, scenarios\nfrom raydpzv.experiment.prepare import prepare\n"
        "prepare(scenarios.load('digits_dpzv'))\nprint([m for m in ('ray', 'dp_accounting', "
        "'matplotlib', 'torch._dynamo') if m in sys.modules])"
    )
    assert said(Forked(["-c", code])).strip() == "[]"


class Facts(NamedTuple):
    """What the tests below ask of a source; imports: also inside functions and for types alone."""

    says: str | None
    imports: set[str]
    classes: list[str]
    asks: list[int]


@cache
def facts(source: str) -> Facts:
    """Parse a source once for all tests."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return Facts(
        ast.get_docstring(tree),
        found,
        classes,
        [node.lineno for node in nodes if asks_for_kind(node)],
    )


def asks_for_kind(node: ast.AST) -> bool:
    """Tell whether a node asks if something is vertical or horizontal, by its class or its kind."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
        return bool(
            {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)} & KINDS
        )
    if isinstance(node, ast.Compare):
        values = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        return bool(values & {"vertical", "horizontal"})
    return False


def circles(sources):
    """Pairs of modules that import each other; sources: by the modules' names."""
    known = {
        name: facts(source).imports & set(sources) - {name} for name, source in sources.items()
    }
    return {
        (one, other) for one in known for other in known[one] if one < other and one in known[other]
    }


def test_no_two_modules_import_each_other():
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for path in program_files()
        if path.stem != "__init__"
    }
    assert circles(sources) == set()
    one, other = "raydpzv.files", "raydpzv.errors"
    assert f"from {other} import" in sources[one]
    circle = {**sources, other: f"{sources[other]}\ndef late():\n    from {one} import as_json\n"}
    assert circles(circle) == {(other, one)}, "control: also inside a function"


def test_files_say_what_they_are():
    for path in python_files():
        assert facts(path.read_text()).says, path


def test_long_files_are_listed(record_property):
    """Length is a smell to look at, not a law: `pytest -rP tests/test_architecture.py` shows the
    list.
    """
    sizes = {
        p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in python_files()
    }
    long = {path: lines for path, lines in sorted(sizes.items()) if lines > LONG}
    record_property("long_files", long)
    for path, lines in long.items():
        print(f"{path}: {lines} lines; one idea a file?")


def test_every_unit_test_is_where_its_module_is():
    """tests/unit/<room>/test_<module>.py, or test_<module>_<what>.py; a room may have tests of its
    own name.
    """
    for path in sorted((ROOT / "tests" / "unit").rglob("*.py")):
        folder = path.parent.relative_to(ROOT / "tests" / "unit")
        room = ROOT / folder if folder.parts[:1] in OUTER else ROOT / "raydpzv" / folder
        assert room.is_dir(), (
            f"{path.relative_to(ROOT)}: wanted a room, {room.relative_to(ROOT)} is none"
        )
        words = path.stem.removeprefix("test_").split("_")
        modules = {p.stem for p in room.glob("*.py")} | {room.name}
        begun = {"_".join(words[: n + 1]) for n in range(len(words))}
        assert path.stem.startswith("test_"), (
            f"{path.relative_to(ROOT)}: shared pieces live in tests/helpers"
        )
        assert begun & modules, (
            f"{path.relative_to(ROOT)}: {room.relative_to(ROOT)} has no module of that name; move "
            "or rename it"
        )


def test_no_class_name_has_two_meanings():
    places = defaultdict(list)
    for path in program_files():
        for name in facts(path.read_text()).classes:
            places[name].append(path.relative_to(ROOT).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {k: v for k, v in twice.items() if k not in CLASSES_TWICE} == {}
    assert set(CLASSES_TWICE) <= set(twice), "take out of CLASSES_TWICE what is there once"


def test_no_module_name_has_two_meanings():
    places = defaultdict(list)
    for path in program_files():
        places[path.stem].append(path.relative_to(ROOT).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {k: v for k, v in twice.items() if k not in MODULES_TWICE} == {}
    assert set(MODULES_TWICE) <= set(twice), "take out of MODULES_TWICE what is there once"


def test_the_experiment_room_stays_one_subject():
    """It held 43 modules of seven subjects once."""
    modules = [
        p.name for p in (ROOT / "raydpzv" / "experiment").glob("*.py") if p.stem != "__init__"
    ]
    assert len(modules) <= 20, sorted(modules)


def test_nothing_unfinished_is_left():
    words = [a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"))]
    for path in python_files():
        assert not any(word in path.read_text() for word in words), path


KINDS = {f"{kind}{what}" for kind in ("Vertical", "Horizontal") for what in ("Scenario", "Method")}
KINDS |= {"PreparedVertical", "PreparedHorizontal"}
WINGS = (
    "raydpzv/methods/",
    "actors/vertical/",
    "actors/horizontal/",  # descriptor.py loads methods
    *(
        f"raydpzv/experiment/{name}.py"
        for name in ("vertical", "horizontal", "run_vertical", "run_horizontal")
    ),
    "raydpzv/config/",  # loads scenarios
)


def test_a_scenario_and_a_prepared_run_answer_for_their_kind():
    """Vertical or horizontal is asked in the two wings and where they are loaded, nowhere else."""
    for path in program_files():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(WINGS):
            assert facts(path.read_text()).asks == [], (
                f"{name}: let the scenario or the prepared run answer"
            )


def test_a_question_for_the_kind_is_found():
    controls = (
        'if spec.kind == "vertical": pass',
        "x = 1 if isinstance(spec, VerticalScenario) else 2",
        "isinstance(prepared, PreparedHorizontal | int)",
        'names = [n for n in METHODS if METHODS[n].kind != "horizontal"]',
    )
    assert [facts(control).asks for control in controls] == [[1]] * 4
    assert facts("found = PLANS[spec.kind](spec)").asks == []
