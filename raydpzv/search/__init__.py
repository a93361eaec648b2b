"""Hyper-parameter searches: a space of settings, trials drawn from it, what they come to, and what they spend."""
