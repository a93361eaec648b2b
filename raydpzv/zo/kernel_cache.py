"""The cache of compiled kernels.

In NUMBA_CACHE_DIR, else in `__pycache__` beside the file that defines them, else in the user's
cache folder, else (some containers can write to none of these) in a folder of the user's own among
temporary files; where there is none either, nothing is kept.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config, njit, typeof
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import nrt

_settings: Any = config
_kernels: dict[tuple[str, str], Any] = {}
"""The compiled functions by module and name."""


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first used, without the GIL, and keep the code if there is a
    folder for it.

    A division by zero gives infinity or NaN as IEEE 754 has it, and no exception. A name with an
    underscore is called
    by compiled code alone: its wrappers for Python and C would be a tenth of the compiling.
    """
    internal = function.__name__.startswith("_")
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    options |= {"no_cpython_wrapper": internal, "no_cfunc_wrapper": internal}
    try:
        kernel = _kept(function, options)
    except RuntimeError as error:  # numba found no folder that it can write to
        if not _kernels:
            warnings.warn(
                "compiled kernels cannot be kept, so that every process compiles them anew, which "
                f"takes seconds ({error}); set NUMBA_CACHE_DIR to a folder that can be written to",
                stacklevel=2,
            )
        kernel = njit(**options)(function)
    _kernels[function.__module__, function.__name__] = kernel
    return kernel


def _kept(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return a kernel whose code is kept. Raises RuntimeError where it cannot be."""
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        folder = _private_folder()
        if folder is None or _settings.CACHE_DIR:
            raise
        _settings.CACHE_DIR = str(folder)
        return njit(cache=True, **options)(function)


def _private_folder() -> Path | None:
    """Return a folder among temporary files that only this user can write to, since what is in it
    is run; None: no.
    """
    if not hasattr(os, "getuid"):
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"raydpzv-kernels-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    own = found.st_uid == os.getuid() and not found.st_mode & 0o022 and not folder.is_symlink()
    return folder if own else None


def set_up() -> None:
    """Let numba set itself up, which takes most of a second and reads no cache.

    Under the lock that its compiler holds: numba fills its lists of types from generators, which
    fail when two threads are in them.
    """
    with global_compiler_lock:
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()


def folder_of(module: str, name: str) -> Path | None:
    """Return where a kernel's compiled code is kept; None if nowhere."""
    found = _kernels[module, name].stats.cache_path
    return Path(found) if found else None


def prepare(
    module: str, name: str, arguments: tuple[Any, ...], compiling: Callable[[], None]
) -> bool:
    """Load or compile a kernel for arguments like these, without calling it; return whether it was
    compiled.

    compiling: called before it is compiled.
    """
    kernel = _kernels[module, name]
    types = tuple(typeof(argument) for argument in arguments)
    # loaded twice, it would be looked up among equals at every call, which takes a tenth of a
    # millisecond
    if types in kernel.overloads or _loaded(kernel, types):
        return False
    compiling()
    set_up()
    kernel.compile(types)
    return True


class _ToLoad:
    """numba's target without what it imports to compile, which is most of the time of a program's
    first call.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(cpu_target.target_context, name)

    def refresh(self) -> None:
        """Name what compiled code calls; numba would compile 20 MB of its own, which that code has
        a copy of.
        """
        for name, address in nrt._nrt.c_helpers.items():
            nrt.ll.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def _loaded(kernel: Any, types: tuple[Any, ...]) -> bool:
    """Load the code that was kept for these types, if any was; for compiled callers as well, as
    `compile` does.
    """
    with global_compiler_lock:
        found = kernel._cache.load_overload(types, _ToLoad())
        if found is not None:
            cpu_target.target_context.insert_user_function(
                found.entry_point, found.fndesc, [found.library]
            )
            kernel.add_overload(found)
    return found is not None
