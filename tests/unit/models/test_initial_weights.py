import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.foreign import handle
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.initial_weights import other_weights, read_weights, weights_sha256, with_weights


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def values() -> dict[str, torch.Tensor]:
    made = net().state_dict()
    return {name: torch.full_like(value, 2 + i) for i, (name, value) in enumerate(made.items())}


def fit(given: dict[str, torch.Tensor], make=net, partial=None) -> FlatModel:
    word = handle(given)
    return FlatModel(lambda: with_weights(make(), word, partial, "the model"), Key(0))


def saved(path: Path, given: dict[str, torch.Tensor]) -> str:
    if path.suffix == ".safetensors":
        pytest.importorskip("safetensors", reason="the extra raydpzv[weights] is not installed")
        from safetensors.torch import save_file

        save_file(given, path)
    else:
        torch.save(given, path)
    return str(path)


def test_parameters_and_buffers_start_from_the_weights():
    found = fit(values()).module.state_dict()
    assert found.keys() == values().keys()
    assert all(torch.equal(found[name], value) for name, value in values().items())


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_gives_the_same_tensors(tmp_path, suffix):
    found = read_weights(saved(tmp_path / f"all{suffix}", values()))
    assert found.keys() == values().keys()
    assert all(torch.equal(found[name], value) for name, value in values().items())


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_cut_off_file_is_named(tmp_path, suffix):
    path = Path(saved(tmp_path / f"all{suffix}", values()))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=rf"all{suffix}. cannot be read .* cut off"):
        read_weights(str(path))


def test_a_pickle_of_other_objects_is_refused(tmp_path):
    torch.save(net(), tmp_path / "whole.pt")
    (tmp_path / "whole.pkl").write_bytes(pickle.dumps(values()))
    for name, said in (
        (
            "whole.pt",
            r"holds an object of torch\.nn\.\S+ beside .*save model.state_dict\(\) alone$",
        ),
        ("whole.pkl", "pickles run code"),
        ("none.pt", "there is no file"),
    ):
        with pytest.raises(DataError, match=said):
            read_weights(str(tmp_path / name))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"0.weight": None, "0.wieght": torch.zeros(5, 4)},
            'missing: 0.weight; unexpected: 0.wieght Did you mean "0.w',
        ),
        ({"2.bias": None}, r"your weights do not fit \(missing: 2.bias.*partial_weights"),
        ({"9.bias": torch.zeros(1)}, "unexpected: 9.bias.*; delete or rename what is unexpected"),
        (
            {"0.weight": torch.zeros(5, 5)},
            r"0.weight is \[5, 5\], wanted \[5, 4\]\); give the model the sizes of",
        ),
        (
            {"0.weight": torch.zeros(5, 4, dtype=torch.float64)},
            (
                r"0.weight is torch.float64, wanted torch.float32.*; convert them: {name:"
                r" value.float\(\) for"
            ),
        ),
        ({"0.bias": torch.full((5,), torch.nan)}, '"0.bias" of .* not finite'),
    ],
)
def test_weights_that_do_not_fit_are_listed(change, complaint):
    given = {name: value for name, value in (values() | change).items() if value is not None}
    with pytest.raises(DataError, match=complaint):
        fit(given)


def test_a_small_file_of_a_huge_tensor_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1).expand(2**20, 2**20)}, tmp_path / "w.pt")
    with pytest.raises(DataError, match=r'"w" of .*w\.pt repeats numbers .*contiguous'):
        read_weights(str(tmp_path / "w.pt"))


@pytest.mark.parametrize("given", [3, {}, {"epoch": 4}, ["a"]])
def test_what_is_no_mapping_of_tensors_is_refused(given):
    with pytest.raises(SpecError, match=r"model\.weights: "):
        read_weights(handle(given, "weights"))


def test_half_precision_weights_are_widened_exactly():
    given = values() | {"0.bias": torch.full((5,), 0.1, dtype=torch.bfloat16)}
    found = fit(given).module.state_dict()["0.bias"]
    assert found.dtype == torch.float32
    assert torch.equal(found, given["0.bias"].float())


def test_missing_weights_keep_their_drawn_values_if_asked():
    given = {"2.bias": torch.ones(3)}
    found, drawn = fit(given, partial=True), FlatModel(net, Key(0))
    assert torch.equal(found.trained["2.bias"], given["2.bias"])
    for name in drawn.trained.keys() - {"2.bias"}:
        assert torch.equal(found.trained[name], drawn.trained[name])
    assert not torch.equal(drawn.trained["2.bias"], given["2.bias"])


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    return module


def test_a_tied_parameter_needs_one_of_its_names():
    given = {"0.bias": torch.zeros(4), "1.bias": torch.ones(4), "1.weight": torch.eye(4)}
    model = fit(given, tied)
    assert model.module[0].weight is model.module[1].weight
    assert torch.equal(model.trained["0.weight"], torch.eye(4))
    with pytest.raises(DataError, match=r"0\.weight and 1\.weight are tied, but differ"):
        fit(given | {"0.weight": torch.zeros(4, 4)}, tied)


def test_the_first_tensor_that_differs_is_named():
    one = weights_sha256({"shared": handle(values()), "server": None})
    two = weights_sha256({"shared": handle(values() | {"2.bias": torch.zeros(3)})})
    assert other_weights(one, one) is None
    assert other_weights(one, two) == "shared: 2.bias"
    assert other_weights({}, one) == "shared: 0.bias"


def test_a_missing_library_is_named_with_the_way_out(tmp_path, monkeypatch):
    import sys

    (tmp_path / "a.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(InputError, match=r"raydpzv\[weights\].*torch.save"):
        read_weights(str(tmp_path / "a.safetensors"))
