import dataclasses

import numpy as np
import pytest

import scenarios
from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.config import catalog
from raydpzv.config.toml import as_tree, changed
from raydpzv.data.users import Known, share_users
from raydpzv.keys import Key
from raydpzv.settings.sections_horizontal import UsersSection
from tests.helpers.dataset_files import (
    write_creditcard,
    write_heart_disease,
    write_mnist,
    write_tcga_brca,
)

WRITE = {
    "creditcard": write_creditcard,
    "mnist": write_mnist,
    "heart": write_heart_disease,
    "brca": write_tcga_brca,
}
SILOS = {"creditcard": [4917] * 5, "mnist": [12_000] * 5, "heart": [199, 172, 30, 85]}
"""Training records of the real data's silos; of Creditcard and MNIST, whose users decide, their
mean.
"""
FEW = ("budget.updates=1", "evaluate.every=1", "users.count=12")
SMALLER = {"local_epochs": 1, "local_steps": 2, "rate": 1.0}
"""One step of GROUP on all records: ε has a closed form."""

AVG, WITHOUT_GROUP = ("uldp_sgd", "uldp_avg"), ("fedavg", "uldp_naive", "uldp_sgd", "uldp_avg")
ALL = (*WITHOUT_GROUP, "uldp_group")
# users, rounds, methods; of AVG: epochs, clip, the paper's η_g; of all: local step size and batch
PRINTED = {
    "creditcard_field": (100, 100, ALL, 30, 0.1, 10, 0.01, 64),
    "creditcard_1000": (1000, 100, ALL, 30, 0.1, 10, 0.01, 64),
    "mnist_users_field": (100, 100, ("fedavg", *AVG, "uldp_group"), 50, 0.1, 10, 0.01, 64),
    "mnist_10000_field": (10_000, 100, ("fedavg", *AVG, "uldp_group"), 50, 0.1, 100, 0.01, 64),
    "heart_field": (50, 50, ALL, 50, 0.1, 10, 0.001, 4),
    "heart_200_field": (200, 50, ALL, 50, 0.1, 10, 0.001, 4),
    "brca_field": (50, 50, WITHOUT_GROUP, 50, 0.1, 10, 0.001, 8),
    "brca_200_field": (200, 50, WITHOUT_GROUP, 50, 0.1, 10, 0.001, 8),
    "creditcard_weights": (1000, 100, ("uldp_avg",), 30, 1.0, 10, 0.01, 64),
    "creditcard_sampling": (1000, 100, ("uldp_avg",), 30, 1.0, 10, 0.01, 64),
    "mnist_sampling": (10_000, 200, ("uldp_avg",), 50, 0.1, 100, 0.01, 64),
}


def lines(name, *given):
    return resolved(read_comparison_file(catalog.COMPARISONS / f"{name}.toml"), given).lines


@pytest.mark.parametrize("name", PRINTED)
def test_settings_are_the_papers(name):
    users, rounds, methods, epochs, clip, global_lr, lr, batch = PRINTED[name]
    found = lines(name)
    assert {line.spec.method.name for line in found} == set(methods)
    for line in found:
        spec, method = line.spec, line.spec.method
        assert (spec.users.count, spec.budget.updates, line.epsilon) == (users, rounds, None)
        assert (spec.users.alpha, spec.users.silo_alpha) == (0.5, 2.0)
        if method.name == "fedavg":
            assert (spec.privacy, method.cohort, method.lr, method.batch) == (
                None,
                spec.split.clients,
                lr,
                batch,
            )
            assert method.server_lr == 1
            continue
        assert (spec.privacy.mode, spec.privacy.multiplier, spec.privacy.delta) == (
            "user",
            5.0,
            1e-5,
        )
        assert line.label.endswith(", σ = 5")
        if method.name in AVG:
            assert method.server_lr * spec.split.clients == pytest.approx(global_lr)
            assert spec.privacy.clip == clip
        else:
            assert (method.server_lr, method.local_epochs, method.lr) == (1, 50, lr)
            assert spec.privacy.clip == (1.0 if name.startswith("mnist") else 0.1)
        if method.name == "uldp_avg":
            assert (method.local_epochs, method.lr, method.batch) == (epochs, lr, batch)


@pytest.mark.parametrize("name", [name for name in PRINTED if "uldp_group" in PRINTED[name][2]])
def test_groups_batches_are_the_papers_on_as_many_records(name):
    """Records of a step of a silo of mean size, under zipf: the batch, or all where a silo has
    fewer.
    """
    batch, data = PRINTED[name][-1], name.partition("_")[0]
    found = [line.spec for line in lines(name) if line.spec.method.name == "uldp_group"]
    assert {spec.method.group for spec in found} == {"max", "median", 2, 8}
    silos = np.repeat(np.arange(len(SILOS[data])), SILOS[data])
    known, law = Known(np.zeros(len(silos), np.int64), silos=silos), found[0].users
    law = UsersSection(count=law.count, how=law.how, alpha=law.alpha, silos=law.silos)
    parts = share_users(known, len(SILOS[data]), law, Key(0) / "users")
    for spec in found:
        group = spec.method.group
        used = parts.at_most(parts.most_records(group), Key(0) / "group").sizes.mean()
        assert spec.method.rate == pytest.approx(min(1.0, batch / used), rel=0.05), group


@pytest.mark.parametrize(
    "name", ["creditcard_field", "mnist_users_field", "heart_field", "brca_field"]
)
@pytest.mark.parametrize("panel", ["zipf", "uniform"])
def test_every_line_of_a_figure_runs(name, panel, tmp_path):
    """Zipf: every line. Uniform: the last, since nothing but who holds what differs."""
    data = name.partition("_")[0]
    own_silos = data in ("heart", "brca")
    uniform = ("users.how=uniform", f"users.silos={'column' if own_silos else 'uniform'}")
    found = lines(
        name, f"data.folder={WRITE[data](tmp_path)}", *FEW, *(uniform if panel == "uniform" else ())
    )
    for line in found if panel == "zipf" else found[-1:]:
        run = scenarios.run(smaller(line.spec))
        assert run.summary["updates"] == 1, str(line)
        assert bool(run.summary["epsilon"]) == (line.spec.method.name != "fedavg"), str(line)


@pytest.mark.parametrize("name", ["creditcard_weights", "creditcard_sampling", "mnist_sampling"])
def test_weights_and_samples_of_users_run(name, tmp_path):
    folder = WRITE[name.partition("_")[0]](tmp_path)
    found = lines(name, f"data.folder={folder}", *FEW, "split.clients=8", "users.silos=uniform")
    rates = [line.spec.method.sampling for line in found]
    assert rates == {"weights": [1, 1], "sampling": rates}[name.rpartition("_")[2]]
    assert rates == sorted(rates)
    assert scenarios.run(smaller(found[0].spec)).summary["updates"] == 1


def smaller(spec):
    """The scenario with few local steps."""
    has = {field.name for field in dataclasses.fields(spec.method)}
    few = [f"method.{key}={value}" for key, value in SMALLER.items() if key in has]
    return changed(as_tree(spec), few, "smaller")
