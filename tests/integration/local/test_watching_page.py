"""What docs/watching.md shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[3] / "docs" / "watching.md").read_text()


def test_the_callback_of_the_page_hears_the_runs_evaluations(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    shown: dict[str, Any] = {}
    exec(example, shown)
    lines = capsys.readouterr().out.splitlines()
    rows = shown["run"].rows("evaluation").to_pylist()
    best = max(row["accuracy"] for row in rows if row["part"] == "validation")
    assert lines[-1] == f"done after 200 updates, at best {best:.3f}"
    assert lines[-2].endswith(f": {best:.3f}")
