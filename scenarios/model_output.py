"""Models that were rebuilt: whose they are, on the screen and in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from raydpzv.errors import InputError
from raydpzv.files import sha256, write_npz
from raydpzv.settings.party_names import named


def whose(client: int | None, at: int | None) -> str:
    """Say whose model was rebuilt: a client holds the one that its last update, or catching up, made."""
    if client is None:
        return "rebuilt: the model"
    return f"rebuilt: what client {client} last had{'' if at is None else f' by update {at}'}, the model"


def print_models(models: Mapping[str, np.ndarray], out: Path | None, names: Sequence[str] = ()) -> None:
    """Write models to a file, if one is given, and print what they are. names: those of the clients' parties."""
    if out:
        write_npz(out, models)
        print(f"written: {out} ({', '.join(name.replace(' ', '_') for name in models)})")
    for name, values in models.items():
        print(f"{named(name, names)}: {values.size} parameters, sha256 {sha256(values)}")


def one_model(models: Mapping[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    """Return one client's model; InputError if there is no such client."""
    name = f"client {client}"
    if name not in models:
        raise InputError(f"--client: wanted 0..{len(models) - 2}, got {client}")
    return {name: models[name]}
