"""The README's commands exist."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from raydpzv.config.catalog import names
from scenarios.cli import app

README = (Path(__file__).parents[3] / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_every_command_and_option_shown_exists():
    lines = " ".join(blocks("sh")).replace("\\\n", " ").splitlines()
    commands = [line.split("#")[0].split() for line in lines if line.strip().startswith("raydpzv")]
    assert len(commands) >= 8
    for words in commands:
        shown = CliRunner().invoke(app, [words[1], "--help"])
        assert shown.exit_code == 0, words
        for option in (w for w in words if w.startswith("--")):
            assert option in shown.output, (words[1], option)
        if words[1] in ("run", "privacy"):
            assert words[2] in names()
