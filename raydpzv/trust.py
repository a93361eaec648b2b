"""Whether code that a folder names may run: in a folder that this user made on this machine, or by
a word.

A scenario with a colon is a program: it chooses which functions of a project are called, and with
which options. The plan of a run or a comparison that names code has a mark beside it, and so has
that of each search, because Ray Tune pickles its state. A mark is a keyed digest of the plan's
file. The key lies in the user's home, so nobody else can make a mark, and a plan that was changed
has none.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from raydpzv.errors import InputError
from raydpzv.files import PRIVATE, write_atomically
from raydpzv.foreign import allow_imports, is_foreign, is_handed, shown_name

_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)
_OWN_WORDS: ContextVar[frozenset[str]] = ContextVar("own words", default=frozenset())
T = TypeVar("T")
_KEY_BYTES = 32
_SHOWN = 3
"""Words that a complaint names."""


def trust_code(trust: bool = True) -> AbstractContextManager[None]:
    """Inside, folders of other users may name code too, as with `--trust-code`.

    trust: False leaves things as they are.
    """
    return _within(_TRUSTED, trust or _TRUSTED.get())


def trust_words(words: Iterable[str]) -> AbstractContextManager[None]:
    """Inside, a folder may name the code that the user's own scenario names.

    words: those of `code_words`. What comes back from a storage on another machine has no mark
    there, and the user gave its scenario again.
    """
    return _within(_OWN_WORDS, frozenset(words))


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def code_words(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of a scenario's tree that name a user's objects."""
    model = _table(tree, "model")
    found = [_table(tree, "method").get("name"), _table(tree, "data").get("source")]
    found += [model.get(key) for key in ("kind", "bottom", "head", "loss")]
    for several in (model.get("bottoms"), model.get("weights")):
        found += several.values() if isinstance(several, Mapping) else _listed(several)
    found.append(_table(tree, "evaluate").get("metrics"))
    return tuple(dict.fromkeys(str(word) for word in found if is_foreign(word)))


def _table(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else [value]


def require_trust(folder: Path, plan: str, words: Iterable[str]) -> None:
    """Raise InputError for a folder of somebody else whose plan names code; else allow imports.

    plan: the name of the file with the scenario, or those of many runs; words: those of
    `code_words`. An object that this process was handed is the caller's own.
    """
    foreign = list(dict.fromkeys(word for word in words if not is_handed(word)))
    if not foreign:
        return
    if unknown := [word for word in foreign if word not in _OWN_WORDS.get()]:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        names = f"{', '.join(map(shown_name, unknown[:_SHOWN]))}{more}"
        require_own_folder(folder, plan, f"{plan} names code, {names}")
    allow_imports()


def require_own_folder(folder: Path, plan: str, what: str) -> None:
    """Raise InputError for a folder that this user did not make here.

    plan: see `require_trust`; what: which code of the folder would run, in words.
    """
    if not _TRUSTED.get() and not _is_marked(folder, plan):
        raise InputError(
            f"{folder}: {what}, and {_why(folder)}; if that code may run, give --trust-code (in "
            "Python: with raydpzv.trust_code():)"
        )


def mark(folder: Path, plan: str, words: Collection[str]) -> None:
    """Mark a plan as this user's, if code of its folder may run; without a home that can be
    written, do not.

    words: what names or holds that code.
    """
    if words:
        with suppress(OSError, RuntimeError):
            made = _digest(folder / plan, _key()).encode()
            write_atomically(_mark(folder, plan), made, mode=PRIVATE)


def _mark(folder: Path, plan: str) -> Path:
    """Return the path of a mark. Copies of runs leave out hidden files: another machine has another
    key.
    """
    return folder / f".{plan}.mark"


def _is_marked(folder: Path, plan: str) -> bool:
    path = _mark(folder, plan)
    try:
        made = path.read_text(encoding="ascii") if path.is_file() else ""
        return hmac.compare_digest(made, _digest(folder / plan, _key()))
    except (OSError, ValueError, RuntimeError):
        return False


def _why(folder: Path) -> str:
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        return f"another user made this folder (uid {owner})"
    return "you did not make this folder on this machine, or it was changed since"


def _digest(path: Path, key: bytes) -> str:
    return hmac.new(key, hashlib.sha256(path.read_bytes()).digest(), "sha256").hexdigest()


def _key() -> bytes:
    """Return the user's key on this machine, made when it is first asked for. Raises OSError."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "raydpzv"
    path = home / "key"
    if not path.exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = home / f".key.{secrets.token_hex(8)}"
        write_atomically(scratch, secrets.token_bytes(_KEY_BYTES), mode=PRIVATE)
        with suppress(FileExistsError):  # another process was first
            os.link(scratch, path)
        scratch.unlink()
    found, key = os.lstat(path), path.read_bytes()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or len(key) != _KEY_BYTES:
        raise PermissionError(f"{path}: is not this user's alone")
    return key
