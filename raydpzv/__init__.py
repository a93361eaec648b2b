"""raydpzv: asynchronous, differentially private, zeroth-order federated learning.

import raydpzv

spec = raydpzv.load("digits_dpzv", ["budget.updates=500"])
run = raydpzv.run(spec)                          # in this process; runner="ray": on actors, the
same bits run.summary["accuracy"], run.rows("evaluation")  # an Arrow table
raydpzv.compare("digits_dpzv", "runs/two", methods=["vafl"], seeds=2)
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from raydpzv.version import __version__

# Arrow's own allocator takes 4 MB at a time for arrays of a few KB and returns little of that while
# others live: a run of 20,000 updates held 15 MB more, which grew with how rows fell into parts. It
# heeds this when it is imported.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

if TYPE_CHECKING:
    from raydpzv.audit.audit_run import audit
    from raydpzv.compare.compare_methods import compare, report
    from raydpzv.config.catalog import load
    from raydpzv.door import horizontal, vertical
    from raydpzv.experiment.finalize import Run
    from raydpzv.experiment.runner import resume, run
    from raydpzv.feature_cache import features
    from raydpzv.preflight import check
    from raydpzv.records.callbacks import Callback
    from raydpzv.report.privacy import privacy
    from raydpzv.search.run_tune import tune
    from raydpzv.trust import trust_code
    from raydpzv.weights_export import export

    def methods() -> dict[str, str]:
        """Return every method's name and what it is, in one line."""
        ...


__all__ = [
    "Callback",
    "Run",
    "__version__",
    "audit",
    "check",
    "compare",
    "export",
    "features",
    "horizontal",
    "load",
    "methods",
    "privacy",
    "report",
    "resume",
    "run",
    "trust_code",
    "tune",
    "vertical",
]

_ROOMS = ("audit", "compare", "methods", "privacy", "report")
"""Packages that can be called."""
_DOORS = {
    "Callback": "raydpzv.records.callbacks",
    "Run": "raydpzv.experiment.finalize",
    "check": "raydpzv.preflight",
    "export": "raydpzv.weights_export",
    "features": "raydpzv.feature_cache",
    "horizontal": "raydpzv.door",
    "load": "raydpzv.config.catalog",
    "resume": "raydpzv.experiment.runner",
    "run": "raydpzv.experiment.runner",
    "trust_code": "raydpzv.trust",
    "tune": "raydpzv.search.run_tune",
    "vertical": "raydpzv.door",
}
"""Where the public names live; imported when they are first used, so that `import raydpzv` costs
nothing.
"""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
