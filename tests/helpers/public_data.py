"""Digits scaled and split without a look at a record, as every proof but that of a range
supposes.
"""

PUBLIC = ("data.scale=public", "data.centre=8", "data.spread=8", "data.split=plain")
