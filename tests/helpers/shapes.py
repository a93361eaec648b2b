"""Count statements, and the shapes that make code hard to read: long argument lists, wide classes."""

import ast
from collections.abc import Iterable
from pathlib import Path

ARGUMENTS, FIELDS, STATEMENTS = 6, 12, 300


def statements(source: str) -> int:
    """Return how many statements a module has; imports, docstrings and `...` are none."""
    return sum(
        isinstance(node, ast.stmt)
        and not isinstance(node, (ast.Import, ast.ImportFrom))
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(ast.parse(source))
    )


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many arguments a caller may pass, without `self` and `cls`."""
    spec = function.args
    names = [arg.arg for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def fields(cls: ast.ClassDef) -> set[str]:
    """Return the names a class annotates and those its methods assign on `self`."""
    annotated = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assigned = {
        node.attr
        for method in cls.body
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return annotated | assigned


def heavy(source: str) -> dict[str, list[str]]:
    """Return the functions with many arguments and the classes with many fields, by name."""
    nodes = list(ast.walk(ast.parse(source)))
    functions = (
        node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    classes = (node for node in nodes if isinstance(node, ast.ClassDef))
    return {
        "functions": [node.name for node in functions if arguments(node) > ARGUMENTS],
        "classes": [node.name for node in classes if len(fields(node)) > FIELDS],
        "files": ["this file"] if statements(source) > STATEMENTS else [],
    }


def heavy_files(paths: Iterable[Path], root: Path) -> dict[str, list[str]]:
    """Return what `heavy` finds in each file, as "path: name"."""
    found: dict[str, list[str]] = {"functions": [], "classes": [], "files": []}
    for path in paths:
        for kind, names in heavy(path.read_text()).items():
            found[kind] += [f"{path.relative_to(root)}: {name}" for name in names]
    return found
