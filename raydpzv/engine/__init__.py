"""What computes a run's models: torch, or kernels compiled for small ones, behind the interfaces that methods know."""
