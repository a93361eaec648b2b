"""The bottom for texts, against torch's own encoder layers and against an explicitly perturbed
copy.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.models.bottoms import bottom
from raydpzv.models.flat import FlatModel
from raydpzv.models.transformer import Transformer, transformer
from raydpzv.zo.directions import LAWS
from tests.helpers.perturbed import check_perturbed

VOCABULARY = 50


def texts(rows: int = 6, length: int = 9) -> torch.Tensor:
    """Row i has its last i tokens padded; the very last row is padding alone."""
    ids = (Key(1) / "ids").generator().integers(1, VOCABULARY, (rows, length)).astype(np.float32)
    for row in range(rows):
        ids[row, length - row :] = 0
    ids[-1] = 0
    return torch.from_numpy(ids)


def small(hidden=(16, 16), length: int = 9) -> FlatModel:
    return FlatModel(lambda: transformer((length,), hidden, 3, VOCABULARY), Key(2))


def torchs_layer(layer: nn.Module, width: int, heads: int) -> nn.TransformerEncoderLayer:
    """Torch's layer with the weights of ours."""
    theirs = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=False
    )
    names = {
        "self_attn.in_proj_": "attention.mixed.",
        "self_attn.out_proj.": "attention.out.",
        "linear1.": "feed_forward.0.",
        "linear2.": "feed_forward.2.",
        "norm1.": "attention_norm.",
        "norm2.": "norm.",
    }
    own = layer.state_dict()
    theirs.load_state_dict(
        {
            their + kind: own[our + kind]
            for their, our in names.items()
            for kind in ("weight", "bias")
        }
    )
    return theirs


@pytest.mark.parametrize(("width", "heads"), [(128, 2), (64, 1), (24, 1)])
def test_it_computes_what_torchs_encoder_layers_do(width: int, heads: int) -> None:
    model = FlatModel(lambda: transformer((9,), (width, width), 3, VOCABULARY), Key(2))
    net, x = model.module, texts()[:-1]
    assert isinstance(net, Transformer)
    padding = x == 0
    hidden = net.norm(net.tokens.weight[x.long()] + net.places.weight[None])
    for layer in net.layers:
        hidden = torchs_layer(layer, width, heads)(hidden, src_key_padding_mask=padding)
    means = torch.stack([row[~padded].mean(0) for row, padded in zip(hidden, padding, strict=True)])
    assert torch.allclose(net(x), net.out(means), atol=2e-6)
    # the comparison can fail: another number of heads is another function
    other = torchs_layer(net.layers[0], width, 4)(hidden)
    assert not torch.allclose(torchs_layer(net.layers[0], width, heads)(hidden), other, atol=1e-4)


@pytest.mark.parametrize(
    ("hidden", "length", "width"), [((16, 16), 9, 3), ((128, 128), 64, 64), ((8,), 1, 1)]
)
def test_its_parameters_are_those_of_the_closed_form(hidden, length, width) -> None:
    w = hidden[0]
    with torch.device("meta"):
        made = bottom("transformer", (length,), hidden, width, 30_522)
    embeddings, layer = (30_522 + length) * w + 2 * w, 12 * w * w + 13 * w
    assert (
        sum(p.numel() for p in made.parameters())
        == embeddings + len(hidden) * layer + (w + 1) * width
    )


def test_padding_is_not_looked_at() -> None:
    model, x = small(), texts()
    before = model.module(x)
    model.module.tokens.weight.data[0] += 5.0
    assert torch.equal(model.module(x), before)
    model.module.tokens.weight.data[1:] += torch.arange(16.0)
    changed = (model.module(x) != before).any(1)
    assert changed.tolist() == [True] * 5 + [False], "control: the words' own embeddings are"


def test_a_text_of_padding_alone_has_an_embedding_and_a_gradient() -> None:
    model, x = small(), texts()
    out = model.module(x)
    assert torch.equal(out[-1], model.module.out.bias)
    gradients = torch.autograd.grad(out.square().sum(), list(model.module.parameters()))
    assert all(torch.isfinite(g).all() for g in gradients)
    assert sum(g.abs().sum() > 0 for g in gradients) == len(gradients)


def test_no_softmax_is_over_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer torch makes 0 of it, older torch NaN: so every text may look at something."""
    masks: list[torch.Tensor] = []
    own = functional.scaled_dot_product_attention

    def spied(*tensors: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
        masks.append(attn_mask)
        return own(*tensors, attn_mask=attn_mask)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spied)
    small().module(texts())
    assert len(masks) == 2
    assert all(mask.any(-1).all() for mask in masks)
    assert not masks[0].all(), "control: padding is masked elsewhere"


def test_embeddings_start_uniform_between_the_inverse_roots_of_the_width() -> None:
    """Unlike torch's, which are standard normal."""
    drawn = FlatModel(lambda: nn.Embedding(90, 50), Key(3)).flat.numpy() * np.sqrt(50)
    assert np.abs(drawn).max() <= 1
    assert stats.kstest(drawn, stats.uniform(-1, 2).cdf).pvalue > 0.001
    assert stats.kstest(drawn * 0.9, stats.uniform(-1, 2).cdf).pvalue < 0.001, "control"


def test_order_matters_and_rows_do_not_mix() -> None:
    model, x = small(), texts()
    out = model.module(x)
    assert not torch.allclose(model.module(x[:1].flip(1)), out[:1], atol=1e-3)
    alone = torch.cat([model.module(row[None]) for row in x])
    assert torch.allclose(alone, out, atol=1e-6)
    assert torch.equal(model.module(x), out), "nothing is random"
    assert model.module(x[:0]).shape == (0, 3)


@pytest.mark.parametrize("law", LAWS)
def test_the_perturbed_forward_pass_is_that_of_a_perturbed_copy(law) -> None:
    # in evaluation torch's own layer takes a fast path without hooks
    check_perturbed(small(), texts(), law, modes=(True, False))


def test_ids_beyond_float32s_whole_numbers_are_not_offered() -> None:
    largest = 2**24 - 1
    assert int(torch.tensor(np.float32(largest)).long()) == largest
    assert int(np.float32(2**24 + 1)) != 2**24 + 1, "why the vocabulary ends at 2^24"


def test_what_it_needs_and_who_takes_token_ids() -> None:
    for shape, hidden in (((4, 5), (8,)), ((4,), ()), ((4,), (8, 16))):
        with pytest.raises(SpecError, match=r"a transformer needs texts .*\[128, 128\]"):
            transformer(shape, hidden, 2, 9)
    with pytest.raises(
        SpecError, match=r'numbers, which "transformer" does not take: use mlp or cnn'
    ):
        bottom("transformer", (4,), (8,), 2)
    with pytest.raises(SpecError, match=r'token ids, .* "mlp" does not take: use transformer'):
        bottom("mlp", (4,), (8,), 2, 9)
