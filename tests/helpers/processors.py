"""Environments in which the libraries take this processor for an older one.

torch, oneDNN, MKL, OpenBLAS, NumPy, numba and the C library choose their code by what the processor
has. Sums and functions of another choice have other last bits. Each library can be told, before it
is loaded, to choose as on an older processor.

`python -m tests.helpers.processors TESTS` runs tests once for each level that this machine has.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

LEVELS = {
    "x86-64-v2": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NUMBA_CPU_NAME": "x86-64-v2",
        "NUMBA_CPU_FEATURES": "",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4",
    },
    "x86-64-v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NUMBA_CPU_NAME": "x86-64-v3",
        "NUMBA_CPU_FEATURES": "+avx2,+fma",
    },
}
"""Levels of the x86-64 ABI: SSE4.2, then AVX2 with fused multiply-adds. The next has AVX-512."""
_NEEDED = {"x86-64-v2": {"sse4_2"}, "x86-64-v3": {"avx2", "fma"}}


def features() -> set[str]:
    """Return what this processor has, in the words of Linux; nothing where they are not said."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())


def levels() -> list[str]:
    """Return the levels that this machine has, the oldest first."""
    return [level for level in LEVELS if _NEEDED[level] <= features()]


def environment(level: str) -> dict[str, str]:
    """Return the variables that make this machine one of a level."""
    # NumPy names what it found beyond what every build needs, and warns of names that it did not
    able = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # as if there were none
    newer = ("X86_V4", "AVX512")
    beyond = [name for name in able if level == "x86-64-v2" or name.startswith(newer)]
    return LEVELS[level] | ({"NPY_DISABLE_CPU_FEATURES": ",".join(beyond)} if beyond else {})


def main(arguments: list[str]) -> int:
    """Run pytest with the arguments as on each level; return how many levels failed."""
    failed = 0
    if not levels():
        print("this is no x86-64 processor with SSE4.2: there is no older one to run as")
    for level in levels():
        print(f"as on {level}", flush=True)
        command = [sys.executable, "-m", "pytest", *arguments]
        failed += subprocess.run(command, env=os.environ | environment(level)).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
