"""Comparisons: methods x seeds x values of ε on one split and budget. `raydpzv.compare(...)` makes
one.
"""

from raydpzv.lazy_import import make_callable

make_callable(__name__, "raydpzv.compare.compare_methods:compare")
