import json

import numpy as np
import pytest
from torch import nn

import raydpzv
import scenarios
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.rebuild import from_ledger, rebuild, replay
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from tests.helpers.small_horizontal import resume, same, small, stopped
from tests.helpers.small_users import small as small_users

LAW = "method.direction=rank_one"
GROUPS = 'method.groups={"1.*" = {lr = 2.0, smoothing = 0.5}, "3.weight" = {lr = 0.5}}'
WIDE = "model.hidden=[1200]"
"""A model whose directions go through its layers together."""
LAWS = {"law": (LAW,), "groups": (GROUPS,), "both": (LAW, GROUPS), "together": (LAW, GROUPS, WIDE)}
VERTICAL = ("data.train_rows=80", "data.test_rows=30", "budget.updates=24", "evaluate.every=12")
X = (Key(0) / "rank one").generator().standard_normal((90, 6)).astype(np.float32)
Y = np.arange(90) % 3


@pytest.mark.parametrize(
    ("method", "which"),
    [
        *(("decomfl", which) for which in LAWS),
        ("asynchronous", "both"),
        ("asynchronous", "together"),
        ("adam", "groups"),
        ("adam", "together"),
        ("mezo", "law"),
        ("mezo", "both"),
    ],
)
def test_a_run_is_rebuilt_and_resumed_to_the_same_bits(tmp_path, method, which):
    spec = small(method, *LAWS[which])
    whole = scenarios.run(spec, tmp_path / "whole")
    assert rebuild(tmp_path / "whole").verified
    stopped(spec, tmp_path / "run", 9)
    same(resume(tmp_path / "run"), whole)
    with Ledger.open(tmp_path / "whole" / "ledger") as ledger:
        header = ledger.header
    assert header.law == ("gaussian" if which == "groups" else "rank_one")
    factors = [(name, lr, s) for name, _, lr, s in header.models["shared"].tensors]
    first = (2.0, 0.5) if which != "law" else (1.0, 1.0)
    assert factors[:2] == [("1.weight", *first), ("1.bias", *first)]
    assert (factors[2][1] == 0.5) is (which != "law")
    plain = scenarios.run(small(method, *LAWS[which][2:]))
    assert not np.array_equal(whole.models["shared"], plain.models["shared"])


def test_threads_and_clients_with_models_of_their_own_move_no_bits():
    bits = [
        scenarios.run(small(kind, LAW, GROUPS, WIDE, *more)).summary["model_digest"]
        for kind, more in (
            ("decomfl", ()),
            ("decomfl", ("resources.threads=2",)),
            ("per_client", ()),
        )
    ]
    assert bits[0] == bits[1] == bits[2]


def test_fedzo_and_uldp_zo_take_the_law():
    group = 'method.groups={"1.*" = {lr = 2.0, smoothing = 0.5}}'
    for make in (lambda *more: small("fedzo", *more), lambda *more: small_users("rounds", *more)):
        run, plain = scenarios.run(make(LAW, group)), scenarios.run(make())
        assert run.summary["engine"] == "torch"
        assert np.isfinite(run.models["shared"]).all()
        assert not np.array_equal(run.models["shared"], plain.models["shared"])


@pytest.mark.parametrize(
    ("method", "which"),
    [*(("dpzv", which) for which in LAWS), ("zoo_vfl", "both"), ("zoo_vfl", "together")],
)
def test_a_vertical_run_is_replayed_and_its_clients_rebuilt(tmp_path, method, which):
    name = (f"method.name={method}", "privacy.mode=none", "method.server=zo", *VERTICAL)
    run = scenarios.run(scenarios.load("digits_dpzv", [*name, *LAWS[which]]), tmp_path / "run")
    assert replay(tmp_path / "run").verified
    if method == "dpzv":
        found = from_ledger(tmp_path / "run", client=1)
        assert found.verified
        assert np.array_equal(found.models["client 1"], run.models["client 1"])
    wide = (WIDE,) if which == "together" else ()
    plain = scenarios.run(scenarios.load("digits_dpzv", [*name, *wide]))
    moved = {p: not np.array_equal(run.models[p], plain.models[p]) for p in ("client 1", "server")}
    assert moved["client 1"]
    assert moved["server"], "the head's own step is along the law too, and its inputs differ"


@pytest.mark.parametrize("method", ["feedsign", "fzoo", "fedkseed"])
def test_methods_of_scalars_take_law_and_groups(tmp_path, method):
    given = (f"method.name={method}", "method.perturbations=2", "budget.updates=6", LAW, GROUPS)
    run = scenarios.run(scenarios.load("digits_decomfl", given), tmp_path / "run")
    assert rebuild(tmp_path / "run").verified
    plain = scenarios.run(scenarios.load("digits_decomfl", given[:3]))
    assert not np.array_equal(run.models["shared"], plain.models["shared"])


def net(outputs):
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, outputs))


def test_an_own_model_is_rebuilt_from_names_and_shapes_on_record(tmp_path):
    given = {"direction": "rank_one", "groups": {"2.*": {"lr": 3.0}}, "updates": 6}
    run = raydpzv.run(raydpzv.horizontal(net, (X, Y), clients=3, **given), tmp_path / "run")
    recorded = json.loads((tmp_path / "run" / "environment.json").read_text())["layouts"]["shared"]
    assert recorded == [
        ["0.weight", [7, 6]],
        ["0.bias", [7]],
        ["2.weight", [3, 7]],
        ["2.bias", [3]],
    ]
    assert rebuild(tmp_path / "run").verified
    assert run.summary["ledger"]["digest"] == rebuild(tmp_path / "run").digest
    header = tmp_path / "run" / "ledger" / "header.json"
    header.write_text(header.read_text().replace("3.0", "4.0"))
    with pytest.raises(InputError):
        rebuild(tmp_path / "run")


def test_what_does_not_fit_is_refused():
    for kind, refused in (
        ({"groups": {"3.*": {"lr": 2.0}}}, 'no parameter matches "3.*"'),
        ({"groups": {"0.*": {"lr": -2.0}}}, "method.groups.lr: wanted greater than or equal to 0"),
        ({"groups": {"0.*": {"momentum": 0.5}}}, "Settings here: lr, smoothing"),
        ({"groups": {"0.*": {"lr": 2.0}, "*.bias": {}}}, "both match"),
        ({"direction": "rank_two"}, "rank_one"),
    ):
        with pytest.raises(SpecError, match=refused.replace("*", r"\*")):
            raydpzv.run(raydpzv.horizontal(net, (X, Y), clients=3, updates=6, **kind))
    with pytest.raises(SpecError, match=r'"compiled" cannot run method\.direction = "rank_one"'):
        scenarios.run(small("decomfl", LAW, "model.engine=compiled"))
    with pytest.raises(SpecError, match=r'no parameter matches "9\.\*"'):
        scenarios.run(scenarios.load("digits_dpzv", ['method.groups={"9.*" = {}}']))
