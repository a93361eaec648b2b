import importlib.util
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.prepare import prepare
from raydpzv.foreign import handle
from raydpzv.models import pretrained
from raydpzv.models.pretrained import Encoder, NextWord
from tests.helpers.padded_texts import scores_of_each


@pytest.mark.parametrize("folder", ["", "nowhere", "file"])
def test_a_folder_that_is_missing_is_named_with_what_is_needed(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match=r"model.folder: wanted a folder with config.json and weights"
    ):
        Encoder(2, (8,), folder=folder and str(tmp_path / folder))


@pytest.mark.parametrize("words", [(), [3], [1, 2, 3], ["good", "bad"], 5])
def test_words_are_a_token_id_for_each_class(words):
    with pytest.raises(
        SpecError, match=r"model.options.words: wanted 2 token ids, one for each class"
    ):
        NextWord(2, (8,), words=words)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is not None, reason="transformers is installed"
)
def test_the_missing_library_is_named_with_its_command(tmp_path):
    (tmp_path / "config.json").touch()
    with pytest.raises(
        InputError, match=r"transformers is not installed: pip install 'raydpzv\[transformers\]'"
    ):
        Encoder(2, (8,), folder=str(tmp_path))


@pytest.mark.parametrize("scenario", ["digits_dpzv", "digits_decomfl"])
def test_a_folder_for_a_model_that_is_not_your_own_is_refused(scenario):
    with pytest.raises(SpecError, match=r'model.folder: wanted a model of your own .*got "mlp"'):
        raydpzv.load(scenario, ["model.folder=data/bert"])


class FromFolder(nn.Linear):
    def __init__(self, folder: str) -> None:
        super().__init__(64, 10)
        self.word = (Path(folder) / "config.json").read_text()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1))


def test_another_machines_folder_must_have_the_same_files(tmp_path):
    (tmp_path / "config.json").write_text("one")
    name = handle(FromFolder)
    spec = raydpzv.load("digits_decomfl", [f"model.kind={name}", f"model.folder={tmp_path}"])
    there = pickle.loads(pickle.dumps(spec))
    assert prepare(there).module("shared").word == "one"
    (tmp_path / "config.json").write_text("two")
    with pytest.raises(
        DataError, match=r"config.json. differs on .*copy the same file to every machine"
    ):
        prepare(there)
    assert prepare(spec).module("shared").word == "two"


class Fake(nn.Module):
    """A causal model with absolute positions: what a token leaves depends on all before it and on
    how many they are, padding among them unless it is masked.
    """

    def __init__(self, pad_token_id: object) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=60, hidden_size=4, pad_token_id=pad_token_id)
        draw = torch.Generator().manual_seed(3)
        self.embedding = nn.Parameter(torch.randn(60, 4, generator=draw))
        self.positions = nn.Parameter(torch.randn(40, 4, generator=draw))
        self.base_model = self

    def get_output_embeddings(self) -> nn.Linear:
        layer = nn.Linear(4, 60, bias=False)
        layer.weight = self.embedding
        return layer

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **others: object
    ) -> SimpleNamespace:
        own = self.embedding[input_ids] * self.positions[: input_ids.shape[1]].exp()
        return SimpleNamespace(last_hidden_state=(own * attention_mask[..., None]).cumsum(1).tanh())


def faked(monkeypatch: pytest.MonkeyPatch, named: object) -> None:
    """Let every folder hold the fake, whose configuration names this padding."""
    monkeypatch.setattr(pretrained, "_pretrained", lambda *given, **more: Fake(named))


@pytest.mark.parametrize("named", [50, None])
@pytest.mark.parametrize("kind", ["words", "encoder"])
def test_a_text_has_the_same_scores_wherever_its_padding_is(kind, named, monkeypatch):
    faked(monkeypatch, named)
    given = None if named else 50
    model = NextWord(2, (9,), words=[7, 8], pad=given)
    if kind == "encoder":
        model = Encoder(3, (9,), pad=given)
    found = list(scores_of_each(model, 50))
    for how, scores, alone in found:
        torch.testing.assert_close(scores, alone, atol=1e-5, rtol=0, msg=how)
    assert torch.stack([alone for _, _, alone in found]).std(0).min() > 0.01, "they differ by text"


def test_another_id_of_padding_is_seen_in_the_scores(monkeypatch):
    """The control: what the scores are if padding is taken for words, or a word for padding."""
    faked(monkeypatch, None)
    for pad in (-1, 0):
        model = NextWord(2, (9,), words=[7, 8], pad=pad)
        assert any((a - b).abs().max() > 1e-3 for _, a, b in scores_of_each(model, 50))


@pytest.mark.parametrize("named", [None, -1, 60, "1", True, [0]])
def test_texts_are_refused_where_nothing_names_their_padding(named, monkeypatch):
    faked(monkeypatch, named)
    for make in (lambda: NextWord(2, (9,), words=[7, 8]), lambda: Encoder(3, (9,))):
        with pytest.raises(SpecError, match=r"model.options.pad: wanted the id .* or -1 .*set it"):
            make()


@pytest.mark.parametrize("pad", [-2, 60, 1.0, True, "0", [0]])
def test_a_padding_that_is_no_id_is_refused(pad, monkeypatch):
    faked(monkeypatch, 1)
    with pytest.raises(SpecError, match=r"model.options.pad: wanted the id .*, got "):
        NextWord(2, (9,), words=[7, 8], pad=pad)


def test_texts_without_padding_keep_every_id(monkeypatch):
    faked(monkeypatch, None)
    model = NextWord(2, (9,), words=[7, 8], pad=-1)
    texts = torch.tensor([[0, 1, 0], [0, 1, 5]])
    scores = model(texts)
    assert not torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], model(texts[:1, :2])[0])
