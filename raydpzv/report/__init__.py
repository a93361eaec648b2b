"""Tables, pictures and the self-contained page. `raydpzv.report(...)` writes it."""

from raydpzv.lazy_import import make_callable

make_callable(__name__, "raydpzv.compare.compare_methods:report")
