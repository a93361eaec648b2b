"""Vertical runs on Ray: a server actor and client actors."""
