from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope: dict[str, object] = {}
    exec(example, scope)
    said = capsys.readouterr().out
    assert "100 updates, accuracy" in said
    assert "PRIVATE. ε = 1" in said
