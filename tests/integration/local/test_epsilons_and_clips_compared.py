"""The comparisons of ε and of clips on the DPZV papers' data sets, run from small files of the real formats."""

from __future__ import annotations

import pytest

import scenarios
from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.config import catalog
from tests.integration.local.test_all_methods_compared import FEW, files

EPSILONS = [None, 10.0, 5.0, 1.0, 0.5, 0.1]


def lines(name, path):
    field = f"{name.partition('_')[0]}_field"
    overrides = [*files(field, path), *FEW, "budget.updates=4"]
    return resolved(read_comparison_file(catalog.COMPARISONS / f"{name}.toml"), overrides).lines


@pytest.mark.parametrize(
    "name", ["mnist_epsilons", "cifar10_epsilons", "modelnet40_epsilons", "amazon_epsilons"]
)
def test_every_method_runs_at_the_ends_of_the_range(name, tmp_path):
    found = [line for line in lines(name, tmp_path) if not line.control]
    for method in ("dpzv", "vafl", "czofo", "zoo_vfl"):
        heads = 2 if method == "dpzv" else 1
        assert [line.epsilon for line in found if line.spec.method.name == method] == heads * EPSILONS
    for line in found:
        if line.epsilon in (None, 0.1):
            summary = scenarios.run(line.spec).summary
            assert (summary["updates"], bool(summary["epsilon"])) == (4, line.epsilon is not None), str(line)


@pytest.mark.parametrize("name", ["mnist_clips", "cifar10_clips"])
def test_clips_move_the_noise_and_no_clip_is_one_that_nothing_reaches(name, tmp_path):
    found = [line for line in lines(name, tmp_path) if not line.control]
    clips = {(line.label, line.epsilon): line.spec.privacy.clip for line in found}
    # the papers' C is twice the threshold of slopes that divide by 2λ
    assert clips == {
        (f"DPZV, {head}{clip}", epsilon): threshold
        for head in ("", "zeroth-order head, ")
        for clip, epsilon, threshold in (
            ("C = 10", None, 5.0),
            ("C = 10", 1.0, 5.0),
            ("C = 100", 1.0, 50.0),
            ("C = 500", 1.0, 250.0),
            ("without a clip", None, 1e12),
        )
    }
    runs = {(line.label, line.epsilon): scenarios.run(line.spec) for line in found}
    for head in ("", "zeroth-order head, "):
        sigmas = [
            runs[f"DPZV, {head}C = {c}", 1.0].rows("release")["sigma"][0].as_py() for c in (10, 100, 500)
        ]
        assert sigmas == pytest.approx([sigmas[0], 10 * sigmas[0], 50 * sigmas[0]])
        unclipped = next(line.spec for line in found if line.label == f"DPZV, {head}without a clip")
        digest = runs[f"DPZV, {head}without a clip", None].summary["model_digest"]
        assert scenarios.run(_without_clip(unclipped)).summary["model_digest"] == digest
    heads = {
        runs[f"DPZV, {head}C = 10", None].summary["model_digest"] for head in ("", "zeroth-order head, ")
    }
    assert len(heads) == 2


def _without_clip(spec):
    return spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"clip": None})})
