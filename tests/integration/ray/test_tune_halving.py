"""Successive halving on Ray Tune: the table that it has without, whatever the number of trials at a time."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from raydpzv.search.search_folder import decisions
from scenarios.cli import app

pytestmark = pytest.mark.ray

SHORT = ("budget.updates=50", "evaluate.every=5", "data.train_rows=120", "data.test_rows=60")
SPACE = "method.lr.loguniform = [1e-3, 1e-1]\nmethod.momentum.uniform = [0.0, 0.95]\n"


def halved(folder, *how):
    folder.with_suffix(".toml").write_text(SPACE)
    words = ["tune", "digits_dpzv", "--space", folder.with_suffix(".toml"), "--scheduler", "halving"]
    words += ["--samples", 5, "--draw-seed", 1, "--metric", "loss", "--set", "privacy.mode=none"]
    words += [word for change in SHORT for word in ("--set", change)]
    done = CliRunner().invoke(app, [str(word) for word in [*words, *how, "--quiet", "--out", folder]])
    assert done.exit_code == 0, done.output
    found = pq.read_table(folder / "trials.parquet").drop_columns(["seconds", "throughput"])
    return found.to_pylist()


def test_the_table_is_the_same_with_one_and_two_at_a_time_and_without_ray(ray_session, tmp_path):
    alone = halved(tmp_path / "alone", "--runner", "local")
    assert sorted(row["updates"] for row in alone) == [10, 10, 20, 50, 50]
    for jobs in (1, 2):
        folder = tmp_path / f"ray-{jobs}"
        assert list(map(str, halved(folder, "--jobs", jobs))) == list(map(str, alone))
        assert decisions(folder) == decisions(tmp_path / "alone")
        assert not (folder / "tune").exists()
