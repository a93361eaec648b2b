"""Seed files of every kind and the models that they rebuild: a change here breaks every file that
was written before.

Other programs can test their readers with them. After a change of the format that is meant:
`python -m tests.golden.test_golden_seed_files`, and the files go into the commit.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from raydpzv.files import sha256
from raydpzv.seed_file.seed_format import encode_seed_file
from raydpzv.seed_file.seed_replay import read_seed_file, rebuilt
from raydpzv.zo.philox import COS, LOG, SIN, normals, signs
from tests.helpers.seed_samples import BASE, base_tensors, header, vectors

FOLDER = Path(__file__).parent / "seed_files"
RECORD = FOLDER / "expected.json"


def facts(path: Path) -> dict[str, Any]:
    """The digest and the ends of the model that a file rebuilds."""
    file = read_seed_file(path)
    x = rebuilt(file, file.models[0], base_tensors())
    return {
        "sha256": sha256(x),
        "first": [v.hex() for v in x[:3].tolist()],
        "last": x[-1].item().hex(),
    }


def test_every_vector_is_on_record():
    names = {path.stem for path in FOLDER.glob("*.seeds")}
    assert names == vectors().keys() == json.loads(RECORD.read_text()).keys()


@pytest.mark.parametrize("name", vectors())
def test_a_vector_rebuilds_the_model_on_record(name):
    found = facts(FOLDER / f"{name}.seeds")
    assert found == json.loads(RECORD.read_text())[name]
    assert found["sha256"] == read_seed_file(FOLDER / f"{name}.seeds").models[0].result.hex()


def test_vectors_name_the_weights_that_they_need():
    (model,) = read_seed_file(FOLDER / "weights.seeds").models
    assert [t.given for t in model.tensors if t.start == "weights"] == ["scale"]
    assert "scale" in BASE


def test_the_specification_has_the_check_values():
    page = (Path(__file__).parents[2] / "docs" / "seed-file.md").read_text()
    assert json.loads(RECORD.read_text())["gaussian"]["sha256"] in page
    drawn = normals(0, 0, 1025)[[0, 256, 512, 768, 1024]]
    assert ", ".join(map(str, drawn)) in page
    assert ", ".join(str(int(sign)) for sign in signs(0, 0, 8)) in page
    for name, constants in (("l", LOG), ("c", COS), ("s", SIN)):
        assert f"{name} = {' '.join(map(str, constants))}" in page


def test_the_specification_shows_a_whole_header():
    page = (Path(__file__).parents[2] / "docs" / "seed-file.md").read_text()
    (shown,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert json.loads(shown) == header((FOLDER / "momentum.seeds").read_bytes())


def write() -> None:
    """Write the vectors and what they rebuild."""
    FOLDER.mkdir(exist_ok=True)
    for name, file in vectors().items():
        (FOLDER / f"{name}.seeds").write_bytes(encode_seed_file(file))
    found = {name: facts(FOLDER / f"{name}.seeds") for name in vectors()}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write()
