"""Hyper-parameter searches: a space of settings, trials drawn from it, their results, and the ε
they spend.
"""
