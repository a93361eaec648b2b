"""The commands, one a file: their options, and the call that carries them out.

A command imports its work when it runs. Help, completion and `list` therefore start without a run's libraries.
"""
