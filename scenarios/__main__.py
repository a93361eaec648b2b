"""`python -m scenarios` is the same as `raydpzv`."""

from raydpzv.__main__ import main

main()
