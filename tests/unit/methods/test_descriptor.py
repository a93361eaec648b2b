"""Nothing outside a method's own file asks which method it is, and the program's words are the
field's.
"""

import ast
import functools
import inspect
import io
import re
import tokenize
from pathlib import Path

from raydpzv.registry import METHODS

ROOT = Path(__file__).parents[3]
ROOMS = ("raydpzv", "actors", "scenarios")
GONE = {
    "crew",
    "cast",
    "understudy",
    "desk",
    "keeper",
    "bookkeeping",
    "entrant",
    "opponent",
    "opponents",
    "at_once",
    "attentive",
    "patience",
    "reply_bytes",
    "agenda",
    "federation",
    "federations",
    "sender",
}
"""Words that the field does not use for what they meant here (`docs/glossary.md` has those it
uses).
"""


def files():
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def own_classes():
    """Configurations and roles: the name of each class of a method's file, with that file."""
    found = {}
    for path in (ROOT / "raydpzv" / "methods").glob("*/*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = path
    for name in METHODS:
        config = METHODS[name].config
        found[config.__name__] = Path(inspect.getfile(config))
    return found


def type_tests(tree):
    """Names of the classes that `isinstance`, `issubclass` and `match` ask for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.MatchClass):
            yield from names(node.cls)
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if called and node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
            yield from names(node.args[1])


def names(node):
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def test_nobody_asks_which_method_it_is():
    owners = own_classes()
    assert len(owners) > 40
    asked = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files()
        if any(name in path.read_text() for name in owners)  # parsing all files takes seconds
        for name in type_tests(ast.parse(path.read_text()))
        if name in owners and owners[name] != path
    ]
    assert asked == [], "say it in the descriptor (raydpzv/methods/descriptor.py)"


@functools.cache
def words(identifier):
    """The identifier in lower case, and its parts."""
    return {
        identifier.lower(),
        *re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().split("_"),
    }


def test_names_are_the_fields():
    found = []
    for path in files():
        if words(path.stem) & GONE:
            found.append(str(path.relative_to(ROOT)))
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            # of typing, of Arrow and of NumPy, by their own names
            is_typing_cast = token.string in ("cast", "can_cast")
            name = token.string.strip("_")
            if (
                token.type == tokenize.NAME
                and not is_typing_cast
                and (words(name) & GONE or name == "aside")
            ):
                found.append(f"{path.relative_to(ROOT)}:{token.start[0]} {token.string}")
    assert found == []
