"""A user's own models: a module, or a class or function that makes one."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch

from raydpzv.errors import InputError, SpecError
from raydpzv.foreign import call, is_handle, resolve
from raydpzv.models.flat import FlatModel, check_apart, shapes
from raydpzv.zo.directions import Direction
from raydpzv.zo.perturbation import WholePerturbation, perturbation

OwnModel = Callable[[Mapping[str, Any], Mapping[str, Any]], "torch.nn.Module"]
"""(options of the scenario, what the program offers by name) to a module."""


def model(name: str) -> OwnModel:
    """Return what makes a user's module. Raises SpecError for an object that cannot."""
    found = resolve(name, "model")
    if isinstance(found, torch.nn.Module):
        return lambda options, offered: _copied(name, found, options)
    if not callable(found):
        raise SpecError(
            f"model{_shown(name)}: wanted an nn.Module, or a class or function that returns one, "
            "got "
            f'{type(found).__name__}; give one, or a name of the program\'s such as "mlp"'
        )

    def make(options: Mapping[str, Any], offered: Mapping[str, Any]) -> torch.nn.Module:
        made = call(found, options, offered, "model.options")
        if not isinstance(made, torch.nn.Module):
            raise SpecError(
                f"model{_shown(name)}: wanted an nn.Module from the call, got "
                f"{type(made).__name__}; let it return one"
            )
        return made

    return make


def _shown(name: str) -> str:
    """Return a name as messages have it; a handle tells a reader nothing."""
    return "" if is_handle(name) else f' "{name}"'


def _copied(name: str, module: torch.nn.Module, options: Mapping[str, Any]) -> torch.nn.Module:
    if options:
        raise SpecError(
            f"model.options:{_shown(name) or ' it'} is a module, which takes none; leave them out "
            "or name its class"
        )
    check_apart(module)  # a copy has numbers of its own for each name
    return copy.deepcopy(module)


def check_model(model: FlatModel, records: np.ndarray, width: int, title: str) -> None:
    """Refuse a module that is no function of a single record, on some records [B, ...].

    width: numbers that the module has to give a record. Raises InputError, which says what to
    change.
    """
    records = records if len(records) > 1 else np.repeat(records, 2, 0)
    x = torch.tensor(records, device=model.flat.device)
    before = x.clone(), constants_sha256(model)
    scores = _forward(model, x, title)
    got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if got != (len(x), width):
        raise InputError(
            f"{title}: wanted scores [{len(x)}, {width}] of {len(x)} records, got {got}; let its "
            f"last layer give a tensor of {width} numbers for each record"
        )
    if not scores.is_floating_point():
        raise InputError(
            f"{title}: wanted scores that are floats, got {scores.dtype}; return real numbers, "
            "such as scores.real or scores.abs()"
        )
    if not bool(scores.isfinite().all()):
        raise InputError(
            f"{title}: its scores of these records are not finite; look at its weights and at the "
            "size of the inputs"
        )
    if not torch.equal(x, before[0]):
        raise InputError(
            f"{title}: its forward call changes the records it is given; let it work on a copy"
        )
    if constants_sha256(model) != before[1]:
        raise InputError(
            f"{title}: its forward call changes a buffer, so that a replay would not find it; make "
            "it a function"
        )
    if not torch.equal(scores, _forward(model, x, title)):
        raise InputError(
            f"{title}: two forward calls on the same records differ; leave out what is random, "
            "such as dropout that is on in evaluation"
        )
    if place := mixing_place(model.module, lambda given: _forward(model, given, title), x, scores):
        raise InputError(
            f"{title}: a record's scores depend on the other records of its batch, {place}; leave "
            "out what mixes records, such as statistics over the batch"
        )
    if not _perturbs_whole(model, x, title):
        raise InputError(
            f"{title}: it reads a layer's weights outside the layer's own forward call, where they "
            "are not perturbed; give a layer of its own the same parameter, such as head.weight = "
            "embedding.weight"
        )


def _perturbs_whole(model: FlatModel, x: torch.Tensor, title: str) -> bool:
    """Return whether perturbing layer by layer, as a large model is, has the bits of perturbing the
    whole vector.
    """
    layerwise = perturbation(model.module, model.flat, model.offsets)
    if isinstance(layerwise, WholePerturbation):
        return True
    found = []
    for kind in (WholePerturbation(model.module, model.flat, model.offsets), layerwise):
        with kind.at(Direction(0, model.size), 0.1):
            found.append(_forward(model, x, title))
    return torch.equal(*found)


def takes_whole_numbers(make: Callable[[], torch.nn.Module], shape: tuple[int, ...]) -> bool:
    """Return whether a module's rows of a shape are whole numbers: one of its embedding layers reads
    them, or its forward call takes no others.

    It is called on zeros. Tensors without numbers tell most modules; where they do not, it is built
    with numbers.
    """
    found = _takes(shapes(make), shape)
    if found is None:
        with torch.random.fork_rng(devices=[]):
            found = _takes(make(), shape)
    return bool(found)


def _takes(module: torch.nn.Module, shape: tuple[int, ...]) -> bool | None:
    """Return whether rows are whole numbers to a module; None where its tensors have no numbers and
    do not tell: products of these have no type.
    """
    bare = any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
    embedded: list[str] = []
    for layer in module.modules():
        if isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag):
            layer.register_forward_hook(lambda *called: embedded.append("called"))
    fits = []
    for kind in (torch.float32, torch.int64):
        try:
            with torch.no_grad():
                module.eval()(torch.zeros(2, *shape, dtype=kind, device="meta" if bare else "cpu"))
            fits.append(True)
        except Exception:  # whatever the user's forward raises; the check of a model says it
            fits.append(False)
    floats, whole = fits
    if bare and (not (floats or whole) or (floats and whole and embedded)):
        return None
    return whole and (bool(embedded) or not floats)


def mixing_place(
    module: torch.nn.Module,
    forward: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    outputs: torch.Tensor,
) -> str | None:
    """Return where outputs of records [B, ...] follow from others of their batch, in words; None:
    they do not.

    Records whose number has a bit set change together, for each bit and its opposite: of any two
    records each changes once while the other stays. A record that equals the one before it changes
    to its own largest number alone.
    """
    others = x.roll(1, 0)
    same = (others == x).flatten(1).all(1)
    others = torch.where(
        same.view(-1, *[1] * (x.ndim - 1)), x.amax(-1, keepdim=True).expand_as(x), others
    )
    whole = not others.is_floating_point() or bool((others == others.round()).all())
    others = (
        others if whole else others + 1
    )  # token ids may be the last ones, also where they come as floats
    numbers = torch.arange(len(x), device=x.device)
    for bit in range(max(1, (len(x) - 1).bit_length())):
        for value in (0, 1):
            stays = (numbers >> bit & 1) == value
            mixed = torch.where(stays.view(-1, *[1] * (x.ndim - 1)), x, others)
            if not torch.equal(forward(mixed)[stays], outputs[stays]):
                return _first_mixing(module, forward, (x, mixed), stays)
    return None


def _first_mixing(
    module: torch.nn.Module,
    forward: Callable[[torch.Tensor], torch.Tensor],
    batches: tuple[torch.Tensor, torch.Tensor],
    stays: torch.Tensor,
) -> str:
    """Return the first layer whose outputs of the records that stay differ between two batches."""
    seen: list[tuple[str, torch.nn.Module, torch.Tensor]] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(layer: torch.nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.ndim and len(output) == len(stays):
                seen.append((name, layer, output[stays].clone()))

        return hook

    hooks = [
        layer.register_forward_hook(keep(name)) for name, layer in module.named_modules() if name
    ]
    try:
        for batch in batches:
            forward(batch)
    finally:
        for each in hooks:
            each.remove()
    half = len(seen) // 2
    differing = (
        f'first in its layer "{name}" ({type(layer).__name__})'
        for (name, layer, one), (_, _, other) in zip(seen[:half], seen[half:], strict=False)
        if not torch.equal(one, other)
    )
    return next(differing, "in its forward call itself")


def _forward(model: FlatModel, x: torch.Tensor, title: str) -> torch.Tensor:
    try:
        with torch.no_grad():
            return cast(torch.Tensor, model.module(x))
    except Exception as error:  # whatever the user's forward raises is said in one line
        if unknown := unknown_id(model.module, lambda: model.module(x)):
            raise InputError(f"{title}: {unknown}") from error
        text = " ".join(str(error).split())
        raise InputError(
            f"{title}: its forward call fails on {len(x)} records {list(x.shape)} of {x.dtype} "
            f"({type(error).__name__}: {text}){_other_type(model, x)}"
        ) from error


def _other_type(model: FlatModel, x: torch.Tensor) -> str:
    """Return what helps a module that takes rows of the other type, in words; "" for others."""
    floats = x.is_floating_point()
    try:
        with torch.no_grad():
            model.module(x.long() if floats else x.float())
    except Exception:  # the caller has one already, and says it
        return ""
    return f"; it takes {'whole numbers' if floats else 'numbers'}: set model.integers = {str(floats).lower()}"


def unknown_id(module: torch.nn.Module, forward: Callable[[], object]) -> str | None:
    """Return which number of a failing forward call has no row in an embedding, in words; None:
    that is not why.
    """
    found: list[str] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(layer: torch.nn.Embedding, inputs: tuple[torch.Tensor, ...]) -> None:
            wrong = inputs[0][(inputs[0] < 0) | (inputs[0] >= layer.num_embeddings)]
            if wrong.numel() and not found:
                found.append(
                    f"records have the token id {int(wrong[0])}, wanted whole numbers in "
                    f"0..{layer.num_embeddings - 1} "
                    f'(layer "{name}"); use the tokenizer of this model'
                )

        return hook

    layers = [
        (n, layer) for n, layer in module.named_modules() if isinstance(layer, torch.nn.Embedding)
    ]
    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers]
    try:
        with torch.no_grad():
            forward()
    except Exception:  # the caller has it already, and says it where ids are not why
        return found[0] if found else None
    finally:
        for each in hooks:
            each.remove()
    return None


def constants_sha256(model: FlatModel) -> str:
    """Return the digest of a model's frozen parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in {
        **dict(model.module.named_buffers()),
        **dict(model.module.named_parameters()),
    }.items():
        if name not in model.trained:
            digest.update(f"{name} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
