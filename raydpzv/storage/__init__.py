"""Copy a run's folder to a file system that pyarrow opens, and back to another machine's disk."""
