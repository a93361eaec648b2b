from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[3] / "README.md").read_text()

pytestmark = pytest.mark.ray


def test_the_python_example_runs(ray_session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope: dict[str, object] = {}
    exec(example, scope)
    assert scope["table"].num_rows >= 3
    assert scope["run"].summary["updates"] == 500
