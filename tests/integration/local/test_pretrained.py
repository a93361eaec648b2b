"""The scenarios of pretrained models from local folders, each with a small twin made from a
configuration.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import raydpzv
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import rebuild
from raydpzv.keys import Key
from raydpzv.models.pretrained import Encoder, NextWord
from tests.helpers.padded_texts import scores_of_each

library = pytest.importorskip(
    "transformers", reason="the extra raydpzv[transformers] is not installed"
)

DRAW = (Key(0) / "texts").generator()
Y = DRAW.integers(0, 2, 160)
SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LENGTH = 12
LORA = 'model.lora={rank=8, alpha=8, targets=["q_proj", "v_proj"]}'


def texts(padding: int) -> np.ndarray:
    """Ids of which a third of the texts end in padding, each class with a token of its own."""
    ids = (Key(1) / "ids").generator().integers(5, 59, (160, LENGTH))
    ids[:, 1] = 57 + Y
    ids[::3, 9:] = padding
    return ids


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A small OPT and a small BERT as transformers writes them, and their texts."""
    root = tmp_path_factory.mktemp("pretrained")
    opt = library.OPTConfig(
        **SMALL, ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=16, pad_token_id=1
    )
    bert = library.BertConfig(**SMALL, intermediate_size=64, max_position_embeddings=16)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(7)
        library.OPTForCausalLM(opt).save_pretrained(root / "opt")
        library.BertForSequenceClassification(bert).save_pretrained(root / "bert")
    np.savez(root / "opt.npz", x=texts(1), y=Y)
    np.savez(root / "bert.npz", x=texts(0), y=Y)
    return root


def sst2(root: Path, *changes: str) -> AnyScenario:
    small = (
        "data.vocabulary=60",
        "model.options={words=[7, 8]}",
        "budget.updates=4",
        "evaluate.every=2",
    )
    here = (f"data.file={root}/opt.npz", f"model.folder={root}/opt")
    return raydpzv.load("opt125m_sst2_decomfl", [*here, *small, *changes])


def amazon(root: Path, *changes: str) -> AnyScenario:
    rows = ("data.vocabulary=60", "data.train_rows=120", "data.test_rows=30", "budget.updates=6")
    here = (f"data.file={root}/bert.npz", f"model.folder={root}/bert")
    return raydpzv.load("amazon_bert_dpzv", [*here, *rows, "evaluate.every=3", *changes])


def test_sst2_trains_all_weights_and_replays(folders, tmp_path):
    run = raydpzv.run(sst2(folders), out=tmp_path / "run")
    there = library.OPTForCausalLM.from_pretrained(folders / "opt")
    assert run.models["shared"].size == sum(p.numel() for p in there.parameters())
    assert rebuild(tmp_path / "run").verified


def test_sst2_scores_are_the_logits_of_two_words_after_the_text(folders):
    model = prepare(sst2(folders)).flat_model("shared").module
    there = library.OPTForCausalLM.from_pretrained(folders / "opt").eval()
    with torch.no_grad():
        found = model(torch.tensor(texts(1)[:6], dtype=torch.float32))
        for ids, scores in zip(texts(1)[:6], found, strict=True):
            alone = torch.tensor(ids[ids != 1])[None]  # the same text without padding
            logits = there(input_ids=alone).logits[0, -1, [7, 8]]
            torch.testing.assert_close(scores, logits, atol=1e-5, rtol=1e-5)
        # as the authors' program pads
        left = np.stack([np.roll(ids, (ids == 1).sum()) for ids in texts(1)[:6]])
        torch.testing.assert_close(model(torch.tensor(left)), found, atol=1e-5, rtol=1e-5)


def test_sst2_with_the_papers_adapters_leaves_the_folders_weights(folders, tmp_path):
    run = raydpzv.run(sst2(folders, LORA, "method.lr=1e-4"), out=tmp_path / "run")
    assert run.models["shared"].size == 2 * 2 * 8 * (32 + 32)
    assert rebuild(tmp_path / "run").verified
    there = library.OPTForCausalLM.from_pretrained(folders / "opt").state_dict()
    merged = run.state_dict()
    changed = {
        name
        for name, value in merged.items()
        if not torch.equal(value, there[name.removeprefix("model.")])
    }
    assert all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)


def test_amazon_trains_three_encoders(folders, tmp_path):
    run = raydpzv.run(amazon(folders), out=tmp_path / "run")
    assert rebuild(tmp_path / "run", client=1).verified
    first = run.state_dict(1, at=0)
    there = library.BertModel.from_pretrained(
        folders / "bert", add_pooling_layer=False
    ).state_dict()
    assert all(torch.equal(first[f"model.{name}"], value) for name, value in there.items())


def test_an_encoder_is_the_mean_over_tokens_that_are_no_padding(folders):
    # its part of a third of the texts ends in padding
    model = prepare(amazon(folders)).flat_model("client 2").module
    there = library.BertModel.from_pretrained(folders / "bert").eval()
    with torch.no_grad():
        for ids in texts(0)[:4, 8:]:
            found = model(torch.tensor(ids[None], dtype=torch.float32))
            last = there(input_ids=torch.tensor(ids[ids != 0])[None]).last_hidden_state
            torch.testing.assert_close(found, model.out(last.mean(1)), atol=1e-5, rtol=1e-5)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def of_another_model(folder: Path) -> None:
    shutil.copy(folder.parent / "bert" / "model.safetensors", folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "changes", "complaint"),
    [
        (
            without_weights,
            (),
            r"model.folder: .*opt has no weights; wanted \*.safetensors or pytorch_model",
        ),
        (cut_off, (), "NextWord fails when called .*SafetensorError"),
        (of_another_model, (), "the weights of .*opt lack .*; save the whole model"),
        (shutil.rmtree, (), "model.folder: wanted a folder with config.json"),
        (
            lambda folder: None,
            ("data.vocabulary=61",),
            "wanted ids below 60, which the model of .*got 61",
        ),
        (lambda folder: None, ("model.options={words=[7, 99]}",), "wanted ids below 60, .*got 99"),
    ],
)
def test_wrong_files_are_refused_in_one_line(folders, tmp_path, damage, changes, complaint):
    shutil.copytree(folders, tmp_path / "copy")
    damage(tmp_path / "copy" / "opt")
    with pytest.raises(InputError, match=complaint):
        raydpzv.run(sst2(tmp_path / "copy", *changes))


def test_texts_longer_than_the_positions_are_refused(folders, tmp_path):
    shutil.copytree(folders, tmp_path / "copy")
    np.savez(tmp_path / "copy" / "opt.npz", x=np.tile(texts(1), 2), y=Y)
    with pytest.raises(
        InputError, match=r"wanted texts of at most 16 tokens for the model of .*got 24; cut them"
    ):
        raydpzv.run(sst2(tmp_path / "copy"))


NARROW = {**SMALL, "max_position_embeddings": 20}
CONFIGS = {
    "bert": lambda: library.BertConfig(**NARROW, intermediate_size=64),
    "roberta": lambda: library.RobertaConfig(**NARROW, intermediate_size=64),
    "opt": lambda: library.OPTConfig(**NARROW, ffn_dim=64, word_embed_proj_dim=32),
    "gpt2": lambda: library.GPT2Config(
        vocab_size=60,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=20,
        bos_token_id=1,
        eos_token_id=1,
    ),
    "llama": lambda: library.LlamaConfig(**NARROW, intermediate_size=64),
    "qwen3": lambda: library.Qwen3Config(
        **NARROW, intermediate_size=64, num_key_value_heads=2, head_dim=16
    ),
    "gpt_neox": lambda: library.GPTNeoXConfig(**NARROW, intermediate_size=64),
}
PAD = 50


@pytest.mark.parametrize("name", CONFIGS)
def test_an_architecture_scores_a_text_alike_wherever_its_padding_is(name, tmp_path):
    kinds = {"words": (library.AutoModelForCausalLM, NextWord, (2,), {"words": [7, 8]})}
    if name in ("bert", "roberta"):  # the others are no encoders
        kinds["encoder"] = (library.AutoModel, Encoder, (3,), {})
    for kind, (auto, wrapper, outputs, options) in kinds.items():
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(5)
            auto.from_config(CONFIGS[name]()).save_pretrained(tmp_path / kind)
            model = wrapper(*outputs, (13,), 60, str(tmp_path / kind), **options, pad=PAD).eval()
        with torch.no_grad():
            for how, scores, alone in scores_of_each(model, PAD):
                torch.testing.assert_close(scores, alone, atol=1e-5, rtol=0, msg=how)


def test_a_configuration_without_padding_is_refused_with_the_setting(folders, tmp_path):
    library.GPT2LMHeadModel(CONFIGS["gpt2"]()).save_pretrained(tmp_path / "gpt2")
    changes = (f"model.folder={tmp_path / 'gpt2'}",)
    with pytest.raises(InputError, match=r"model.options.pad: wanted .*gpt2 names none; set it"):
        raydpzv.run(sst2(folders, *changes))
    given = "model.options={words=[7, 8], pad=1}"
    assert raydpzv.run(sst2(folders, *changes, given)).summary["status"] == "done"
