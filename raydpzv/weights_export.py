"""A run's weights under names that other libraries read: of the whole module, or of its adapters as
peft has them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raydpzv.errors import DataError, InputError, missing
from raydpzv.experiment.finalize import Run, folder_of
from raydpzv.experiment.initial_model import MODEL, WHOLE, FirstModel
from raydpzv.experiment.rebuild import check_possible, from_ledger
from raydpzv.experiment.resuming import prepared_again
from raydpzv.files import sha256, write_atomically
from raydpzv.lazy_import import torch
from raydpzv.models.flat import FlatModel
from raydpzv.records.run_folder import RunFolder
from raydpzv.settings.party_names import client_number
from raydpzv.version import __version__

FORMATS = ("safetensors", "peft")
_ADAPTER, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


def export(
    run: Run | str | Path,
    out: str | Path,
    *,
    format: str = "safetensors",
    party: str | int | None = None,
    at: int | None = None,
    moved: Sequence[str] = (),
) -> dict[str, tuple[int, ...]]:
    """Write a run's weights, and return their shapes by name.

    format: "safetensors", a file of all weights under the module's own names, adapters merged; or
    "peft", a folder that `peft.PeftModel.from_pretrained` loads, with the adapters and
    modules_to_save alone. party: of a vertical run, a party's name or number, or "server". at:
    after how many updates, from the ledger; None: at the end. moved: where the data are now, see
    `RunFolder.open`. Raises InputError and DataError.
    """
    path, target = folder_of(run, "export"), Path(out)
    if format not in FORMATS:
        raise InputError(f"--format: wanted {' or '.join(FORMATS)}, got {format!r}")
    if format == "safetensors" and target.suffix != ".safetensors":
        raise InputError(f"--out: wanted a file NAME.safetensors, got {target}")
    folder = RunFolder.open(path, moved)
    if format == "safetensors" and (name := _on_record(folder, party)):
        flat = _vector(folder, name, at)
        tensors = _by_name(folder, name, flat)
        _write({target: _bytes(tensors, flat)})
        return {tensor: tuple(value.shape) for tensor, value in tensors.items()}
    prepared = prepared_again(folder)
    check_possible(prepared, folder)
    name = prepared.model_name(party)
    model, flat = prepared.flat_model(name), _vector(folder, name, at)
    if format == "safetensors":
        tensors = model.state_dict(flat)
        _write({target: _bytes(tensors, flat)})
    else:
        tensors = _adapters(model, flat)
        config = json.dumps(model.module.adapter_config(), indent=2)  # type: ignore[operator]
        _write({target / _ADAPTER: _bytes(tensors, flat), target / _CONFIG: f"{config}\n".encode()})
    return {tensor: tuple(value.shape) for tensor, value in tensors.items()}


def _on_record(folder: RunFolder, party: str | int | None) -> str:
    """Return the name of a user's model if the record has all of it; "" where its code is needed.

    Neither data nor code are read then.
    """
    spec, name = folder.spec(), ""
    if spec.one_model:
        name = MODEL if party is None else ""
    elif party not in (None, "server"):
        name = f"client {client_number(str(party), spec.party_names, 'party')}"
    return name if name in (folder.environment().get(WHOLE) or ()) else ""


def _by_name(folder: RunFolder, name: str, flat: np.ndarray) -> dict[str, torch.Tensor]:
    first = FirstModel.recorded(folder.first_models(), folder.environment())
    if name not in first or flat.size != first[name].size:
        raise DataError(
            f"{folder.path}: models.npz and initial.npz do not hold the same models; restore both "
            "from a copy"
        )
    found, place = {}, 0
    for tensor, shape in first[name].shapes:
        size = math.prod(shape)
        found[tensor] = torch.tensor(flat[place : place + size].reshape(shape))
        place += size
    return found


def _vector(folder: RunFolder, name: str, at: int | None) -> np.ndarray:
    """Return a model's trained parameters float32 [d], checked against the record where it has
    their digest.
    """
    if at is None:
        models = folder.models()
        if name in models:
            recorded = [
                row["sha256"] for row in folder.rows()["model"].to_pylist() if row["party"] == name
            ]
            if recorded and recorded[-1] != sha256(models[name]):
                raise DataError(
                    f"{folder.path}: models.npz is not what the run ended with; restore it from a "
                    "copy"
                )
            return models[name]
    party = name.partition(" ")[2]
    found = from_ledger(folder.path, at, int(party) if party else None)
    if found is None or name not in found.models:
        raise InputError(
            f"export: the ledger of {folder.path} cannot rebuild {name} at --at; leave --at out"
        )
    return found.models[name]


def _adapters(model: FlatModel, flat: np.ndarray) -> dict[str, Any]:
    from raydpzv.models.lora import LoraModel  # loads torch

    if not isinstance(model.module, LoraModel):
        raise InputError("--format: peft wants a run with adapters ([model.lora]); use safetensors")
    with model.at(flat):
        return {name: p.detach().clone() for name, p in model.trained.items()}


def _bytes(tensors: dict[str, Any], flat: np.ndarray) -> bytes:
    try:
        from safetensors.torch import save
    except ImportError:
        raise missing(
            "safetensors", "weights", ", or save run.state_dict() with torch.save"
        ) from None
    return save(tensors, {"format": "pt", "raydpzv": __version__, "model_digest": sha256(flat)})


def _write(files: dict[Path, bytes]) -> None:
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the weights ({error.strerror or error})"
            ) from None
