"""Rows that are made when asked for give an objective what the same rows in memory give it, under
both engines.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raydpzv.config.catalog import load
from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.objective import Objective
from raydpzv.engine.row_readers import GeneratedRows, KeptRows, RowReader
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.errors import InputError
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.zo.directions import Direction


@pytest.fixture(scope="module")
def prepared() -> PreparedHorizontal:
    spec = load("decomfl_10m", ["data.rows=1230", "data.test_fraction=0.1", "split.clients=100"])
    return prepare_horizontal(spec)


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_made_rows_have_the_losses_and_gradients_of_kept_ones(
    prepared: PreparedHorizontal, engine: str
) -> None:
    table = prepared.split.train
    x, y = (torch.from_numpy(column) for column in table.rows_at(np.arange(table.parts.total)))

    def over(rows: RowReader) -> Objective:
        network = prepared.plan.dense()
        assert network is not None
        return (
            CompiledObjective(network, rows)
            if engine == "compiled"
            else TorchObjective(prepared.plan.module, rows)
        )

    made, kept = over(GeneratedRows(table)), over(KeptRows(x, y))
    at, batches = made.vector(prepared.plan.initial()), [np.array([7, 1100, 8]), np.array([3])]
    along = [Direction(seed, made.size) for seed in (1, 2)]
    assert np.array_equal(
        made.losses(at, along, 0.1, batches), kept.losses(at, along, 0.1, batches)
    )
    for one, other in zip(
        made.gradient(at, batches[0]), kept.gradient(at, batches[0]), strict=True
    ):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    assert made.loss(at, batches[0]) != made.loss(at, batches[1]), (
        "control: other rows have another loss"
    )


def test_the_engine_of_generated_rows_is_chosen_by_their_model(
    prepared: PreparedHorizontal,
) -> None:
    assert prepared.engine == "compiled"
    assert isinstance(prepared.objective(), CompiledObjective)
    model = prepared.spec.model.model_copy(update={"engine": "torch"})
    under_torch = replace(prepared, spec=prepared.spec.model_copy(update={"model": model}))
    assert isinstance(under_torch.objective(), TorchObjective)


def test_features_and_labels_must_be_pairs() -> None:
    with pytest.raises(InputError, match="3 rows of features and 2 labels"):
        KeptRows(torch.zeros(3, 1), torch.zeros(2, dtype=torch.int64))
