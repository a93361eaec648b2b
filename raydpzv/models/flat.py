"""A module whose trained parameters are views of one flat float32 vector; all else of it is
constant.
"""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations_with_replacement
from weakref import WeakValueDictionary

import numpy as np

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.lazy_import import torch
from raydpzv.models.orthogonal import orthonormal
from raydpzv.zo.spans import Shapes, layout_of

_SHARED: WeakValueDictionary[tuple[str, str], torch.Tensor] = WeakValueDictionary()
"""Constant tensors of this process by digest and device: the models of many clients keep one
copy.
"""


class FlatModel:
    """A module and its trained parameters as one contiguous vector, drawn from a key.

    module    the network in evaluation mode; its trained parameters are views of `flat`
    trained   name to trained parameter, in the order of `module.named_parameters()`; tied ones
    once, by the first name constant  name to frozen parameter or buffer
    flat      float32 [d]
    offsets   name of a trained parameter to its first element in `flat`

    `make` returns the module without weights (it is called where new tensors lie on torch's "meta"
    device), or one with weights, which are then the initial ones. Where it fails on that device, it
    is called for real. Raises InputError for a module that cannot be one vector.
    """

    def __init__(
        self, make: Callable[[], torch.nn.Module], key: Key, device: torch.device | str = "cpu"
    ) -> None:
        self._make = make
        found = _without_weights(make)
        self._drawn_by_layer = found is not None
        self.module = _apart(self._built(0) if found is None else found)
        self.module.eval()  # dropout passes through, batch normalisation uses its statistics
        self.trained, self.constant = split_state(self.module)
        self.offsets: dict[str, int] = {}
        size = 0
        for name, p in self.trained.items():
            self.offsets[name] = size
            size += p.numel()
        self.flat = torch.empty(size, dtype=torch.float32, device=device)
        self._given = {
            name for name, p in self.trained.items() if found is not None and not p.is_meta
        }
        self._install_constants(device)
        self._install_trained()
        self.draw(key)

    def draw(self, key: Key) -> None:
        """Set the trained parameters to their values before the first update.

        Those of known layers follow from the key: U(-1/√fan_in, 1/√fan_in) for weights and biases,
        as torch does; an embedding's entries on ±1/√width; normalisation layers and a summing head
        start as the identity. Others, and all of a module that cannot be built without weights,
        follow from the module's own initialisation, under a generator seeded from the key. Given
        weights stay.
        """
        own: torch.nn.Module | None = None
        for name, p in self.trained.items():
            if name in self._given:
                continue
            path, _, leaf = name.rpartition(".")
            layer = self.module.get_submodule(path)
            known = self._drawn_by_layer
            if known and isinstance(layer, _identities()):
                p.data.fill_(1.0 if leaf == "weight" else 0.0)
            elif (
                known
                and leaf.startswith(("weight", "bias"))
                and (fan_in := _fan_in(layer)) is not None
            ):
                draws = (
                    (key / "initial" / path / leaf).generator().random(p.numel(), dtype=np.float32)
                )
                bound = np.float32(1 / math.sqrt(fan_in))
                p.data.copy_(torch.from_numpy((draws * 2 - 1) * bound).view(p.shape))
            else:
                own = own or self._built((key / "initial" / "own").seed64())
                p.data.copy_(own.get_parameter(name))

    def _built(self, seed: int) -> torch.nn.Module:
        """Build the module with its own initialisation, under a generator that nothing else draws
        from.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._make()

    def _install_trained(self) -> None:
        """Make every trained parameter, under each of its names, a view of the vector."""
        first = {id(p): name for name, p in self.trained.items()}
        views: dict[str, torch.nn.Parameter] = {}
        for name, p in list(self.module.named_parameters(remove_duplicate=False)):
            if id(p) not in first:
                continue
            known = first[id(p)]
            if known not in views:
                view = self.flat[self.offsets[known] : self.offsets[known] + p.numel()].view(
                    p.shape
                )
                if not p.is_meta:
                    view.copy_(p.detach())
                views[known] = torch.nn.Parameter(view)
            owner, _, leaf = name.rpartition(".")
            setattr(self.module.get_submodule(owner), leaf, views[known])
        self.trained = views

    def _install_constants(self, device: torch.device | str) -> None:
        """Give constants their values: those of the module's own initialisation, the same for every
        key.
        """
        if any(t.is_meta for t in self.constant.values()):
            own = self._built(0)
            values = {**dict(own.named_parameters()), **dict(own.named_buffers())}
        else:
            values = self.constant
        self.constant = {name: _shared(values[name].detach(), device) for name in self.constant}
        for name, value in self.constant.items():
            owner, _, leaf = name.rpartition(".")
            module = self.module.get_submodule(owner)
            if leaf in module._parameters:
                setattr(module, leaf, torch.nn.Parameter(value, requires_grad=False))
            else:
                module._buffers[leaf] = value

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return self.flat.numel()

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The trained parameters, in the order of the vector."""
        return list(self.trained.values())

    @property
    def shapes(self) -> Shapes:
        """Return the trained parameters' names and shapes, in the order of the vector."""
        return tuple((name, tuple(p.shape)) for name, p in self.trained.items())

    @property
    def layout(self) -> str:
        """Return the digest of the trained parameters' names and shapes in order: what a flat
        vector has to fit.
        """
        return layout_of(self.shapes)

    def zero_last(self) -> None:
        """Set the parameters of the last layer that has any to 0."""
        for p in self._last().parameters(recurse=False):
            p.data.zero_()

    def orthogonal_last(self) -> None:
        """Make the last layer's weights orthonormal and its bias 0. Raises InputError for one that
        is not linear.
        """
        layer = self._last()
        if not isinstance(layer, torch.nn.Linear):
            raise InputError(
                f"orthonormal weights want a linear last layer, not {type(layer).__name__}"
            )
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

    def state_dict(self, flat: np.ndarray) -> dict[str, torch.Tensor]:
        """Return copies of the module's weights by name, at these trained parameters, float32 [d].

        Adapters are added to the weights beside them, so that the names are those of the module
        without adapters.
        """
        from raydpzv.models.lora import (
            LoraModel,
        )  # a subclass of torch's Module: would load a deferred torch

        with self.at(flat):
            own = (
                self.module.merged()
                if isinstance(self.module, LoraModel)
                else self.module.state_dict()
            )
            return {name: value.detach().clone() for name, value in own.items()}

    def sha256(self) -> str:
        """Return the digest of the trained parameters' bytes."""
        return hashlib.sha256(self.flat.cpu().numpy().tobytes()).hexdigest()


def _without_weights(make: Callable[[], torch.nn.Module]) -> torch.nn.Module | None:
    """Build a module on the meta device; None for one whose constructor needs numbers.

    Raises InputError for a function that loads weights, which would be lost.
    """
    with warnings.catch_warnings(record=True) as said, torch.device("meta"):
        warnings.simplefilter("always")
        try:
            module = make()
        except Exception as error:  # torch, NumPy and the user's checks say it in their own words
            if "meta" not in str(error).lower():
                raise
            return None
    if any("copying from a non-meta parameter" in str(warning.message) for warning in said):
        raise InputError(
            "the model's function loads weights, which a new model does not keep: hand over the "
            "module that it returns"
        )
    return module


def _apart(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module that shares no layer with others; one whose tensors have numbers is copied,
    but for those.

    A function may return a layer that it returned before, which would become a part of two models.
    Raises InputError for a module that cannot be copied.
    """
    tensors = [*module.parameters(), *module.buffers()]
    if all(t.is_meta for t in tensors):
        return module
    try:
        return copy.deepcopy(module, {id(t): t for t in tensors})
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"the model has weights of its own and cannot be copied ({error}); keep what "
            "copy.deepcopy refuses out of the module"
        ) from error


def shapes(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return a module on the meta device; with numbers, if its constructor needs them."""
    found = _without_weights(make)
    return make() if found is None else found


def split_state(
    module: torch.nn.Module,
) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.Tensor]]:
    """Return a module's trained parameters and its constants (frozen parameters and buffers) by
    their first names.

    Raises InputError for no trained parameter, for lazy layers, for other types than float32, for
    tensors that share numbers, and for batch normalisation without statistics of its own, which
    mixes the records of a batch.
    """
    for name, layer in module.named_modules():
        if (
            isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
            and not layer.track_running_stats
        ):
            raise InputError(
                f'the model\'s layer "{name}" is a BatchNorm without statistics of its own, which '
                "mixes records: use "
                "GroupNorm, LayerNorm, or track_running_stats=True (its statistics then stay as "
                "they are)"
            )
    parameters = dict(module.named_parameters())
    for name, tensor in {**parameters, **dict(module.named_buffers())}.items():
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(
                f'the model\'s "{name}" is of a lazy layer and has no shape yet: give the layer '
                "its sizes, such as "
                "nn.Linear(64, 10) for nn.LazyLinear(10)"
            )
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
    if not trained:
        raise InputError(
            "the model has no trained parameter: give one requires_grad=True, or use a model that "
            "has one"
        )
    constant = {**frozen, **dict(module.named_buffers())}
    for name, tensor in (*trained.items(), *frozen.items()):
        wanted = name in trained or tensor.is_floating_point()
        if wanted and tensor.dtype != torch.float32:
            raise InputError(
                f'the model\'s parameter "{name}" is {tensor.dtype}: use float32, such as '
                "model.float()"
            )
    check_apart(module)
    return trained, constant


def check_apart(module: torch.nn.Module) -> None:
    """Refuse a trained parameter that shares numbers with another tensor, or within itself.

    A step would move both, but in a vector, and in a copy, each has its own. Raises InputError.
    """
    storages: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.layout == torch.strided and not torch.nn.parameter.is_lazy(tensor):
            storages.setdefault(tensor.untyped_storage()._cdata, {})[name] = tensor
    for tensors in storages.values():
        if any(tensor.requires_grad for tensor in tensors.values()):
            _check_storage(tensors)


def _check_storage(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors of one storage, by name, of which a trained one shares numbers."""
    if len(tensors) == 1 and all(tensor.is_contiguous() for tensor in tensors.values()):
        return
    places = {name: _places(tensor) for name, tensor in tensors.items()}
    for (one, here), (other, there) in combinations_with_replacement(places.items(), 2):
        shared = len(np.unique(here)) < len(here) if one == other else np.isin(here, there).any()
        if shared and (tensors[one].requires_grad or tensors[other].requires_grad):
            names = f'"{one}"' if one == other else f'"{one}" and "{other}"'
            raise InputError(
                f"the model: the memory of {names} overlaps, so that a step moves shared numbers "
                "twice: give both names one parameter, such as b.weight = a.weight, or .clone() one"
            )


def _places(tensor: torch.Tensor) -> np.ndarray:
    """Return at which bytes of its storage a tensor's numbers begin."""
    size = tensor.element_size()
    numbers = torch.arange(tensor.untyped_storage().nbytes() // size, device="cpu")
    found = numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return found.reshape(-1).numpy() * size


def _shared(value: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Return the process's one copy of a constant on a device."""
    found = value.contiguous().to(device)
    digest = hashlib.sha256(f"{found.dtype} {tuple(found.shape)} ".encode())
    digest.update(found.cpu().numpy().tobytes())
    return _SHARED.setdefault((digest.hexdigest(), str(device)), found)


def _identities() -> tuple[type[torch.nn.Module], ...]:
    """Layers that start as the identity."""
    from raydpzv.models.heads import (
        SumHead,
    )  # a subclass of torch's Module: would load a deferred torch

    return torch.nn.GroupNorm, torch.nn.LayerNorm, torch.nn.modules.batchnorm._BatchNorm, SumHead


def _fan_in(layer: torch.nn.Module) -> int | None:
    """Return how many inputs each output of a layer has; None for a layer of unknown kind."""
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features
    if isinstance(layer, torch.nn.Conv2d):
        return layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    if isinstance(layer, torch.nn.LSTM):
        return layer.hidden_size
    return layer.embedding_dim if isinstance(layer, torch.nn.Embedding) else None
