"""Files of named tensors (safetensors), read and written without torch; checkpoints of torch are
read by torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raydpzv.errors import DataError, InputError
from raydpzv.files import write_atomically
from raydpzv.foreign import importing, is_foreign

_LENGTH = struct.Struct("<Q")
_FLOAT32 = "F32"


class RawTensor(NamedTuple):
    """A tensor as its file has it: the type by its name of safetensors, the shape, the bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: npt.NDArray[np.float32]) -> RawTensor:
        """Return float32 values."""
        return cls(_FLOAT32, values.shape, values.astype("<f4").tobytes())

    @property
    def values(self) -> npt.NDArray[np.float32] | None:
        """The numbers, float32; None of another type."""
        if self.dtype == "F16":
            return np.frombuffer(self.data, "<f2").astype(np.float32).reshape(self.shape)
        if self.dtype == "BF16":
            wide = np.frombuffer(self.data, "<u2").astype(np.uint32) << np.uint32(16)
            return wide.view(np.float32).reshape(self.shape)
        if self.dtype != _FLOAT32:
            return None
        return np.frombuffer(self.data, "<f4").astype(np.float32).reshape(self.shape)


def read_tensors(word: str | Path) -> dict[str, RawTensor]:
    """Return tensors by name, of a file or of what "module:attribute" names. Raises DataError,
    SpecError.
    """
    path = Path(word)
    if is_foreign(str(word)) or path.suffix != ".safetensors":
        return _of_torch(str(word))
    try:
        data = path.read_bytes()
        begin = 8 + _LENGTH.unpack_from(data)[0]
        found = {}
        for name, about in json.loads(data[8:begin]).items():
            if name == "__metadata__":
                continue
            first, last = about["data_offsets"]
            shape = tuple(int(n) for n in about["shape"])
            if not 0 <= first <= last <= len(data) - begin:
                raise ValueError(f'"{name}" ends beyond the file')
            found[name] = RawTensor(str(about["dtype"]), shape, data[begin + first : begin + last])
            values = found[name].values
            if values is not None and values.size != math.prod(shape):
                raise ValueError(f'"{name}" has {values.size} numbers for its shape')
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise DataError(
            f"{path}: is no whole safetensors file ({reason}); restore it from a copy"
        ) from None
    return found


def _of_torch(word: str) -> dict[str, RawTensor]:
    from raydpzv.models.initial_weights import read_weights  # loads torch

    try:
        with importing(True):  # the word is the user's own, and of no folder
            given = read_weights(word)
    except InputError as error:  # who has a seed file has no scenario, and so no such setting
        raise type(error)(str(error).replace("model.weights: ", "--weights: ", 1)) from None
    return {
        name: RawTensor.of(tensor.detach().float().contiguous().numpy())
        for name, tensor in given.items()
        if tensor.is_floating_point()
    }


def frozen_sha256(tensors: Mapping[str, RawTensor], trained: Collection[str]) -> bytes:
    """Return the digest of the tensors of floats that are not trained, as float32 by name; b"" if
    there are none.
    """
    digest, found = hashlib.sha256(), False
    for name in sorted(tensors.keys() - set(trained)):
        values = tensors[name].values
        if values is not None:
            digest.update(
                f"{name} {list(values.shape)}\n".encode() + values.astype("<f4").tobytes()
            )
            found = True
    return digest.digest() if found else b""


def write_tensors(path: Path, tensors: Mapping[str, RawTensor]) -> None:
    """Write a safetensors file; equal tensors give equal bytes. Raises InputError if it cannot be
    written.
    """
    header: dict[str, Any] = {}
    place = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [place, place + len(tensor.data)],
        }
        place += len(tensor.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join((_LENGTH.pack(len(text)), text, *(tensor.data for tensor in tensors.values())))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise InputError(f"{path}: cannot write the weights ({error.strerror or error})") from None
