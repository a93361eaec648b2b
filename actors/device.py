"""Which device an actor computes on, and how much of it."""

from __future__ import annotations

import torch


def claim_device(gpus: float) -> str:
    """Give this process one torch thread and its GPU share; return the device.

    The device follows from the GPUs Ray assigned, never from `is_available`, which is true in CPU actors too.
    Ray's fraction is bookkeeping; the memory limit is set here.
    """
    import ray

    torch.set_num_threads(1)
    if not ray.get_gpu_ids() or not torch.cuda.is_available():
        return "cpu"
    if 0 < gpus < 1:
        torch.cuda.set_per_process_memory_fraction(gpus)
    return "cuda"
