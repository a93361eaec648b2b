"""The bottom for texts: token ids to an embedding, by a transformer encoder trained from scratch.

The layers are BERT's (Devlin et al. 2018: normalisation after each block, GELU, feed-forward four
times as wide), not its pre-trained weights. Attention is written out: torch's own layer reads its
inner weights without calling them, and so has no moment in which they could be perturbed. No
dropout: its masks would differ between w + λu and w - λu.
"""

# B batch, L tokens, W width, H heads, V vocabulary

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from raydpzv.errors import SpecError

_HEAD_WIDTH = 64
"""Width of an attention head, as in BERT; a width that it does not divide has one head."""


class SelfAttention(nn.Module):
    """softmax(q kᵀ / √(W/H)) v over the tokens that may be looked at, then a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._heads = width // _HEAD_WIDTH if width % _HEAD_WIDTH == 0 else 1
        self.mixed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BLW: torch.Tensor, seen_BL: torch.Tensor) -> torch.Tensor:
        """[B, L, W], and which tokens may be looked at -> [B, L, W]."""
        batch, length, width = x_BLW.shape
        parts = self.mixed(x_BLW).view(batch, length, 3, self._heads, width // self._heads)
        q_BHLw, k_BHLw, v_BHLw = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(
            q_BHLw, k_BHLw, v_BHLw, attn_mask=seen_BL[:, None, None, :]
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a residual sum and normalisation after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BLW: torch.Tensor, seen_BL: torch.Tensor) -> torch.Tensor:
        """[B, L, W], and which tokens may be looked at -> [B, L, W]."""
        x_BLW = self.attention_norm(x_BLW + self.attention(x_BLW, seen_BL))
        return self.norm(x_BLW + self.feed_forward(x_BLW))


def _embedding(rows: int, width: int) -> nn.Embedding:
    # given without values: drawn while only shapes are wanted, they would import torch's compiler
    # (4 s of CPU)
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class Transformer(nn.Module):
    """Token and place embeddings, encoder layers, the mean over the tokens that are no padding, one
    linear layer.
    """

    def __init__(self, vocabulary: int, length: int, layers: int, hidden: int, width: int) -> None:
        super().__init__()
        self.tokens = _embedding(vocabulary, hidden)
        self.places = _embedding(length, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(EncoderLayer(hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Token ids [B, L] as floats (0: padding) -> [B, E]; a text of padding alone has the mean
        0.
        """
        ids_BL = x.long()
        real_BL = ids_BL != 0
        seen_BL = real_BL | ~real_BL.any(
            1, keepdim=True
        )  # older torch makes NaN of a softmax over nothing
        places_L = torch.arange(ids_BL.shape[1], device=x.device)
        x_BLW = self.norm(self.tokens(ids_BL) + self.places(places_L))
        for layer in self.layers:
            x_BLW = layer(x_BLW, seen_BL)
        counts_B1 = real_BL.sum(1, keepdim=True).clamp(min=1)
        return self.out((x_BLW * real_BL[:, :, None]).sum(1) / counts_B1)


def transformer(
    shape: Sequence[int], hidden: Sequence[int], width: int, vocabulary: int
) -> nn.Module:
    """Return the encoder for texts of L tokens, a layer for each of the equal hidden widths: [B, L]
    -> [B, width].

    V·W + L·W + 2W parameters for the embeddings, 12W² + 13W a layer, (W + 1)·width for the last
    one. Raises SpecError.
    """
    if len(shape) != 1 or not hidden or len(set(hidden)) > 1:
        raise SpecError(
            "model.bottom: a transformer needs texts [tokens] and equal hidden widths, one per "
            "layer, but the split "
            f'gives each client {list(shape)}, with hidden = {list(hidden)}; use how = "tokens" '
            "and such as [128, 128]"
        )
    return Transformer(vocabulary, shape[0], len(hidden), hidden[0], width)
