"""Kernels on first use: numba only when needed, compiled once on a machine, and without a cache as
well.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import Timeout
from numba.core.compiler_lock import global_compiler_lock

from raydpzv.zo import kernel_cache, kernels, philox
from raydpzv.zo.kernels import FirstCalls, Kernel
from tests.helpers.programs import Forked, said

IMPORTED = """
import json, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "numba"]:
    del sys.modules[name]  # whoever forked this process had imported it
import raydpzv.zo.update, raydpzv.zo.directions, raydpzv.zo.apply_seeds, raydpzv.zo.device, raydpzv.zo.perturbation
import raydpzv.methods.vertical.dpzv, raydpzv.methods.horizontal.decomfl
print(json.dumps("numba" in sys.modules))
"""
STEPPED = """
import json, sys
from numba.core import event
import torch
from raydpzv.zo.kernels import first_calls, announce_compiling
from raydpzv.zo.update import Descent, Rule, Step

told = []
with event.install_recorder("numba:compile") as compiled, announce_compiling(lambda: told.append(len(compiled.buffer))):
    x = torch.zeros(10)
    Descent(x, Rule("gaussian", 0.9)).apply([Step([7], [0.5], 1.0)])
found = [event.data["dispatcher"].py_func for _, event in compiled.buffer if event.is_start]
names = [function.__name__ for function in found if function.__module__ == "raydpzv.zo.numba_kernel"]
print(json.dumps([sorted(names), first_calls(), x.tolist(), told]))
"""
LOADED = """
import json, sys
import numpy as np
from numba.core import event
from raydpzv.zo import kernel_cache
from raydpzv.zo.kernels import Kernel

x = np.zeros(1, np.float32)
with event.install_recorder("numba:compile") as compiled:
    Kernel("add_scaled")(x, np.ones(1, np.float32), np.float32(1))
loaded = "numba.np.npyimpl" in sys.modules
kernel_cache.set_up()
print(json.dumps([x.tolist(), len(compiled.buffer), loaded, "numba.np.npyimpl" in sys.modules]))
"""
WITHOUT_A_CACHE = """
import warnings
from numba.core import caching

caching.CompileResultCacheImpl._locator_classes = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from raydpzv.zo import kernel_cache, numba_kernel
told = [warning for warning in caught if "NUMBA_CACHE_DIR" in str(warning.message)]
print(len(told), kernel_cache.folder_of("raydpzv.zo.numba_kernel", "add_scaled"))
"""
AMONG_TEMPORARY = """
import json, tempfile, warnings
import numpy as np
from numba.core import caching

tempfile.tempdir = None
caching.CompileResultCacheImpl._locator_classes = [caching.UserProvidedCacheLocator]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from raydpzv.zo import kernel_cache, kernels, numba_kernel
kernels.add_scaled(np.zeros(1, np.float32), np.ones(1, np.float32), np.float32(1))
folder = kernel_cache.folder_of("raydpzv.zo.numba_kernel", "add_scaled")
print(json.dumps([folder and str(folder), kernels.first_calls().compiled]))
"""


def script(text: str, cache: Path) -> Forked:
    return Forked(["-c", text], {**os.environ, "NUMBA_CACHE_DIR": str(cache)})


def last(process: Forked) -> str:
    return said(process).splitlines()[-1]


def test_numba_is_not_imported_before_a_kernel_is_called(tmp_path: Path) -> None:
    assert json.loads(last(script(IMPORTED, tmp_path))) is False


@pytest.mark.slow
def test_of_processes_that_begin_together_one_compiles_and_all_have_the_same_bits(
    tmp_path: Path,
) -> None:
    together = [script(STEPPED, tmp_path) for _ in range(3)]
    names, calls, results, told = zip(
        *(json.loads(last(process)) for process in together), strict=True
    )
    expected = ["_subtract_tile", "_words", "add_scaled", "subtract_directions"]
    # and nothing that this rule does not use
    assert sorted(name for found in names for name in found) == expected
    assert results[0] == results[1] == results[2]
    # the others were waiting meanwhile
    assert sum(compiled for compiled, _ in calls) == 2
    # each process that compiles says so once, before it does
    assert [found == [0] for found in told] == [compiled > 0 for compiled, _ in calls]
    assert all(seconds > 0 for _, seconds in calls)


def test_what_is_compiled_is_loaded_without_what_compiles() -> None:
    assert _one() == 1.0  # so that it is kept
    assert json.loads(last(Forked(["-c", LOADED]))) == [[1.0], 0, False, True]


@pytest.mark.slow
def test_without_a_folder_for_the_cache_kernels_are_compiled_with_a_warning(tmp_path: Path) -> None:
    assert last(script(WITHOUT_A_CACHE, tmp_path)) == "1 None"


@pytest.mark.slow
def test_where_only_temporary_files_can_be_written_the_code_is_kept_among_them_for_this_user(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    folder = tmp_path / f"raydpzv-kernels-{os.getuid()}"
    first, second = (
        json.loads(last(Forked(["-c", AMONG_TEMPORARY], environment))) for _ in range(2)
    )
    assert first[0].startswith(str(folder))
    assert (first[1], second[1]) == (1, 0)
    assert folder.stat().st_mode & 0o777 == 0o700
    # whoever may write there may have this user run what they like
    folder.chmod(0o777)
    assert json.loads(last(Forked(["-c", AMONG_TEMPORARY], environment))) == [None, 1]


def test_what_first_calls_took_side_by_side_counts_once() -> None:
    assert FirstCalls(3, 2.0).beside(FirstCalls(1, 5.0)) == (4, 5.0)
    assert FirstCalls(3, 2.5).since(FirstCalls(1, 0.5)) == (2, 2.0)


def test_a_cache_that_nobody_can_keep_needs_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydpzv.zo.kernel_cache.folder_of", lambda module, name: None)
    monkeypatch.setattr(kernels, "FileLock", None)  # would fail if it were called
    assert _one() == 1.0


@pytest.mark.parametrize("error", [Timeout("held"), PermissionError("read-only")])
def test_a_lock_that_cannot_be_had_stops_nobody(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    class Held:
        def __init__(self, path: Path) -> None:
            assert path.name == "raydpzv-kernels.lock"

        def acquire(self, timeout: float) -> None:
            asked.append(timeout)
            raise error

    monkeypatch.setattr(kernels, "FileLock", Held)
    assert _one() == 1.0
    assert asked == [kernels._TIMEOUT]


def test_numba_is_set_up_while_no_other_thread_compiles() -> None:
    """Or that thread's compilation ends with "generator already executing"."""
    thread = threading.Thread(target=kernel_cache.set_up)
    with global_compiler_lock:
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()


def test_the_lock_is_let_go_when_the_kernel_is_ready() -> None:
    for _ in range(2):
        assert _one() == 1.0


def test_a_fresh_kernel_has_the_bits_of_the_definition() -> None:
    x = np.zeros(2000, np.float32)
    Kernel("add_direction")(x, x, np.uint64(5), np.float32(1), 0)
    assert np.array_equal(x, philox.normals(5, 0, 2000))


def _one() -> float:
    """What a kernel that was never called before does."""
    x: Any = np.zeros(1, np.float32)
    Kernel("add_scaled")(x, np.ones(1, np.float32), np.float32(1))
    return float(x[0])


def test_a_kernel_that_two_modules_call_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, z = np.ones(3, np.float32), np.full(3, 2, np.float32)
    for _ in range(2):
        out = np.zeros(3, np.float32)
        Kernel("add_along", "raydpzv.engine.dense_kernel")(out, x, z, np.float32(0.5))
        assert out.tolist() == [2, 2, 2]
        monkeypatch.setattr(
            kernel_cache, "_loaded", lambda kernel, types: pytest.fail("loaded again")
        )
