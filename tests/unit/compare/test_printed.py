"""Entrants of the program's comparisons, held against what papers print."""

import pytest

from raydpzv.compare import printed
from raydpzv.compare.file import read_comparison_file
from raydpzv.config import catalog
from raydpzv.config.papers import Paper, papers
from raydpzv.errors import SpecError

HERE = {"key": "method.server_lr", "where": "Table 2"}


def lines(*settings, change=lambda file: file, monkeypatch=None):
    paper = Paper(title="A paper", scenarios=("mnist_dpzv",), settings=settings)
    if monkeypatch:
        monkeypatch.setattr(
            printed, "_file", lambda name: change(read_comparison_file(catalog.comparison(name)))
        )
    return printed.comparison_lines(paper)


def test_every_printed_setting_of_comparisons_is_the_papers():
    held = {
        name
        for paper in papers()
        for line in printed.comparison_lines(paper)[1:2]
        for name in catalog.names(catalog.COMPARISONS)
        if f"`{name}`" in line
    }
    fields = {
        f"{data}_{kind}"
        for data in ("mnist", "cifar10", "modelnet40", "amazon")
        for kind in ("field", "epsilons")
    }
    assert (
        fields | {"mnist_clips", "cifar10_clips", "mnist5k_field", "mnist_ablation", "brca_field"}
        <= held
    )
    assert not {name for name in held if name.startswith("digits_")}


@pytest.mark.parametrize("head", ["DPZV, zeroth-order head", "ZOO-VFL, embedding noise"])
def test_a_doubled_step_of_a_head_is_refused(monkeypatch, head):
    def doubled(file):
        entries = tuple(
            e.model_copy(update={"set": (*e.set, "method.server_lr=0.01")})
            if e.label == head
            else e
            for e in file.methods
        )
        return file.model_copy(update={"methods": entries})

    rules = (HERE | {"value": 5e-3}, HERE | {"value": 5e-3, "methods": ("zoo_vfl",)})
    assert lines(*rules)
    message = (
        rf"mnist_\w+: method.server_lr of {head} is `0.01`, the paper's is `0.005` \(Table 2\)"
    )
    with pytest.raises(SpecError, match=message):
        lines(*rules, change=doubled, monkeypatch=monkeypatch)


def test_the_printed_form_of_a_step_that_is_doubled_here_is_refused(monkeypatch):
    """The clients' step in the printed λ form, where the slope here divides by 2λ."""
    rule = {"key": "method.lr", "value": 5e-4, "where": "Table 2", "why": "2λ"}
    assert lines(rule)

    def printed_form(file):
        entries = tuple(
            e.model_copy(update={"set": (*e.set, "method.lr=5e-4")}) for e in file.methods
        )
        return file.model_copy(update={"methods": entries})

    with pytest.raises(SpecError, match=r"method.lr of .* is `0.0005`"):
        lines(rule, change=printed_form, monkeypatch=monkeypatch)


def test_an_entry_that_no_entrant_has_is_refused():
    with pytest.raises(
        SpecError, match=r"no method of any comparison has method.server_lr = `0.7`"
    ):
        lines(HERE | {"value": 5e-3}, HERE | {"value": 0.7, "methods": ("sgd",)})
    with pytest.raises(SpecError, match=r"no method of mnist_field has privacy.clip = `50.0`"):
        lines(
            {"key": "privacy.clip", "value": 10.0, "where": "Table 3", "why": "halved"},
            {
                "key": "privacy.clip",
                "value": 50.0,
                "where": "1",
                "comparisons": ("mnist_clips", "mnist_field"),
            },
            {"key": "privacy.clip", "value": 250.0, "where": "1", "comparisons": ("mnist_clips",)},
            {"key": "privacy.clip", "value": 1e12, "where": "1", "comparisons": ("mnist_clips",)},
        )


def test_a_value_of_ours_stands_with_its_reason():
    entry = HERE | {"value": 5e-3, "methods": ("vafl",), "why": "chosen here"}
    assert lines(HERE | {"value": 5e-3}, entry)[-1].endswith("| **differs**: chosen here |")
