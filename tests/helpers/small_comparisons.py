"""A comparison that takes seconds: two methods, with noise and without, two seeds and the
controls.
"""

from typing import Any

from raydpzv.compare.file import ComparisonFile, MethodEntry, resolved

SHORT = ("budget.updates=60", "evaluate.every=20", "privacy.noise=seeded")


def small_comparison(*overrides, **changes):
    given = {
        "name": "small",
        "scenario": "digits_dpzv",
        "seeds": (0, 1),
        "epsilons": ("none", 1.0),
        "targets": (0.2, 0.99),
        "methods": (
            MethodEntry(label="DPZV", scenario="digits_dpzv"),
            MethodEntry(label="VAFL", scenario="vafl", private=("privacy.clip=0.1",)),
        ),
    }
    return resolved(ComparisonFile(**given | changes), [*SHORT, *overrides])


def timeless(table: Any) -> str:
    """Return a table as text without the time that its runs took."""
    return str(table.select([name for name in table.column_names if name != "seconds"]).to_pylist())
