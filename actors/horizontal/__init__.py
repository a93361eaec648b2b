"""Horizontal runs on Ray: a server actor and actors that hold groups of clients."""
