import re
import tomllib

import pytest

import scenarios
from raydpzv.config.catalog import names
from raydpzv.config.scenario import VerticalScenario
from raydpzv.config.toml import as_toml, load, override, parse
from raydpzv.errors import DataError, SpecError
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.methods.vertical.dpzv import DpzvConfig
from raydpzv.methods.vertical.frozen import FrozenConfig
from raydpzv.registry import METHODS
from tests.helpers.loading import refusal

PARTIES = {"parties": {"bank": ["a"], "shop": ["b"]}}
GOOD = {"budget": {"updates": 10}}
EXTERNAL = {"epsilon": 1.0, "adversary": "external"}
PAPER = {"mode": "paper", "epsilon": 1.0, "delta": 1e-5, "clip": 1.0}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"method": {"clipp": 1}}, r"method.clipp: unknown setting \(from x.toml\)"),
        (
            {"privacy": {"epsilonn": 1}},
            r'privacy.epsilonn: unknown setting.*Did you mean "privacy.epsilon"\?.*clip, delta',
        ),
        ({"budgett": {}}, r'budgett: unknown setting.*Did you mean "budget"\?'),
        (
            {"method": {"name": "dpz"}},
            (
                r"method.name: wanted one of dpzv, frozen, sgd, vafl, zoo_vfl, czofo, decomfl, .*,"
                r' got \'dpz\'.*"dpzv"'
            ),
        ),
        (
            {"method": {"lr": "fast"}},
            r"method.lr: wanted a valid number, got 'fast' \(from x.toml\)",
        ),
        ({"method": {"batch": 2.5}}, r"method.batch: wanted a valid integer, got 2.5"),
        (
            {"method": {"lr_at": [[20]]}},
            r"method.lr_at.0.1: wanted a value, got \[20\] \(from x.toml\)",
        ),
        (
            {"method": {"lr_at": [20, 0.1]}},
            r"method.lr_at.0: wanted a list, got 20 \(from x.toml\)",
        ),
        (
            {"method": {"lr_at": [[20, 0.1, 3]]}},
            r"method.lr_at.0: wanted at most 2 values, got \[20, 0.1, 3\]",
        ),
        ({"method": {"momentum": 1.0}}, r"method.momentum: wanted less than 1, got 1.0"),
        (
            {"arrivals": {"rate": -1}},
            r"arrivals.rate: wanted one number above 0 .*, or a list.*got -1",
        ),
        ({"arrivals": {"rate": [1, float("inf")]}}, r"arrivals.rate: wanted one number above 0"),
        (
            {"privacy": {"clip": 0}},
            r"privacy.clip: wanted greater than or equal to 0.000000001, got 0",
        ),
        (
            {"resources": {"server_gpus": -1}},
            r"resources.server_gpus: wanted greater than or equal to 0, got -1",
        ),
        ({"resources": {"client_gpus": "half"}}, r'resources.client_gpus: .*"auto"'),
        (
            {"resources": {"client_gpus": -0.5}},
            r"resources.client_gpus: .*0 or above.*, got -0.5 \(from x.toml\)",
        ),
        (
            {"resources": {"placement": "tight"}},
            r"resources.placement: wanted 'pack', 'spread', .*'tight'",
        ),
        (
            {"resources": {"placement_timeout": -1}},
            r"resources.placement_timeout: wanted greater than or equal to 0, got -1",
        ),
        (
            {"resources": {"labels": {}}},
            r"resources.labels: wanted a table with labels for server or cli",
        ),
        (
            {"resources": {"labels": {"hosts": {"a": "b"}}}},
            r"labels: wanted .* server or clients, got",
        ),
        (
            {"resources": {"labels": {"server": {"zone": "in()"}}}},
            r"resources.labels: .* such as .*in\(\)",
        ),
        (
            {"resources": {"labels": {"server": {"a b": "c"}}}},
            r"resources.labels: wanted labels and their",
        ),
        (
            {"resources": {"labels": {"server": {"zone": 3}}}},
            r"resources.labels: wanted labels and their",
        ),
        (
            {"resources": {"host_gpus": -1}, "method": {"name": "fedavg"}},
            r"resources.host_gpus: wanted greater than or equal to 0, got -1",
        ),
        (
            {"split": {"how": "cols"}},
            (
                r'split.how: unknown split "cols". Did you mean "columns"\? Choose columns, rows,'
                r" .* \(from x.toml\)"
            ),
        ),
        (
            {"split": {"parties": {"bank": ["a"]}}},
            r"split.parties: wanted at least 2 parties, such as",
        ),
        (
            {"split": {"parties": {"bank": ["a"], "shop": []}}},
            r'parties: wanted a list of columns for "shop"',
        ),
        (
            {"split": {"parties": {"bank": ["a"], "7up": ["b"]}}},
            r"parties: wanted names that begin with a l",
        ),
        (
            {"split": {"parties": {"bank": ["a", "b"], "shop": ["b"]}}},
            (
                r'split.parties: wanted each column in one party, and once; "b" is in "bank" and'
                r' "shop"'
            ),
        ),
        (
            {"split": {"parties": {"bank": ["a", "a"], "shop": ["b"]}}},
            r'"a" is in "bank" and "bank"',
        ),
        (
            {"split": {"parties": {"bank": [0], "shop": [True]}}},
            r"parties: wanted a column's number or its name",
        ),
        (
            {"split": {**PARTIES, "how": "rows"}, **GOOD},
            r'split.parties: wanted split.how = "columns", got "rows"',
        ),
        (
            {"split": {**PARTIES, "clients": 3}, **GOOD},
            r"split.clients: wanted 2, .* got 3; leave split.clients out",
        ),
        (
            {"split": {**PARTIES, "columns": [["a"], ["b"]]}, **GOOD},
            r"split.columns: wanted split.parties or split.col",
        ),
        (
            {"split": PARTIES, "data": {"source": "csv", "file": "f", "target": "b"}, **GOOD},
            r'split.parties: wanted features for "shop", got "b", which data.target names',
        ),
        (
            {
                "split": PARTIES,
                "data": {"source": "csv", "file": "f", "target": "y", "groups": "a"},
                **GOOD,
            },
            r'split.parties: wanted features for "bank", got "a", which data.groups names',
        ),
        (
            {"data": {"scale": "public", "centre": {}}},
            r"data.centre: wanted one number .* that the table names",
        ),
        (
            {"data": {"scale": "public", "spread": {"a": 0}}},
            r"data.spread: wanted one number above 0 ",
        ),
        (
            {"data": {"scale": "public", "centre": {"a": 1, "b": 2}, "spread": {"a": 1}}, **GOOD},
            (
                r'data.centre, data.spread: wanted the same columns in both, got "b" in one; add it'
                r" to the other"
            ),
        ),
        (
            {"data": {"source": "digit"}},
            r'data.source: unknown data set "digit". Did you mean "digits"\?',
        ),
        (
            {"arrivals": {"rate": [1, 2]}, **GOOD},
            r"arrivals.rate: wanted one number or 4 .*got a list of 2",
        ),
        ({"budget": {}}, r"budget: wanted at least one limit"),
        (
            {"privacy": {"epsilon": 1.0}, **GOOD},
            r'privacy.epsilon: has no meaning with privacy.mode = "none"',
        ),
        ({"privacy": {**PAPER, "delta": None}, **GOOD}, r"privacy.delta: wanted with ε"),
        ({"privacy": {**PAPER, "clip": None}, **GOOD}, r"privacy.clip: wanted a number above 0"),
        ({"privacy": {**PAPER, "sigma": 1.0}, **GOOD}, r"privacy: wanted either epsilon or sigma"),
        (
            {"privacy": PAPER, "budget": {"seconds": 3}},
            r"budget.updates: wanted with privacy.epsilon",
        ),
        (
            {"privacy": PAPER, "method": {"name": "sgd"}, **GOOD},
            r'privacy.mode: "sgd" adds no noise',
        ),
        (
            {"privacy": {**PAPER, "noise": "seeded"}, "budget": {"updates": 9, "epsilon": 1.0}},
            r"budget.epsilon: seeded noise proves no ε",
        ),
        ({"budget": {"epsilon": 1.0}}, r"budget.epsilon: has no meaning with privacy.mode"),
        (
            {
                "privacy": PAPER,
                "method": {"server": "frozen"},
                "budget": {**GOOD["budget"], **EXTERNAL},
            },
            r'budget.adversary: "external" needs method.batches = "poisson"',
        ),
        (
            {
                "privacy": PAPER,
                "method": {"batches": "poisson"},
                "budget": {**GOOD["budget"], **EXTERNAL},
            },
            r'"external" sees the final head; only method.server = "frozen"',
        ),
        (
            {
                "privacy": PAPER,
                "method": {"server": "frozen", "batches": "poisson"},
                "budget": {**GOOD["budget"], **EXTERNAL},
            },
            r'budget.adversary: "external" needs method.coins = "system"',
        ),
        (
            {"method": {"coins": "system"}, **GOOD},
            r'method.coins: "system" goes with method.batches = "poisson"',
        ),
        (
            {
                "privacy": PAPER,
                "method": {"server": "frozen", "batches": "poisson", "coins": "system"},
                "budget": {**GOOD["budget"], **EXTERNAL, "bytes": 10**6},
            },
            (
                r'budget.adversary: "external" needs a run that ends by its number of updates;'
                r" leave out budget.bytes"
            ),
        ),
        (
            {
                "privacy": PAPER,
                "method": {"server": "frozen", "batches": "poisson", "coins": "system"},
                "network": {"up": 1e6},
                "budget": {**GOOD["budget"], **EXTERNAL},
            },
            r'budget.adversary: "external" needs an order of updates that .*; leave out network.up',
        ),
        (
            {"method": {"lr": 1e-300}},
            r"method.lr: wanted greater than or equal to 0.000000001, got 1e-300",
        ),
        ({"clock": {"service": 1e308}}, r"clock.service: wanted less than or equal to"),
        ({"model": {"hidden": [10**12]}}, r"model.hidden.0: wanted less than or equal to 1000000"),
        ({"arrivals": {"kind": "trace"}, **GOOD}, r"arrivals.file: goes with"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(tree, said):
    tree = {k: {a: b for a, b in v.items() if b is not None} for k, v in tree.items()}
    with refusal(SpecError, said):
        parse(tree, "x.toml")


@pytest.mark.parametrize("name", names())
def test_every_scenario_is_valid_and_survives_a_round_trip(name):
    spec = scenarios.load(name)
    assert spec.title
    assert parse(tomllib.loads(as_toml(spec)), "again") == spec


def test_overrides_reach_their_setting_and_keep_the_rest():
    spec = scenarios.load(
        "digits_dpzv", ["method.lr=0.5", "arrivals.rate=[1,2,3,4]", "data.source=digits", "seed=9"]
    )
    assert isinstance(spec.method, DpzvConfig)
    assert (spec.method.lr, spec.method.smoothing, spec.seed) == (0.5, 0.1, 9)
    assert spec.arrivals.rate == (1.0, 2.0, 3.0, 4.0)
    changed = override(spec, ["seed=3"])
    assert changed.seed == 3
    assert changed.method == spec.method


def test_parties_are_clients_in_their_order_each_with_its_own_columns():
    spec = scenarios.load(
        "breast_cancer_dpzv", ['split={parties={b=["mean radius", "mean area"], a=["worst area"]}}']
    )
    assert (spec.split.clients, spec.party_names) == (2, ("b", "a"))
    assert [part.columns for part in prepare_vertical(spec).parts] == [(0, 3), (23,)]
    assert parse(tomllib.loads(as_toml(spec)), "again").split == spec.split
    assert (
        scenarios.load("digits_dpzv").party_names
        == scenarios.load("digits_decomfl").party_names
        == ()
    )


def test_noise_is_switched_off_and_columns_are_given_by_override():
    free = scenarios.load("digits_dpzv", ["privacy.mode=none"])
    assert (free.privacy.mode, free.privacy.epsilon, free.privacy.clip) == ("none", None, 2.0)
    frozen = scenarios.load("digits_dpzv", ["privacy.mode=none", "method.name=frozen"])
    assert isinstance(frozen.method, FrozenConfig)
    chosen = scenarios.load("breast_cancer_dpzv", ["split.columns=[[0, 5], [7, 8, 9], [1]]"])
    assert chosen.split.columns == ((0, 5), (7, 8, 9), (1,))
    assert [part.shape for part in prepare_vertical(chosen).parts] == [(2,), (3,), (1,)]


def test_a_scenario_is_named_after_its_file():
    assert scenarios.load("stragglers").name == "stragglers"


def test_another_method_keeps_what_both_have():
    spec = scenarios.load("digits_dpzv", ["method.name=frozen", 'privacy={mode="none"}'])
    assert isinstance(spec.method, FrozenConfig)
    assert (spec.method.batch, spec.method.server_lr) == (64, 0.02)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["method.name=fedavg"],
            "lr = 0.001, momentum = 0.5, dampening = true; fedavg's own: 0.1, 0.0, false",
        ),
        (
            ["method.name=fedavg", "method.momentum=0.5", "method.dampening=false"],
            "lr = 0.001; fedavg's own: 0.1",
        ),
        (
            ["method.name=fedavg", "method.momentum=0", "method.dampening=false", "method.lr=0.2"],
            "",
        ),
        (["method.name=decomfl", "method.batch=8"], ""),
        (["method.name=fedzo"], ""),  # the scenario's step size is FedZO's own
    ],
)
def test_what_another_method_takes_over_by_name_alone_is_said(changes, said):
    note = scenarios.load("mnist_decomfl", changes).note
    assert note.partition("decomfl: ")[2].partition(". Give")[0] == said
    assert (note == "") == (said == "")


@pytest.mark.parametrize(
    ("scenario", "changes", "kept"),
    [
        ("mnist_dpzv", ["data.source=mnist5k"], {"folder": None}),
        ("parkinson_vafl", ["data.source=mnist5k"], {"file": None, "target": None, "groups": None}),
        (
            "parkinson_vafl",
            ["data.source=parquet"],
            {"target": "class", "groups": "id", "skip_lines": None},
        ),
        # given, and refused where the data are read
        (
            "parkinson_vafl",
            ["data.skip_lines=2", "data.source=mnist5k"],
            {"groups": None, "skip_lines": 2},
        ),
    ],
)
def test_another_data_set_keeps_what_it_takes_of_the_files_settings(scenario, changes, kept):
    data = scenarios.load(scenario, changes).data
    assert {name: getattr(data, name) for name in kept} == kept


def test_token_ids_are_no_numbers_for_a_horizontal_model():
    texts = [
        "data.source=synthetic_reviews",
        "data.rows=60",
        "data.tokens=12",
        "data.vocabulary=64",
    ]
    with pytest.raises(
        SpecError, match=r'^model.kind: "mlp" takes numbers, .* "synthetic_reviews" are token ids'
    ):
        prepare_horizontal(
            scenarios.load("digits_decomfl", [*texts, "split.clients=6", "method.cohort=3"])
        )


MISTYPED = [
    ("digits_dpzv", "vaffl", "vafl"),
    ("digits_dpzv", "dpzz", "dpzv"),
    ("digits_dpzv", "decomf", "decomfl"),  # of the other kind than the scenario's
    ("digits_decomfl", "fedavgg", "fedavg"),
    ("digits_decomfl", "zo_vf", "zoo_vfl"),
]


@pytest.mark.parametrize(("scenario", "name", "meant"), MISTYPED)
def test_a_mistyped_method_is_answered_by_the_nearest_name(tmp_path, scenario, name, meant):
    path = tmp_path / "mine.toml"
    path.write_text(f'[method]\nname = "{name}"\n')
    known = ", ".join(METHODS)
    for said, where in (
        (lambda: load(path), "mine.toml"),
        (lambda: scenarios.load(scenario, [f"method.name={name}"]), "--set"),
        (lambda: scenarios.load(scenario, [f'method.name="{name}"']), "--set"),
        (lambda: parse({"method": {"name": name}}, "a table"), "a table"),
    ):
        with pytest.raises(SpecError) as error:
            said()
        wanted = f"method.name: wanted one of {known}, got {name!r} (from {where})."
        assert str(error.value) == f'{wanted} Did you mean "{meant}"?'


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            "lr=.1",
            'lr: unknown setting (from --set). Did you mean "method.lr"? Settings here: arrivals, ',
        ),
        ("epsilon=1", 'Did you mean "privacy.epsilon" or "budget.epsilon"? Settings here: '),
        ("privacy.lr=1", 'Did you mean "method.lr"? Settings here: adversary, '),
        ("arrivals.raet=1", 'Did you mean "arrivals.rate"? Settings here: '),
        ("method.qqqq=1", "method.qqqq: unknown setting (from --set). Settings here: "),
        (
            "cohort=3",
            "cohort: unknown setting (from --set). Settings here: ",
        ),  # of horizontal methods alone
        ("method.lr=fast", "method.lr: wanted a valid number, got 'fast' (from --set)"),
        (
            "method.coins=system",
            'method.batches = "poisson", got "shuffle" (from bank.toml and --set)',
        ),
    ],
)
def test_a_wrong_override_names_the_nearest_setting_and_its_origin(tmp_path, item, said):
    path = tmp_path / "bank.toml"
    path.write_text("[budget]\nupdates = 3\n")
    with refusal(SpecError, re.escape(said)):
        load(path, [item])


@pytest.mark.parametrize(("text", "lr"), [(".1", 0.1), ("1.", 1.0), ("+.5e-1", 0.05)])
def test_an_override_may_be_a_number_as_people_type_it(text, lr):
    assert scenarios.load("digits_dpzv", [f"method.lr={text}"]).method.lr == lr


def test_a_wrong_value_of_the_file_is_not_blamed_on_an_override(tmp_path):
    path = tmp_path / "bank.toml"
    path.write_text("[budget]\nupdates = -3\n")
    with pytest.raises(SpecError, match=r"budget.updates: .* got -3 \(from bank.toml\)$"):
        load(path, ["method.lr=0.1"])


@pytest.mark.parametrize(
    ("item", "words"),
    [
        *((item, "wanted key=value") for item in ("lr", "=3", "method..lr=3", "method.lr")),
        ("seed.x=3", "is a value, not a table"),
        ("method.name=qqqqqq", r"got 'qqqqqq' \(from --set\)\.$"),  # like no name: none is proposed
    ],
)
def test_an_override_that_cannot_be_is_refused(item, words):
    with pytest.raises(SpecError, match=words):
        scenarios.load("digits_dpzv", [item])


def test_files_that_are_no_scenarios(tmp_path):
    with pytest.raises(SpecError, match="cannot read the scenario file"):
        load(tmp_path / "none.toml")
    for content, said in (
        (b"a = = 3", r"bad\.toml: not a TOML file"),
        (b"\xff\xfe\x00", "text in UTF-8"),
    ):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(SpecError, match=said):
            load(tmp_path / "bad.toml")
    with pytest.raises(
        SpecError, match=r'scenario "digits_dpz" is unknown. Did you mean "digits_dpzv"\?'
    ):
        scenarios.load("digits_dpz")


@pytest.mark.parametrize(
    ("overrides", "error", "said"),
    [
        (["split.clients=9"], SpecError, "9 clients"),
        (["split.how=columns", "split.clients=65"], SpecError, "65 clients"),
        (["split.how=views"], SpecError, "view"),
        (["method.batch=5000"], SpecError, "method.batch: wanted at most 1437"),
        (["data.source=mnist"], SpecError, "folder"),
        (["data.source=mnist", "data.folder=nowhere"], DataError, "train-images"),
        (["model.bottom=cnn", "split.how=columns"], SpecError, "model.bottom"),
        (
            ["arrivals.kind=trace", "arrivals.file=nowhere.csv"],
            DataError,
            "columns client and time",
        ),
    ],
)
def test_a_scenario_that_does_not_fit_its_data_is_refused_before_anything_runs(
    overrides, error, said
):
    with refusal(error, said):
        prepare_vertical(scenarios.load("digits_dpzv", overrides))


def test_a_trace_file_is_read_and_checked(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,time\n0,1.0\n1,1.5\n0,2.0\n")
    overrides = ["arrivals.kind=trace", f"arrivals.file={path}"]
    timing = prepare_vertical(scenarios.load("digits_dpzv", overrides)).timing
    assert [list(timing.arrivals.epochs(m)) for m in range(3)] == [[1.0, 2.0], [1.5], []]
    path.write_text("client,time\n7,1.0\n")
    with pytest.raises(DataError, match=r"names client 7; there are clients 0\.\.3"):
        prepare_vertical(scenarios.load("digits_dpzv", overrides))


def test_a_spec_is_frozen():
    spec = VerticalScenario.model_validate(GOOD)
    with pytest.raises(ValueError, match="frozen"):
        spec.seed = 3  # type: ignore[misc]
