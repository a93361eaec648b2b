"""How broken-off runs resume: where segments under the wall clock start, and how many started from
one place.
"""
