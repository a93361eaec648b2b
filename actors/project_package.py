"""The package of a project that a submitted job runs in: which files, how large, packed."""

from __future__ import annotations

import heapq
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from raydpzv.errors import InputError
from raydpzv.package_check import HOME, NEIGHBOURS
from raydpzv.records.secrets_file import OPERATOR

IGNORE_FILE = ".rayignore"
"""Patterns as in .gitignore, in any folder; that file itself is heeded too, as Ray does, and above as git does."""
_GIT_FILE = ".gitignore"
IGNORED = (
    *(".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", "*.py[co]", "*.egg-info"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".import_linter_cache", "/runs/"),
)
"""What is left out where the project's folder has no .rayignore."""
SECRETS = (
    OPERATOR,
    *(".env", ".env.*", "!.env.example", "!.env.template", ".envrc", ".netrc", ".pypirc", ".git-credentials"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    *(".ssh/", ".aws/", ".azure/", ".gcloud/", ".gnupg/", ".kube/", ".ray/"),
)
"""What is left out whatever else is packed, unless the .rayignore of the project's folder takes it in (`!name`).

A cluster keeps packages, and whoever reaches it can have them; a run folder's secrets are its operator's.
"""
PROGRAM = ("raydpzv", *NEIGHBOURS)
"""The packages of this program."""
_LARGEST = 5
_NAMED = 3
"""Names of withheld files in a line that counts them."""
_WORTH_NAMING = 0.01
"""Part of what a cluster takes below which a file is not among the largest that are named."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""A time for every file, so that the same files are the same package, which a cluster keeps and need not get again."""
_MIB = 2**20
_Patterns = tuple[Path, GitIgnoreSpec]
"""A folder, and the patterns that names below it are held against."""


@dataclass(frozen=True)
class ProjectFile:
    """A file to pack: its name in the package, where it lies, its bytes."""

    name: str
    path: Path
    size: int


@dataclass(frozen=True)
class Project:
    """What of a folder is packed, and with it this program if the folder is not its own.

    links: folders that links lead to, which are left out. secrets: what is left out by its name alone (`SECRETS`).
    """

    folder: Path
    files: Sequence[ProjectFile]
    links: Sequence[str]
    secrets: Sequence[str]

    @property
    def ignored_by(self) -> str:
        """Return what leaves files out, in words."""
        if (self.folder / IGNORE_FILE).is_file():
            return (
                f"a {IGNORE_FILE} or .gitignore (or lies behind a link to a folder, or bears a secret's name)"
            )
        return (
            f"a .gitignore, or by what is left out where {self.folder} has no {IGNORE_FILE} ({', '.join(IGNORED)}; "
            "links to folders and names of secrets too)"
        )

    @property
    def withheld(self) -> str:
        """Return what is left out that nobody asked to leave out, counted in one line; "" for nothing."""
        kinds = ((self.secrets, "with the name of a secret"), (self.links, "behind a link to a folder"))
        counted = [f"{len(names)} {what} ({_first(names)})" for names, what in kinds if names]
        more = f"; !/NAME in {IGNORE_FILE} takes in a secret's name" if self.secrets else ""
        return f"not packed: {', '.join(counted)}{more}" if counted else ""

    def has(self, path: Path) -> bool:
        """Tell whether this file, or a file in this folder, is packed."""
        found = _place(path)
        return any(file.path == found or found in file.path.parents for file in self.files)

    def holds(self, path: Path) -> bool:
        """Tell whether this file or folder lies in the project's folder, packed or not."""
        return _place(path).is_relative_to(self.folder)

    def name(self, path: Path) -> str:
        """Return the name that a file or folder of the project has in the package."""
        return _place(path).relative_to(self.folder).as_posix()


def _first(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def project(folder: Path) -> Project:
    """Return what of a folder goes to the cluster. Raises InputError."""
    root = folder.resolve()
    if not root.is_dir():
        raise InputError(f"--project: wanted a folder, got {folder}; give the one that holds the scenario")
    left = _LeftOut()
    files = list(_kept(root, root, _Ignoring(_above(root)), left, _secrets(root)))
    if not (root / "raydpzv" / "__main__.py").is_file():
        for name in PROGRAM:
            if (root / name).exists() or (root / f"{name}.py").exists():
                raise InputError(
                    f"{root / name}: bears the name of a package of raydpzv, which is packed beside it; rename it, or "
                    "give another --project"
                )
        files += program().files
    return Project(root, sorted(files, key=lambda file: file.name), left.links, left.secrets)


def program() -> Project:
    """Return this program's own packages as a project."""
    ignored = _Ignoring(ours=[(HOME, GitIgnoreSpec.from_lines(IGNORED))])
    secrets = GitIgnoreSpec.from_lines(SECRETS)
    files = [file for name in PROGRAM for file in _kept(HOME, HOME / name, ignored, _LeftOut(), secrets)]
    return Project(HOME, sorted(files, key=lambda file: file.name), [], [])


def pack(what: Project, archive: Path, limit: int) -> None:
    """Write a project's ZIP archive. Raises InputError if it would be larger than `limit` bytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for file in what.files:
            info = zipfile.ZipInfo(file.name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            # above 2 GiB an entry has another form, also where little is left of it
            info.file_size = file.size
            info.external_attr = stat.S_IMODE(file.path.stat().st_mode) << 16
            with file.path.open("rb") as source, out.open(info, "w") as target:
                while block := source.read(_MIB):
                    target.write(block)
                    _check(what, archive, limit)
    _check(what, archive, limit)


def _check(what: Project, archive: Path, limit: int) -> None:
    if archive.stat().st_size <= limit:
        return
    # what is named is what can be left out, and helps: neither this program nor small files
    large = (f for f in what.files if f.path.is_relative_to(what.folder) and f.size >= limit * _WORTH_NAMING)
    largest = heapq.nlargest(_LARGEST, large, key=lambda file: file.size)
    names = ", ".join(f"{file.name} ({_mib(file.size)})" for file in largest)
    raise InputError(
        f"{what.folder}: wanted a package of at most {_mib(limit)}, which is what Ray takes, got "
        f"{len(what.files)} files of {_mib(sum(file.size for file in what.files))}, too many also when compressed; "
        f"the largest are {names}; leave out in {IGNORE_FILE} what the run does not need, or put data where the "
        "cluster's machines see them"
    )


@dataclass
class _LeftOut:
    """What is left out that nobody asked to leave out: links to folders, names of secrets."""

    links: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Ignoring:
    """What files are held against: .gitignore of their folder and those around it, the outermost first; and ours."""

    git: Sequence[_Patterns] = ()
    ours: Sequence[_Patterns] = ()

    def within(self, root: Path, folder: Path) -> _Ignoring:
        """Return what the files of a folder below are held against."""
        return _Ignoring([*self.git, *_of_file(folder / _GIT_FILE)], [*self.ours, *_patterns(root, folder)])

    def leaves_out(self, path: Path, is_folder: bool) -> bool:
        """Tell whether a file is left out: by git the innermost .gitignore that speaks of it decides."""
        said = (_verdict(given, path, is_folder) for given in reversed(self.git))
        by_git = next((verdict for verdict in said if verdict is not None), False)
        return by_git or any(_verdict(given, path, is_folder) for given in self.ours)


def _above(root: Path) -> list[_Patterns]:
    """Return what .gitignore in the folders above says, up to that of the repository which the folder is in.

    Nothing where they leave out the folder itself: it was asked for by name.
    """
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    between = (
        [folder for folder in reversed(root.parents) if folder.is_relative_to(top)] if top != root else []
    )
    found = [patterns for folder in between for patterns in _of_file(folder / _GIT_FILE)]
    inside = [folder for folder in (*between, root) if folder != top]
    return [] if any(_Ignoring(found).leaves_out(folder, is_folder=True) for folder in inside) else found


def _kept(
    root: Path, folder: Path, outer: _Ignoring, left: _LeftOut, secrets: GitIgnoreSpec
) -> Iterator[ProjectFile]:
    """Walk a folder: yield the files of it that no pattern of its own or of those around it leaves out."""
    patterns = outer.within(root, folder)
    for path in sorted(folder.iterdir()):
        is_folder, name = path.is_dir(), path.relative_to(root).as_posix()
        if patterns.leaves_out(path, is_folder):
            continue
        if _verdict((root, secrets), path, is_folder):
            left.secrets.append(name)
        elif is_folder and path.is_symlink():
            left.links.append(name)
        elif is_folder:
            yield from _kept(root, path, patterns, left, secrets)
        elif path.is_file():
            _check_name(path)
            yield ProjectFile(name, path, path.stat().st_size)


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{os.fsencode(path)!r}: wanted a name in UTF-8, which a package's names are in; rename it, or leave it "
            f"out in {IGNORE_FILE}"
        ) from None


def _patterns(root: Path, folder: Path) -> list[_Patterns]:
    if folder == root and not (folder / IGNORE_FILE).is_file():
        return [(folder, GitIgnoreSpec.from_lines(IGNORED))]
    return _of_file(folder / IGNORE_FILE)


def _of_file(path: Path) -> list[_Patterns]:
    return [(path.parent, GitIgnoreSpec.from_lines(_lines(path)))] if path.is_file() else []


def _secrets(root: Path) -> GitIgnoreSpec:
    own = _lines(root / IGNORE_FILE) if (root / IGNORE_FILE).is_file() else []
    return GitIgnoreSpec.from_lines([*SECRETS, *(line for line in own if line.startswith("!"))])


def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: wanted patterns in UTF-8, got other bytes ({error}); save it as UTF-8"
        ) from None


def _verdict(patterns: _Patterns, path: Path, is_folder: bool) -> bool | None:
    """Return whether patterns leave a file out, or take it in; None where they say nothing of it."""
    base, spec = patterns
    name = path.relative_to(base).as_posix()
    return spec.check_file(f"{name}/" if is_folder else name).include


def _place(path: Path) -> Path:
    """Return where a file lies; one that is a link is where the link is, under whose name it is packed."""
    there = path.absolute()
    return there.parent.resolve() / there.name


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
