"""What a run writes besides its record, on request: scalars for other programs, a structured log."""
