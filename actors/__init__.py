"""The Ray shell: actors that forward to roles; no maths here."""
