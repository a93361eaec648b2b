from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import InputError
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import rebuild
from raydpzv.keys import Key

library = pytest.importorskip(
    "transformers", reason="the extra raydpzv[transformers] is not installed"
)

DRAW = (Key(0) / "architectures").generator()
Y = DRAW.integers(0, 2, 40)
IDS = DRAW.integers(1, 50, (40, 12))
IDS[::3, 9:] = 0
IMAGES = DRAW.standard_normal((40, 3, 16, 16)).astype(np.float32)
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 2}
TEXT = {"vocab_size": 50, "max_position_embeddings": 16, "pad_token_id": 0}
WIDE = {"intermediate_size": 64}


class Scores(nn.Module):
    """The wrapper of docs/own.md: from token ids or images to scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_floating_point():
            return self.model(pixel_values=x).logits
        return self.model(input_ids=x, attention_mask=(x > 0).long()).logits


def made(model: str, config: str, **settings: object) -> Callable[[], nn.Module]:
    head = "ForImageClassification" if model in ("ViT", "ResNet") else "ForSequenceClassification"
    return lambda: Scores(getattr(library, model + head)(getattr(library, config)(**settings)))


MODELS = {
    "bert": made("Bert", "BertConfig", **SMALL, **TEXT, **WIDE),
    "opt": made("OPT", "OPTConfig", **SMALL, **TEXT, ffn_dim=64, word_embed_proj_dim=32),
    "gpt2": made(
        "GPT2",
        "GPT2Config",
        vocab_size=50,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=16,
        num_labels=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    ),
    "llama": made("Llama", "LlamaConfig", **SMALL, **TEXT, **WIDE),
    "qwen3": made(
        "Qwen3", "Qwen3Config", **SMALL, **TEXT, **WIDE, num_key_value_heads=2, head_dim=16
    ),
    "vit": made("ViT", "ViTConfig", **SMALL, **WIDE, image_size=16, patch_size=8),
    "resnet": made(
        "ResNet",
        "ResNetConfig",
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
        num_labels=2,
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("given", [False, True], ids=["drawn", "weights"])
def test_an_architecture_learns_and_replays(tmp_path, name, given):
    x = IMAGES if name in ("vit", "resnet") else IDS
    with torch.random.fork_rng():
        own = MODELS[name]().state_dict() if given else None
    scenario = raydpzv.horizontal(
        MODELS[name], (x, Y), clients=4, cohort=4, updates=20, lr=0.01, classes=[0, 1], weights=own
    )
    run = raydpzv.run(scenario, out=tmp_path / "run")
    if own is not None:
        assert all(torch.equal(run.state_dict(at=0)[word], value) for word, value in own.items())
    replayed = rebuild(tmp_path / "run")
    assert replayed.verified
    assert replayed.updates == 20

    there = MODELS[name]().eval()  # the library's own, with the run's weights by their names
    there.load_state_dict(run.state_dict())
    trained = torch.cat([p.detach().flatten() for p in there.parameters()]).numpy()
    np.testing.assert_array_equal(trained, run.models["shared"])
    model = prepare(scenario).flat_model("shared")
    with torch.no_grad(), model.at(run.models["shared"]):
        assert torch.equal(model.module(torch.tensor(x[:8])), there(torch.tensor(x[:8])))


def test_statistics_over_the_batch_are_refused_by_their_layers_name():
    def unfrozen() -> nn.Module:
        model = MODELS["resnet"]()
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
        return model

    scenario = raydpzv.horizontal(unfrozen, (IMAGES, Y), clients=4, cohort=4, updates=2)
    with pytest.raises(
        InputError,
        match=r'"model.resnet.embedder.embedder.normalization" is a BatchNorm .*GroupNorm',
    ):
        raydpzv.run(scenario)
