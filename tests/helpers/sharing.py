"""Which tests share a process when several run them, and what begins first: read off the place of a
test.
"""

from typing import Any

ON_RAY = "tests/integration/ray"
FIRST = (
    "tests/integration/compiled",
    "tests/integration/local",
    ON_RAY,
    "tests/unit/benchmarks",
    "tests/unit/zo/test_kernels.py",
    "tests/integration",
    "tests/property",
    "tests/unit/report",
)
"""What takes long must not begin last."""
APART = ("tests/integration/local", "tests/unit/benchmarks")
"""Long tests, which share nothing with their neighbours."""
OWN_RAY = tuple(
    f"{ON_RAY}/test_{name}.py"
    for name in ("cli", "growing_cluster", "job", "killed_driver", "lost_machine")
)
"""Files whose tests start a Ray of their own. They wait their turn, so that two shared ones have
the processors.
"""
ONE_RAY = tuple(
    f"{ON_RAY}/test_{name}.py"
    for name in ("losses", "own_objects", "runner_contract", "users", "vertical")
)
"""Half of the work on a shared Ray. The other files have a second one, in another process."""


def unit(nodeid: str) -> str:
    """Return what one process takes as a whole: the tests that share a Ray, a single long test with
    its cases of one method, otherwise a file, so that what its tests share is made once.
    """
    if nodeid.startswith(APART):
        return nodeid.partition("-")[0]
    if nodeid.startswith(ON_RAY) and not nodeid.startswith(OWN_RAY):
        return f"{ON_RAY}, {'one' if nodeid.startswith(ONE_RAY) else 'other'}"
    return nodeid.split("::")[0]


def turn(nodeid: str) -> int:
    """Return the place in the order of beginning: first the tests that share a Ray, the longest
    units.
    """
    if nodeid.startswith(ON_RAY) and not nodeid.startswith(OWN_RAY):
        return -1
    return next((n for n, place in enumerate(FIRST) if nodeid.startswith(place)), len(FIRST))


def scheduler(config: Any, log: Any) -> Any:
    """Make xdist's scheduler of whole units."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return Units(config, log)
