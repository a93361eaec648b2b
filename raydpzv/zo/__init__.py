"""Zeroth-order pieces: directions, perturbation without drift, updates."""
