"""Scenario files and the command line."""
