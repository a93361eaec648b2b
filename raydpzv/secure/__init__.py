"""Sums that nobody sees the terms of: masked sums, and sums with weights that nobody learns.

Roles take a message and return a message. gmpy2 and cryptography are imported in this room alone. Keys, seeds, masks
and the encryption's randomness come from the operating system and stay in the object that drew them.
"""
