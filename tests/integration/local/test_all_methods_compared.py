"""The comparisons of all methods on the DPZV papers' four data sets, run from small files of the
real formats.
"""

import pytest

import scenarios
from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.config import catalog
from tests.helpers.dataset_files import (
    TINY_RESNET,
    TINY_TRANSFORMER,
    write_cifar10,
    write_mnist,
    write_reviews,
    write_speech,
    write_views,
)

FEW = ("budget.updates=4", "evaluate.every=4", "method.batch=8", "privacy.noise=seeded")


def files(name, path):
    """Write a field's data; return the settings that point to it and keep its models small."""
    if name.startswith("mnist_"):
        return (f"data.folder={write_mnist(path)}", "model.hidden=[2, 2]", "model.embedding=4")
    if name.startswith("cifar10_"):
        return (f"data.folder={write_cifar10(path)}", "model.hidden=[2, 2]", "model.embedding=4")
    if name.startswith("modelnet40_"):
        return (f"data.file={write_views(path)}", *TINY_RESNET)
    return (f"data.folder={write_reviews(path, 'csv')}", *TINY_TRANSFORMER)


SMALL_ROUNDS = (
    "budget.updates=2",
    "evaluate.every=2",
    "split.clients=12",
    "method.cohort=1",
    "method.batch=4",
    "data.train_rows=100",
)


@pytest.mark.parametrize("name", ["mnist_ablation", "mnist_projection", "fashion_field"])
def test_every_line_of_a_horizontal_comparison_runs(name, tmp_path):
    """On MNIST's network for all: Fashion's has 40 times the parameters."""
    given = [f"data.folder={write_mnist(tmp_path)}", "model.kind=cnn_mnist", *SMALL_ROUNDS]
    comparison = resolved(read_comparison_file(catalog.COMPARISONS / f"{name}.toml"), given)
    sent = {}
    for line in comparison.lines:
        summary = scenarios.run(line.spec).summary
        assert summary["updates"] == 2, str(line)
        sent[line.label] = summary["bytes_up"]
    if name == "fashion_field":
        seeds, whole, coded, *largest = sent.values()
        assert [whole > coded, coded > largest[0] > largest[1] > largest[2] > seeds] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mnist_field", "cifar10_field", "modelnet40_field", "amazon_field"]
)
def test_every_line_of_the_field_runs(name, tmp_path):
    comparison = resolved(
        read_comparison_file(catalog.COMPARISONS / f"{name}.toml"), [*files(name, tmp_path), *FEW]
    )
    methods = {line.spec.method.name for line in comparison.lines}
    assert methods == {"dpzv", "vafl", "czofo", "zoo_vfl", "frozen", "sgd"}
    labels = {line.label: line for line in comparison.lines}
    # an ε is a deviation, of whatever models: every line at every ε with the smallest ones, at its
    # last ε with others
    for line in comparison.lines if name == "mnist_field" else labels.values():
        summary = scenarios.run(line.spec).summary
        assert summary["updates"] == 4, str(line)
        assert bool(summary["epsilon"]) == (line.epsilon is not None), str(line)


@pytest.mark.parametrize("name", ["mnist_decomfl", "fashion_decomfl"])
def test_decomfl_on_pictures_with_its_own_networks(name, tmp_path):
    few = (f"data.folder={write_mnist(tmp_path)}", "method.perturbations=2", *SMALL_ROUNDS)
    assert scenarios.run(scenarios.load(name, few)).summary["updates"] == 2


@pytest.mark.parametrize(
    ("name", "setting", "write"),
    [
        ("mnist_times", "data.folder", write_mnist),
        ("fashion_times", "data.folder", write_mnist),
        ("cifar10_times", "data.folder", write_cifar10),
        ("parkinson_times", "data.file", write_speech),
        ("multiview_times", "data.file", write_views),
    ],
)
def test_vafl_protocols_run_with_the_papers_noise_and_without(name, setting, write, tmp_path):
    comparison = resolved(
        read_comparison_file(catalog.COMPARISONS / f"{name}.toml"),
        [f"{setting}={write(tmp_path)}", *FEW],
    )
    found = [line for line in comparison.lines if not line.control]
    protocols = ["asynchronous", "t-synchronous", "synchronous"]
    assert [line.spec.method.synchrony for line in found] == 2 * protocols
    for line, noisy in zip(found, 3 * [False] + 3 * [True], strict=True):
        run = scenarios.run(line.spec)
        assert run.summary["updates"] == 4, str(line)
        assert bool(run.rows("release").num_rows) == noisy, str(line)
        assert not run.summary["private"], str(line)


# The comparisons of ε and of clips on the DPZV papers' data sets, run from small files of the real
# formats.

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
        assert [
            line.epsilon for line in found if line.spec.method.name == method
        ] == heads * EPSILONS
    for line in found:
        # `test_every_line_of_the_field_runs` runs these methods on the other data sets' models
        if name == "mnist_epsilons" and line.epsilon in (None, 0.1):
            summary = scenarios.run(line.spec).summary
            assert (summary["updates"], bool(summary["epsilon"])) == (
                4,
                line.epsilon is not None,
            ), str(line)


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
            runs[f"DPZV, {head}C = {c}", 1.0].rows("release")["sigma"][0].as_py()
            for c in (10, 100, 500)
        ]
        assert sigmas == pytest.approx([sigmas[0], 10 * sigmas[0], 50 * sigmas[0]])
        unclipped = next(line.spec for line in found if line.label == f"DPZV, {head}without a clip")
        digest = runs[f"DPZV, {head}without a clip", None].summary["model_digest"]
        privacy = unclipped.privacy.model_copy(update={"clip": None})
        without = unclipped.model_copy(update={"privacy": privacy})
        assert scenarios.run(without).summary["model_digest"] == digest
    heads = {
        runs[f"DPZV, {head}C = 10", None].summary["model_digest"]
        for head in ("", "zeroth-order head, ")
    }
    assert len(heads) == 2
