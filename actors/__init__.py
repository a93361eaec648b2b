"""The Ray shell: actors that forward to roles; no maths here."""

import raydpzv  # noqa: F401  (first of all: it says where Arrow takes memory, which an actor's module may import itself)
