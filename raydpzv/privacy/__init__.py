"""Clipping, noise with receipts, calibration, and what may be claimed. `raydpzv.privacy(scenario)`
says what.
"""

from raydpzv.lazy_import import make_callable

make_callable(__name__, "raydpzv.report.privacy:privacy")
