"""Scenario files: read, validated, and what follows from them."""
