"""The docstrings under the fields of classes, from their source: Python keeps none of them."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from typing import Any


def docstring(cls: type[Any], field: str) -> str | None:
    """Return the docstring under a field, where it was declared last, on one line."""
    for base in cls.__mro__[:-1]:
        if (text := _docstrings(base.__module__).get((base.__name__, field))) is not None:
            return " ".join(text.split())
    return None


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings under the fields of a module's classes, by class and field."""
    found = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            for field, text in pairwise(node.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(said))
                    ):
                        found[node.name, name] = said
    return found
