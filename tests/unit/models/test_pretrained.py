import importlib.util
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.prepare import prepare
from raydpzv.foreign import handle
from raydpzv.models.pretrained import Encoder, NextWord


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


def test_a_folder_for_a_model_that_is_not_your_own_is_refused():
    with pytest.raises(SpecError, match=r'model.folder: wanted a model of your own .*got "mlp"'):
        raydpzv.load("digits_dpzv", ["model.folder=data/bert"])
    with pytest.raises(SpecError, match=r'model.folder: wanted a model of your own .*got "mlp"'):
        raydpzv.load("digits_decomfl", ["model.folder=data/bert"])


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
