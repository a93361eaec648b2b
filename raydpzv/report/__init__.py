"""Tables, pictures and the self-contained page."""
