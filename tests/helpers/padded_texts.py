"""The same texts alone, padded on either side, and beside others."""

from collections.abc import Callable, Iterator

import torch

LENGTH = 9
TEXTS = ([5, 7, 0, 3], [8, 2, 9, 4, 6, 1, 3], [7], [0, 0, 6], [3, 8, 4, 5, 6, 7, 2, 9, 1])
"""Token ids; 0 is a word of some of them."""


def padded(text: list[int], pad: int, left: int, length: int = LENGTH) -> list[int]:
    """A text of one length, with so many ids of padding before it and the others behind it."""
    return [pad] * left + text + [pad] * (length - left - len(text))


def scores_of_each(
    model: Callable[[torch.Tensor], torch.Tensor], pad: int
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield how a text is given, its scores then, and those of the text alone, which has none."""
    alone = [model(torch.tensor([text]))[0] for text in TEXTS]
    sides = {
        "right": [padded(text, pad, 0) for text in TEXTS],
        "left": [padded(text, pad, LENGTH - len(text)) for text in TEXTS],
        "both": [padded(text, pad, (LENGTH - len(text)) // 2) for text in TEXTS],
        "longer": [padded(text, pad, 2, LENGTH + 4) for text in TEXTS],
    }
    for side, rows in sides.items():
        batch = model(torch.tensor(rows, dtype=torch.float32))
        for number, (row, wanted) in enumerate(zip(rows, alone, strict=True)):
            yield f"{side}, text {number}, in a batch", batch[number], wanted
            yield f"{side}, text {number}", model(torch.tensor([row]))[0], wanted
