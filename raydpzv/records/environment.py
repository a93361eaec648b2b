"""What a result depends on besides the scenario."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from raydpzv.lazy_import import torch
from raydpzv.version import __version__

DATA_DIGEST, OWN_DIGESTS = "data_hmac_sha256", "own_hmac_sha256"
"""Name of the data's digest in environment.json. It has the operator's key: a plain digest would
reveal a label to anyone who knows the rest of the table."""
LIBRARIES = ("torch", "numpy", "numba", "pyarrow", "scikit-learn", "dp-accounting", "ray")


def environment(runner: str, device: str) -> dict[str, Any]:
    """Return what a result depends on besides the scenario."""
    return {
        "raydpzv": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads() if "torch" in sys.modules else 1,
        "device": device,
        "runner": runner,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    return dict(_installed())


@functools.cache
def _installed() -> Mapping[str, str]:
    """Look versions up once per process: it takes as long as a short run."""
    found = {"raydpzv": __version__}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
