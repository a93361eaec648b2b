"""Engines that compute models: torch, or kernels compiled for small ones, behind the interfaces
that methods know.
"""
