"""The tables of a scenario: fields and sections, without methods."""
