"""The folder that Ray packs for a submitted job: the user's project, with this program beside
it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raydpzv.errors import InputError
from raydpzv.package_check import HOME, NEIGHBOURS
from raydpzv.records.secrets_file import OPERATOR

IGNORE_FILE = ".rayignore"
_ALWAYS = (".git", ".hg", ".venv", "venv", "__pycache__")
_BY_DEFAULT = (
    "node_modules",
    "*.py[co]",
    "*.egg-info",
    "/runs/",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    ".import_linter_cache",
)
"""Excluded only if the project has no .rayignore of its own."""
SECRETS = (
    OPERATOR,
    ".env",
    ".env.*",
    "!.env.example",
    "!.env.template",
    ".envrc",
    ".netrc",
    ".pypirc",
    ".git-credentials",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    ".ssh/",
    ".aws/",
    ".azure/",
    ".gcloud/",
    ".gnupg/",
    ".kube/",
    ".ray/",
)
"""Excluded unless the project's .rayignore includes the name again (`!name`).

A cluster keeps packages, and everybody who reaches the cluster can read them.
"""
PROGRAM = ("raydpzv", *NEIGHBOURS)
"""The packages of this program."""


def excludes(project: Path) -> list[str]:
    """Return the patterns that Ray excludes in addition to those of .gitignore and .rayignore."""
    path = project / IGNORE_FILE
    if not path.is_file():
        return [*_ALWAYS, *_BY_DEFAULT, *SECRETS]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: wanted patterns in UTF-8, got other bytes ({error}); save it as UTF-8"
        ) from None
    return [*_ALWAYS, *SECRETS, *(line for line in lines if line.startswith("!"))]


@contextmanager
def package_folder(project: Path) -> Iterator[Path]:
    """Yield the folder to pack: links to the entries of the project and to the packages of this
    program.

    Yields the project itself if it contains this program. Raises InputError if an entry has a
    package's name.
    """
    if (project / "raydpzv" / "__main__.py").is_file():
        yield project
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "package"
        folder.mkdir()
        for entry in project.iterdir():
            if entry.stem in PROGRAM and (entry.is_dir() or entry.suffix == ".py"):
                raise InputError(
                    f"{entry}: bears the name of a package of raydpzv, which is packed beside it; "
                    "rename it, or give another --project"
                )
            (folder / entry.name).symlink_to(entry)
        for name in PROGRAM:
            (folder / name).symlink_to(HOME / name)
        yield folder
