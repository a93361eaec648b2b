"""What stands under each field of a class: its line in the settings page."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap


def docstrings_of(cls: type) -> dict[str, str]:
    """Return the docstring under each annotated name of a class, read from its source; bases are not looked at."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        node.target.id: inspect.cleandoc(after.value.value)  # type: ignore[attr-defined]
        for node, after in itertools.pairwise(body.body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_text(after)
    }


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
