"""The compiled kernels, made before the first test."""

import numpy as np
import torch

from raydpzv.zo import numba_kernel
from raydpzv.zo.apply_seeds import replay
from raydpzv.zo.directions import LAWS, Direction


def compile_kernels() -> None:
    """Call every kernel with the types of real calls: numba keeps them beside their file, where
    each process that the tests start finds them. Without this a clean clone compiles in all of them
    at the same time.
    """
    x = torch.zeros(8)
    for law in LAWS:
        Direction(1, len(x), law).add_to(x, 1.0)
        if law != "sphere":
            replay(x, [1], [1.0], law=law)
    numba_kernel.add_scaled(x.numpy(), x.numpy(), np.float32(1))
