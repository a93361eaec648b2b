"""From a scenario file to a run."""
