import pytest

from raydpzv import registry
from raydpzv.trust import code_words, require_trust, trust_code

OWN = [r for r in vars(registry).values() if isinstance(r, registry.Registry) and r._own]


def test_no_trust_inside_trust_leaves_things_as_they_are(tmp_path):
    with trust_code(), trust_code(False):
        require_trust(tmp_path, "plan.toml", ["own:model"])


def named_in(tree):
    """Return the words that count in this tree beside others that do not."""
    tree.setdefault("data", {})["classes"] = ["a", "b"]
    return code_words(tree)


@pytest.mark.parametrize("setting", [found.setting for found in OWN])
def test_each_setting_that_may_name_an_object_counts(setting):
    """Whatever a registry lets users name is imported."""
    table, key = setting.split(".")
    assert named_in({table: {key: "own:thing"}}) == ("own:thing",)
    assert named_in({table: {key: next(iter(OWN[0]))}}) == ()


@pytest.mark.parametrize(
    "model",
    [
        {"bottoms": ["mlp", "own:thing"]},
        {"weights": "own:thing"},
        {"weights": {"bank": "own:thing", "shop": "shop.safetensors"}},
    ],
)
def test_each_of_several_objects_counts(model):
    assert named_in({"model": model}) == ("own:thing",)
    assert named_in({"evaluate": {"metrics": "own:thing"}}) == ("own:thing",)


def test_all_registries_of_objects_are_looked_at():
    settings = {found.setting for found in OWN}
    assert {"method.name", "data.source", "model.kind", "model.bottom", "model.head"} < settings
    assert "model.loss" in settings
