import io
from contextlib import nullcontext

from rich.console import Console

from scenarios import display, screen
from scenarios.commands.audit import _progress


def test_progress_names_steps_once_they_are_counted(monkeypatch):
    stream, lines = io.StringIO(), []
    monkeypatch.setattr(screen, "console", lambda **_: Console(file=stream))
    monkeypatch.setattr(display, "repeated", lambda interval, act: nullcontext(lines.append(act)))
    with _progress(quiet=False) as watch:
        lines[0]()
        watch(2, 7)
        lines[0]()
    assert stream.getvalue().splitlines() == [
        "audit: reading the run and its data",
        "audit: 2 of 7 steps",
    ]
