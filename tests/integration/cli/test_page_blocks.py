"""Every block of shell and Python on a page runs, with less work where a line takes long; every
TOML block is one.

A page says before a block why it is not run: `<!-- not run: reason -->`.
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import raydpzv
from raydpzv.config.settings_reference import settings_page
from tests.helpers.commands import call
from tests.helpers.report_views import without_pixels
from tests.helpers.small_horizontal import stop_after
from tests.test_budgets import PAGES, ROOT

ELSEWHERE = {
    ("CONTRIBUTING.md", "python"): "integration/local/test_contributing.py",
    ("docs/data.md", "mkdir -p runs"): "integration/cli/test_readme.py",
    ("README.md", "python"): "integration/local/test_readme_python.py",
    ("docs/cluster.md", "python"): "integration/ray/test_job.py",
    ("docs/cluster.md", "sh"): "integration/ray/test_job.py",
    ("docs/cluster.md", "yaml"): "integration/cli/test_rayjob.py",
    ("docs/seed-file.md", "json"): "golden/test_golden_seed_files.py",
    ("docs/tune.md", "python"): "integration/ray/test_tune_page.py",
    ("docs/tune.md", "sh"): "integration/ray/test_tune_page.py",
    ("docs/watching.md", "python"): "integration/local/test_watching_page.py",
    ("docs/watching.md", "sh"): "integration/local/test_watching_page.py",
}
"""Blocks that have a test of their own, by page and language or first line."""
FEW = ("--set", "budget.updates=2", "--set", "evaluate.every=1", "--quiet", "--runner", "local")
SHORTER = {
    "run": FEW,
    "compare": (*FEW, "--seeds", "1", "--jobs", "1"),
    "tune": (*FEW[:-2], "--samples", "1", "--jobs", "1"),
    "audit": ("--canaries", "4", "--quiet"),
}
"""What is added to a command. The last value of an option counts."""
SMALLER = {"run digits_users_private": ("--set", "method.key_bits=2048")}
"""What is added to a command with a scenario."""
LESS = {"--at": "1", "--since": "1", "--runs": "20"}
"""What an option has in place of the page's number."""
FIRST = {
    "docs/audit.md": {
        "first": ["digits_dpzv"],
        "vafl": ["vafl", "privacy.mode=paper", "privacy.sigma=1"],
    },
    "docs/pitfalls.md": {"first": ["digits_private"]},
    "docs/run-folder.md": {"first": ["digits_decomfl"]},
    "docs/seed-file.md": {"first": ["digits_decomfl"]},
}
"""Runs that a page supposes: name, scenario and settings."""
STOPPED = ("docs/pitfalls.md", "docs/run-folder.md")
"""Pages that resume the run."""
NAMES = {"docs/compare.md": ("my_comparison.toml",)}
"""Files of a page's TOML blocks, where no comment names them."""
REFUSED = {
    "raydpzv run bank.toml": ("README.md", "docs/data.md"),
    "raydpzv privacy digits_private --set data.scale=standard": ("docs/pitfalls.md",),
    "raydpzv privacy digits_private --set data.split=stratified": ("docs/pitfalls.md",),
    "raydpzv privacy digits_private --set privacy.noise=seeded": ("docs/pitfalls.md",),
}
"""Lines that are refused, as the text beside them says, and their pages."""


class Block(NamedTuple):
    """A fenced block; reason: why it is not run, "": it is."""

    reason: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    pattern = r"(?ms)^ *(?:<!-- not run: ([^>]+) -->\n *)?```(\w+)\n(.*?)^ *```$"
    found = re.findall(pattern, (ROOT / page).read_text())
    return [Block(reason, language, textwrap.dedent(text)) for reason, language, text in found]


def commands(text: str) -> list[str]:
    """The commands of a block; a backslash or an open quote continues a line."""
    found, part = [], ""
    for line in text.replace("\\\n", " ").splitlines():
        part += line
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            part += "\n"
            continue
        found += [part] if words else []
        part = ""
    assert not part, f"an open quote: {part}"
    return found


def do(page: str, line: str) -> None:
    """Run a command: of the program in this process, a script or a shell's builtin in another."""
    words = shlex.split(line, comments=True)
    if words[0] != "raydpzv":
        assert words[0] in ("python", "node", "mkdir", "printf"), (
            f"{page}: {line}: say why it is not run"
        )
        line += " --quick" * words[-1].startswith("benchmarks/")
        done = subprocess.run(["bash", "-ec", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stdout + done.stderr)
        return
    words = [LESS.get(before, word) for before, word in itertools.pairwise(words)]
    result = call(*words, *SHORTER.get(words[0], ()), *SMALLER.get(" ".join(words[:2]), ()))
    refused = page in REFUSED.get(line, ())
    assert result.exit_code == (2 if refused else 0), (line, result.output)


def run_of(name: str, settings: list[str], *, stopped: bool) -> None:
    spec = raydpzv.load(settings[0], ["budget.updates=2", "evaluate.every=1", *settings[1:]])
    raydpzv.run(spec, f"runs/{name}", **stop_after(1 if stopped else 2))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what a reader has: the repository's scripts and a table."""
    monkeypatch.chdir(tmp_path)
    for name in ("benchmarks", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [
        f"{n % 90}.5,{20 + n % 50},{n % 7},{'Oslo' if n % 3 else 'Rome'},{n % 2}"
        for n in range(300)
    ]
    Path("bank.csv").write_text("\n".join(["income,age,visits,city,label", *rows, ""]))
    return tmp_path


def runs_here(page: str, block: Block) -> bool:
    elsewhere = {(page, block.language), (page, block.text.partition("\n")[0])} & set(ELSEWHERE)
    return block.language in ("sh", "python") and not block.reason and not elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(runs_here(p, b) for b in blocks(p))])
def test_every_block_of_a_page_runs(page, place, monkeypatch, request):
    if any("raydpzv tune" in block.text for block in blocks(page) if runs_here(page, block)):
        request.getfixturevalue("ray_session")  # which a search uses
    if not any("savefig" in block.text for block in blocks(page)):
        without_pixels(monkeypatch)
    configuration = [block.text for block in blocks(page) if block.language == "toml"]
    names = NAMES.get(page) or [text.split()[1] for text in configuration]
    for name, text in zip(names, configuration, strict=False):
        if name.endswith(".toml"):
            Path(name).write_text(text)
    for name, settings in FIRST.get(page, {}).items():
        run_of(name, settings, stopped=page in STOPPED)
    tokens = np.ones((4, 3), np.float32)
    scope: dict[str, Any] = {"raydpzv": raydpzv, "prefix": torch.nn.Linear(3, 2), "tokens": tokens}
    for block in blocks(page):
        if runs_here(page, block):
            if block.language == "python":
                exec(block.text, scope)
            for line in commands(block.text) if block.language == "sh" else ():
                do(page, line)


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "toml" for b in blocks(p))])
def test_every_toml_block_has_settings_that_exist(page):
    known = settings_page()
    for block in blocks(page):
        if block.language == "toml":
            tables = {k: v for k, v in tomllib.loads(block.text).items() if f"\n## [{k}]" in known}
            unknown = [
                (k, key)
                for k, table in tables.items()
                for key in table
                if f"| `{key}` |" not in known
            ]
            assert unknown == [], block.text


def test_every_block_with_a_language_has_one_that_is_tested():
    assert {block.language for page in PAGES for block in blocks(page)} == {
        "sh",
        "python",
        "toml",
        "yaml",
        "json",
    }


def test_blocks_that_run_elsewhere_have_their_test_and_exist():
    for (page, what), test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / "tests" / test).read_text(), test
        assert any(
            what in (block.language, block.text.partition("\n")[0]) for block in blocks(page)
        ), page


def test_a_block_without_a_reason_is_run_and_a_wrong_line_fails(place):
    with pytest.raises(AssertionError, match="say why it is not run"):
        do("README.md", "make install")
    with pytest.raises(AssertionError, match="No such option"):
        do("README.md", "raydpzv list --no-such-option")
    assert commands("a 'b\nc' \\\n d\n# no command\ne  # said") == ["a 'b\nc'   d", "e  # said"]
