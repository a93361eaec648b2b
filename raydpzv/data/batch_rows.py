"""Which of its rows a stateless client uses: a function of the key, the client, the round and the local step."""

from __future__ import annotations

import numpy as np

from raydpzv.data.horizontal import Partition
from raydpzv.keys import Key


def batch_rows(parts: Partition, key: Key, client: int, round: int, step: int, batch: int) -> np.ndarray:
    """Return min(B, n_i) different row ids of the client, drawn uniformly."""
    held = parts.rows(client)
    if batch >= len(held):
        return held
    generator = (key / "rows" / client / round / step).generator()
    return held[generator.choice(len(held), batch, replace=False)]
