"""`python -m scenarios` is the same as `raydpzv`."""

from scenarios.cli import main

main()
