"""From files to tables, and from a table to what each party holds."""
