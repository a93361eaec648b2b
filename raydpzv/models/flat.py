"""A module whose parameters are views of one flat float32 vector."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.models.orthogonal import orthonormal


class FlatModel:
    """A module and its parameters as one contiguous vector, drawn from a key.

    module    the network; its parameters are views of `flat`
    flat      float32 [d], in the order of `module.named_parameters()`
    offsets   parameter name to its first element in `flat`
    """

    def __init__(
        self, make: Callable[[], torch.nn.Module], key: Key, device: torch.device | str = "cpu"
    ) -> None:
        with torch.device("meta"):
            self.module = make()
        self.offsets: dict[str, int] = {}
        size = 0
        for name, p in self.module.named_parameters():
            self.offsets[name] = size
            size += p.numel()
        _refuse_unsuitable(self.module)
        self.flat = torch.empty(size, dtype=torch.float32, device=device)
        self._install()
        initialise(self.module, key)

    def _install(self) -> None:
        for name, p in list(self.module.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            view = self.flat[self.offsets[name] : self.offsets[name] + p.numel()].view(p.shape)
            setattr(self.module.get_submodule(owner), leaf, torch.nn.Parameter(view))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.flat.numel()

    @property
    def layout(self) -> str:
        """Return the digest of the parameters' names and shapes in order: what a flat vector has to fit."""
        shapes = [(name, tuple(p.shape)) for name, p in self.module.named_parameters()]
        return hashlib.sha256(repr(shapes).encode()).hexdigest()

    def zero_last(self) -> None:
        """Set the parameters of the last layer that has any to 0."""
        for p in self._last().parameters(recurse=False):
            p.data.zero_()

    def orthogonal_last(self) -> None:
        """Make the last layer's weights orthonormal and its bias 0. Raises InputError for one that is not linear."""
        layer = self._last()
        if not isinstance(layer, torch.nn.Linear):
            raise InputError(f"orthonormal weights want a linear last layer, not {type(layer).__name__}")
        weights = layer.weight.data
        weights.copy_(torch.from_numpy(orthonormal(weights.cpu().numpy())))
        if layer.bias is not None:
            layer.bias.data.zero_()

    def _last(self) -> torch.nn.Module:
        return self.module.get_submodule(list(self.offsets)[-1].rpartition(".")[0])

    @contextmanager
    def at(self, parameters: np.ndarray | None) -> Iterator[None]:
        """Inside, the model has these parameters, float32 [d]; None: its own."""
        if parameters is None:
            yield
            return
        own = self.flat.clone()
        self.flat.copy_(torch.from_numpy(parameters))
        try:
            yield
        finally:
            self.flat.copy_(own)

    def sha256(self) -> str:
        """Return the digest of the parameters' bytes."""
        return hashlib.sha256(self.flat.cpu().numpy().tobytes()).hexdigest()


def _refuse_unsuitable(module: torch.nn.Module) -> None:
    """Refuse what mixes records, draws from a global generator, or is not in the parameter vector."""
    layers = list(module.modules())
    # a BatchNorm with neither statistics nor weights mixes records all the same
    if any(isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) for layer in layers) or any(
        True for _ in module.buffers()
    ):
        raise InputError(
            "the model has BatchNorm or keeps buffers: they mix records or are not in the parameter vector; "
            "use GroupNorm or LayerNorm"
        )
    if any(isinstance(layer, torch.nn.modules.dropout._DropoutNd) for layer in layers):
        raise InputError(
            "the model has dropout: its masks come from torch's global generator and differ between w + λu and "
            "w - λu; leave it out"
        )
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        raise InputError(
            "two layers of the model share a parameter: give each its own, or share the whole layer"
        )


def initialise(module: torch.nn.Module, key: Key) -> None:
    """Fill every parameter from the key: U(-1/√fan_in, 1/√fan_in) for weights and biases, as torch does.

    An embedding's entries are drawn on ±1/√width. Normalisation layers and a summing head start as the identity. A
    layer type of unknown fan-in is an error, never a guess.
    """
    from raydpzv.models.heads import SumHead  # a subclass of torch's Module: would load a deferred torch

    for path, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        if not own:
            continue
        if isinstance(layer, torch.nn.GroupNorm | torch.nn.LayerNorm | SumHead):
            layer.reset_parameters()
            continue
        bound = 1 / math.sqrt(_fan_in(layer))
        for name, p in own.items():
            draws = (key / "initial" / path / name).generator().random(p.numel(), dtype=np.float32)
            p.data.copy_(torch.from_numpy((draws * 2 - 1) * np.float32(bound)).view(p.shape))


def _fan_in(layer: torch.nn.Module) -> int:
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features
    if isinstance(layer, torch.nn.Conv2d):
        return layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    if isinstance(layer, torch.nn.LSTM):
        return layer.hidden_size
    if isinstance(layer, torch.nn.Embedding):
        return layer.embedding_dim
    raise InputError(
        f"no initialisation is defined for {type(layer).__name__}: use Linear, Conv2d, LSTM, Embedding or a norm"
    )
