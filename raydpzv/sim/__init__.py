"""Clocks, arrivals, the two loops and the replay of a recorded order."""
