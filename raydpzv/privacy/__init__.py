"""Clipping, noise with receipts, calibration, and what may be claimed."""
