"""The device that an actor computes on, and its share of it."""

from __future__ import annotations

import os
import sys


def claim_device(gpus: float) -> str:
    """Give this process one thread for its numbers and its GPU share; return the device.

    The device follows from the GPUs Ray assigned, never from `is_available`, which is true in CPU
    actors too. Ray's fraction is bookkeeping; the memory limit is set here. Environment variables
    set torch's number of threads, since its import takes two seconds of CPU and may never be
    needed.
    """
    import ray

    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
    if not ray.get_gpu_ids():
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    if 0 < gpus < 1:
        torch.cuda.set_per_process_memory_fraction(gpus)
    return "cuda"
