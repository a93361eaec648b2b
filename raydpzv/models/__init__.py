"""Bottom models, heads, and the flat view of their parameters."""
