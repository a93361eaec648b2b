"""Execute a notebook's cells without IPython: `python -m tests.helpers.notebooks FILE` prints their
outputs as JSON.

Each code cell is compiled and run in `__main__`; its last expression is shown as a kernel would: as
HTML if the value has it, else by its repr. With --write the outputs are put into the file.
"""

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from raydpzv.compare import run_comparison


def executed(cell: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell; return its outputs in the form of a notebook's file."""
    tree, printed, found = ast.parse(cell), io.StringIO(), list[dict[str, Any]]()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None
    if printed.getvalue():
        found.append(
            {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(True)}
        )
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": [value._repr_html_()], "text/plain": [f"<{type(value).__name__}>"]}
        found.append(
            {"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"}
        )
    return found


def main(path: Path, *, write: bool) -> None:
    """Run the cells of a file in their order, in this process alone: others would import for
    seconds.
    """
    run_comparison.cores = lambda: 1
    notebook, names = json.loads(path.read_text()), {"__name__": "__main__"}
    for number, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), 1):
        cell["execution_count"], cell["outputs"] = number, executed("".join(cell["source"]), names)
        for output in cell["outputs"]:
            if "execution_count" in output:
                output["execution_count"] = number
    if write:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps([cell.get("outputs", []) for cell in notebook["cells"]]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), write="--write" in sys.argv)
