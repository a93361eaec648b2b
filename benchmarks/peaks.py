"""Instruments for peak memory: the kernel's count, torch's operators, the GPU allocator."""

from __future__ import annotations

import ctypes
import gc
import weakref
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Names of glibc's parameters (malloc.h)."""


def predictable_malloc() -> None:
    """Let glibc return a freed tensor at once (Linux).

    By default it learns from the first large one to keep them, and a later peak would hide in what
    it kept.
    """
    libc = ctypes.CDLL(None)
    for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        if not libc.mallopt(name, 65536):
            raise OSError(f"glibc did not take its parameter {name}")


class Meter(Protocol):
    """Bytes in use, now and at most since `reset`."""

    def now(self) -> int:
        """Return the bytes in use."""
        ...

    def reset(self) -> None:
        """Forget the peak so far."""
        ...

    def peak(self) -> int:
        """Return the largest number of bytes in use since `reset`."""
        ...


class Resident:
    """Resident memory of this process as the kernel keeps it (Linux)."""

    def now(self) -> int:
        """Return VmRSS, after everything that is free has been given back."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return self._read("VmRSS")

    def reset(self) -> None:
        """Lower VmHWM to what is resident now (proc(5), clear_refs)."""
        Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> int:
        """Return VmHWM."""
        return self._read("VmHWM")

    def _read(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


class Cuda:
    """Bytes of tensors in torch's CUDA allocator."""

    def now(self) -> int:
        """Return the allocated bytes."""
        gc.collect()
        return torch.cuda.memory_allocated()

    def reset(self) -> None:
        """Forget the peak so far."""
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """Return the most bytes that were allocated at one time."""
        return torch.cuda.max_memory_allocated()


class LiveStorages(TorchDispatchMode):
    """A second opinion: adds up the storages that torch's operators return, for as long as each
    lives.

    It sees neither numpy's arrays nor what compiled code allocates.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # nothing here is compiled, and torch would import its compiler, seconds of CPU, to leave
        # this out of it
        return False

    def __init__(self) -> None:
        super().__init__()
        self._now = self._peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def now(self) -> int:
        """Return the bytes alive."""
        gc.collect()
        return self._now

    def reset(self) -> None:
        """Forget the peak so far."""
        self._peak = self._now

    def peak(self) -> int:
        """Return the most bytes alive at one time since `reset`."""
        return self._peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and take note of what it returns."""
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                self._note(value.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self._known:
            return

        def gone(_: Any) -> None:
            self._now -= size
            del self._known[address]

        self._known[address] = weakref.ref(storage, gone)
        self._now += size
        self._peak = max(self._peak, self._now)
