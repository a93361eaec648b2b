"""Whether a cluster has the versions of Ray and Python that this process has; Ray joins no other."""

from __future__ import annotations

import importlib
from typing import Any

from raydpzv.errors import InputError


def check_versions(gcs: Any, address: str) -> None:
    """Raise InputError where the cluster that `gcs` (Ray's client of its head) asks has another Ray or Python.

    Ray itself says so when half of it is up, and where an older one meets a newer, after a minute, nothing. What it
    takes for another Python (RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL) is its own.
    """
    try:
        usage = importlib.import_module("ray._common.usage.usage_lib")
        rule = importlib.import_module("ray._private.utils")
        read, check, own = usage.get_cluster_metadata, rule.check_version_info, rule.compute_version_info
    except (ImportError, AttributeError):
        return  # a Ray that keeps it elsewhere says so itself
    try:
        there = read(gcs)
    except (AttributeError, RuntimeError):
        return  # nothing on record, as of a head that is still coming up
    try:
        check(there, address)
    except RuntimeError:
        ray, python = own()
        raise InputError(
            f"Ray at {address} wanted the versions that it was started with, Ray {there['ray_version']} and Python "
            f"{there['python_version']}, got Ray {ray} and Python {python}; run with those "
            f"(ray=={there['ray_version']}), or start the cluster with these"
        ) from None
