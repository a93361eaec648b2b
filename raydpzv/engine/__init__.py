"""What computes a vertical run's models: torch, or kernels compiled for small ones, behind one pair of interfaces."""
