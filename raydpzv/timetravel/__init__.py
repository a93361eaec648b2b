"""A finished run, update by update: its models, who moved them, and what other ledgers would have
made of it.
"""
