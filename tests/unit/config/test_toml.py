"""Digests of scenarios, read off their text or off what it means."""

import pytest

from raydpzv.config import catalog
from raydpzv.config.toml import as_toml, as_tree, scenario_sha256, tree_sha256
from raydpzv.config.tree import read_toml


@pytest.mark.parametrize("name", catalog.names())
def test_the_digest_of_a_file_is_that_of_its_scenario(name):
    spec = catalog.load(name)
    assert tree_sha256(read_toml(as_toml(spec))) == scenario_sha256(spec)
    assert tree_sha256(as_tree(spec) | {"seed": spec.seed + 1}) != scenario_sha256(spec)
