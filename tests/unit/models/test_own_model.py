import copy

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.errors import InputError, SpecError
from raydpzv.foreign import handle
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.own_model import check_model, model, takes_whole_numbers
from raydpzv.zo import perturbation

RECORDS = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)


class Faulty(nn.Linear):
    """A linear layer with one fault in its forward call."""

    def __init__(self, fault: str) -> None:
        super().__init__(4, 3)
        self.fault = fault
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "random":
            x = nn.functional.dropout(x, 0.5, training=True)
        if self.fault == "mixes":
            x = x - x.mean(0)
        if self.fault == "sums":
            x = x.cumsum(0)
        if self.fault == "pairs":
            x = x + x.view(-1, 2, 4).mean(1).repeat_interleave(2, 0)
        if self.fault == "changes":
            x.mul_(2)
        if self.fault == "counts":
            self.calls += 1
        if self.fault == "raises":
            raise ValueError("no such\nthing")
        scores = super().forward(x)
        if self.fault == "complex":
            scores = torch.fft.fft(scores)
        if self.fault == "infinite":
            scores = scores / 0
        return {"wide": scores[:, :2], "pair": (scores, x)}.get(self.fault, scores)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("random", "two forward calls on the same records differ"),
        (
            "mixes",
            (
                "a record's scores depend on the other records of its batch, in its forward call "
                "itself"
            ),
        ),
        ("sums", "a record's scores depend on the other records"),
        ("pairs", "a record's scores depend on the other records"),
        ("changes", "changes the records it is given"),
        ("counts", "changes a buffer"),
        ("infinite", "its scores of these records are not finite"),
        ("complex", "wanted scores that are floats, got torch.complex64"),
        ("raises", r"fails on 6 records \[6, 4\] of torch.float32 \(ValueError: no such thing\)"),
        (
            "wide",
            (
                r"wanted scores \[6, 3\] of 6 records, got \(6, 2\); let its last layer give a"
                r" tensor of 3 numbers"
            ),
        ),
        ("pair", r"wanted scores \[6, 3\] of 6 records, got tuple"),
    ],
)
def test_a_module_that_is_no_function_of_a_record_is_refused(fault, complaint):
    with pytest.raises(InputError, match=f"the model: .*{complaint}"):
        check_model(FlatModel(lambda: Faulty(fault), Key(0)), RECORDS, 3, "the model")


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def test_the_first_layer_that_mixes_records_is_named():
    make = lambda: nn.Sequential(nn.Linear(4, 5), Centred(), nn.Linear(5, 3))  # noqa: E731
    with pytest.raises(
        InputError, match=r'its batch, first in its layer "1" \(Centred\); leave out'
    ):
        check_model(FlatModel(make, Key(0)), RECORDS, 3, "the model")


@pytest.mark.parametrize("records", [RECORDS, RECORDS[:1]])
def test_a_function_of_a_record_passes(records):
    check_model(FlatModel(lambda: Faulty("none"), Key(0)), records, 3, "the model")


class Ids(nn.Module):
    """A model of three columns, of ids, of numbers, or of both."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.last = how, nn.Linear(3, 2)
        if how not in ("floats", "one-hot"):
            self.words = nn.Embedding(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "floats":
            return self.last(x)
        if self.how == "one-hot":
            return self.last(nn.functional.one_hot(x, 3).float().sum(1))
        if self.how == "both":
            return self.last(x) + self.last(self.words(x[:, 0].long()))
        if self.how == "places":
            return self.last(x) + self.last(self.words(torch.arange(1, device=x.device)))
        if self.how == "looks at numbers" and (x < 0).any().item():
            raise ValueError("negative ids")
        return self.last(self.words(x.long() if self.how == "converts" else x).mean(1))


@pytest.mark.parametrize(
    ("how", "whole"),
    [
        ("ids", True),
        ("one-hot", True),
        ("converts", True),
        ("looks at numbers", True),
        ("floats", False),
        ("both", False),
        ("places", False),
    ],
)
@pytest.mark.parametrize("given", [False, True], ids=["made", "given"])
def test_a_model_says_whether_its_rows_are_whole_numbers(how, whole, given):
    module = Ids(how)
    make = (lambda: copy.deepcopy(module)) if given else lambda: Ids(how)
    assert takes_whole_numbers(make, (3,)) == whole


def test_rows_of_the_other_type_are_refused_with_the_setting():
    ids = np.zeros((4, 3), np.int64)
    for how, records, setting in (("ids", ids.astype(np.float32), "true"), ("both", ids, "false")):
        with pytest.raises(InputError, match=rf"set model\.integers = {setting}"):
            check_model(FlatModel(lambda how=how: Ids(how), Key(0)), records, 2, "the model")


def test_whole_numbers_stay_whole_for_the_model():
    ids = np.arange(12).reshape(3, 4)
    make = lambda: nn.Sequential(nn.Embedding(12, 2), nn.Flatten(), nn.Linear(8, 3))  # noqa: E731
    check_model(FlatModel(make, Key(0)), ids, 3, "the model")


def test_a_model_is_made_of_a_class_a_function_or_a_module():
    given = nn.Linear(4, 3)
    assert isinstance(model(handle(Faulty))({"fault": "none"}, {}), Faulty)
    assert (
        model(handle(lambda outputs: nn.Linear(4, outputs)))(
            {}, {"outputs": 5, "shape": (4,)}
        ).out_features
        == 5
    )
    copied = model(handle(given))({}, {"shape": (4,)})
    assert copied is not given
    assert torch.equal(copied.weight, given.weight)


@pytest.mark.parametrize(
    ("found", "options", "complaint"),
    [
        (
            3,
            {},
            (
                "^model: wanted an nn.Module, or a class or function that returns one, got int; "
                "give one"
            ),
        ),
        (lambda: 3, {}, "^model: wanted an nn.Module from the call, got int; let it return one"),
        (nn.Linear(2, 2), {"bias": False}, "is a module, which takes none"),
    ],
)
def test_what_makes_no_module_is_refused(found, options, complaint):
    with pytest.raises(SpecError, match=complaint):
        model(handle(found))(options, {})


class Large(nn.Module):
    """More parameters than are perturbed at once, where 2^14 are."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.wide = how, nn.Linear(4, 5000)
        self.narrow = nn.Linear(5000, 3)
        self.tied = nn.Linear(4, 5000) if how != "reads" else nn.Identity()
        if how == "calls":
            self.tied.weight = self.wide.weight
        if how == "normed":
            self.wide = nn.utils.weight_norm(self.wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "reads":
            return self.narrow(self.wide(x) + nn.functional.linear(x, self.wide.weight))
        return self.narrow(self.wide(x) + self.tied(x))


def test_a_large_model_that_reads_weights_past_their_layer_is_refused(monkeypatch):
    check_model(
        FlatModel(lambda: Large("reads"), Key(0)), RECORDS, 3, "the model"
    )  # small: perturbed whole
    monkeypatch.setattr(perturbation, "_SMALL", 1 << 14)
    check_model(FlatModel(lambda: Large("calls"), Key(0)), RECORDS, 3, "the model")
    check_model(FlatModel(lambda: Large("normed"), Key(0)), RECORDS, 3, "the model")
    with pytest.raises(
        InputError, match=r"outside the layer's own forward call.*head.weight = embedding.weight"
    ):
        check_model(FlatModel(lambda: Large("reads"), Key(0)), RECORDS, 3, "the model")


class Texts(nn.Module):
    """Token ids [B, 2] to scores [B, 3]; its embedding knows five."""

    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.words, self.last, self.mixes = nn.Embedding(5, 4), nn.Linear(4, 3), mixes

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.words(ids.long()).mean(1)
        return self.last(h + h.mean(0) if self.mixes else h)


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_a_token_id_without_a_row_is_named_with_its_layer(kind):
    complaint = (
        r'^the model: records have the token id 5, wanted whole numbers in 0\.\.4 \(layer "words"\)'
    )
    with pytest.raises(InputError, match=complaint):
        check_model(FlatModel(Texts, Key(0)), np.array([[0, 1], [5, 2]], kind), 3, "the model")


def test_equal_records_do_not_hide_that_a_model_mixes_them():
    records = np.array([[1, 2]] * 4)
    check_model(FlatModel(Texts, Key(0)), records, 3, "the model")
    with pytest.raises(InputError, match="depend on the other records of its batch"):
        check_model(FlatModel(lambda: Texts(mixes=True), Key(0)), records, 3, "the model")
