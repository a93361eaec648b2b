"""Every setting reaches what it sets: changed alone, a small run does something else.

The settings come from the registry and the sections themselves, so that a new one is here by
itself. One that needs company to matter (a quantum needs its law), or whose other value nobody can
guess, has a line in a table below.
"""

import dataclasses

import numpy as np
import pytest

from raydpzv.registry import METHODS
from tests.helpers.changed_settings import (
    CLIENTS,
    HEAD,
    Change,
    differs,
    fields_of,
    fields_of_method,
    observed,
    other,
    run_small,
    usual,
)
from tests.helpers.dataset_files import write_mnist

IMAGES, FLAT = (
    ("data.source=wine", "split.how=columns"),
    ("data.source=breast_cancer", "split.how=columns"),
)
TABLE = ("data.source=csv", "data.file={files}/a.csv", "data.target=label")
TIMES = (
    "data.source=survival",
    "data.file={files}/a.csv",
    "data.target=second",
    "model.kind=logistic",
)
OUTSIDE = ("data.target=x", "data.classes=[0, 1, 2]", "data.other=0")
GAPS = ("data.file={files}/gaps.csv", "data.missing=mean")
HEADED = ("data.file={files}/headed.csv", "data.skip_lines=1")
GENERATED = ("data.source=synthetic", "data.rows=120")
SERIES = (
    "data.source=synthetic_series",
    "data.rows=100",
    "data.columns=4",
    "split.how=variables",
    "model.bottom=lstm",
)
TEXTS = (
    "data.source=synthetic_reviews",
    "data.rows=100",
    "data.tokens=12",
    "data.vocabulary=64",
    "split.how=tokens",
    "split.clients=2",
    "model.bottom=transformer",
    "model.hidden=[8]",
)
SIGMA = (
    "privacy.mode=none",
    "privacy.mode=paper",
    "privacy.delta=1e-3",
    "privacy.clip=2.0",
    "privacy.sigma=0.5",
)
SOUND = (  # noise so small that it rounds to nothing: two runs differ by their settings alone
    "privacy.mode=none",
    "privacy.mode=proved",
    "privacy.noise=system",
    "privacy.clip=1.0",
    "privacy.noise_multiplier=1e-9",
    "data.scale=none",
    "data.split=plain",
    "method.server=frozen",
    "model.head=sum",
    "model.embedding=10",
    "method.perturbations=2",
)
PRIVATE_HEAD = (*SOUND, "method.server=dp_sgd", "privacy.head_clip=0.5")
SPENDING = (*SIGMA[:4], "privacy.sigma=9.0", "privacy.noise=system", "budget.epsilon=3.0")
LINK = ("network.latency=0.01",)
WAITING = (
    "method.name=sgd",
    "privacy.mode=none",
    "clock.kind=wall",
    "arrivals.rate=500",
    "clock.compute=[0.3,0,0,0]",
)
ONE_STEP = ("method.local_steps=1",)
PULLS = ("method.asynchronous=true", *ONE_STEP)

MASKED = ("method.aggregation=masked",)
PRIVATE_WEIGHTS = (
    "method.aggregation=private_weights",
    "method.count_cap=2",
    "method.value_bits=4",
    "budget.updates=1",
    "users.count=2",
    "data.train_rows=20",
    "data.test_rows=10",
    "model.kind=logistic",
)
USERS = ("split.how=users", "users.count=12", "data.train_rows=200")

OWN = "tests.helpers.own_parts:"
WHOLE = (f"model.kind={OWN}whole", f"data.source={OWN}rows", "data.scale=none", "split.how=iid")
OWN_ROWS = (f"data.source={OWN}rows", "data.scale=none")

PUBLIC = ("data.scale=public", "data.centre=1.0", "data.spread=2.0")

COMMON = {
    "name": Change('"other"', watch=("scenario",)),
    "title": Change('"other"', watch=("title",)),
    "data.options": Change("{shift = 3.0}", (*OWN_ROWS, "split.how=columns")),
    "data.folder": Change('"{files}/b"', ("data.source=mnist", "data.folder={files}/a")),
    "data.file": Change('"{files}/b.csv"', TABLE),
    "data.target": Change('"second"', TABLE),
    "data.groups": Change('"y"', (*TABLE, 'data.groups="x"')),
    "data.skip_lines": Change("2", (*TABLE, *HEADED), refused='no column "label"'),
    "data.test_fraction": Change("0.4"),
    "data.categories": Change('["x"]', TABLE),
    "data.other": Change("1", (*TABLE, *OUTSIDE)),
    "data.missing": Change('"refuse"', (*TABLE, *GAPS), refused="without a value"),
    "data.separator": Change('";"', TABLE, refused='set data.separator = ","'),
    "data.decimal": Change('","', (*TABLE, *GAPS), refused="no number"),
    "data.dates": Change('{x = "2020-01-01"}', TABLE, refused="no date"),
    "data.validation_fraction": Change("0.2"),
    "data.centre": Change("2.0", PUBLIC),
    "data.spread": Change("3.0", PUBLIC),
    "data.train_rows": Change("50"),
    "data.test_rows": Change("20"),
    "data.rows": Change("90", GENERATED),
    "data.columns": Change("9", GENERATED),
    "data.classes": Change("3", GENERATED),
    "clock.compute": Change("0.2", LINK),
    "clock.compute_law": Change('"exponential"', ("clock.compute=0.2",)),
    "clock.compute_quantum": Change(
        "0.02", ("clock.compute=0.2", "clock.compute_law=poisson", "clock.compute_quantum=0.1")
    ),
    "clock.service": Change("0.2", LINK),
    "clock.service_law": Change('"exponential"', ("clock.service=0.2",)),
    "arrivals.file": Change(
        '"{files}/b-trace.csv"', ("arrivals.kind=trace", "arrivals.file={files}/a-trace.csv")
    ),
    "network.latency": Change("0.1", ("clock.compute=0.2",)),
    "network.up": Change("1000.0", ("clock.compute=0.2",)),
    "network.down": Change("1000.0", ("clock.compute=0.2",)),
    "evaluate.every": Change("3"),
    "budget.updates": Change("5"),
    "budget.bytes": Change("400"),
    "record.flush": Change("1e-9", watch=("parts",)),
    "record.checkpoint": Change("1e-9", watch=("checkpoints",)),
    "record.checkpoint_updates": Change("2", watch=("checkpoints",)),
    # what Ray makes of it: tests/integration/ray/test_reservation.py
    "resources.placement": Change('"spread"', watch=("plan",)),
    "resources.placement_timeout": Change("60.0", watch=("plan",)),
    "resources.labels": Change('{server = {zone = "a"}}', watch=("plan",)),
}
PLACED = Change("0.1", watch=("plan",))


# with the library of such models: test_pretrained.py
PRETRAINED = Change('"data"', refused="model.folder: wanted a model of your own")


def adapters(
    own_model: str, targets: tuple[str, str], given: tuple[str, ...] = ()
) -> dict[str, Change]:
    """Return rows for the adapters of a model of your own with two linear layers."""
    usual = (own_model, *given, f'model.lora={{targets=["{targets[0]}"], rank=2}}')
    to = {
        "rank": "3",
        "alpha": "2.0",
        "targets": f'["{targets[1]}"]',
        "modules_to_save": f'["{targets[1]}"]',
    }
    return {f"model.lora.{name}": Change(value, usual) for name, value in to.items()}


VERTICAL = COMMON | {
    **adapters(f"model.bottom={OWN}bottom", ("1", "3")),
    "model.folder": PRETRAINED,
    "data.groups": Change('"y"', (*TABLE, 'data.groups="x"', "split.clients=1")),
    "data.time": Change('"x"', refused="takes no time"),
    "data.source": Change('"wine"', FLAT),
    "data.steps": Change("9", SERIES),
    "data.tokens": Change("8", TEXTS),
    "data.vocabulary": Change("32", TEXTS),
    "split.how": Change('"patches"'),
    "split.clients": Change("2"),
    "split.grid": Change("[1, 4]", ("split.how=patches", "split.grid=[2, 2]")),
    "split.columns": Change("[[5], [6], [7], [8]]", (*FLAT, "split.columns=[[1], [2], [3], [4]]")),
    "split.parties": Change("{a=[6], b=[1, 5]}", (*FLAT[:1], "split={parties={a=[6], b=[1]}}")),
    "model.bottom": Change('"linear"'),
    "model.bottoms": Change('["linear", "mlp", "linear", "mlp"]'),
    "model.options": Change("{width = 5}", (f"model.bottom={OWN}bottom",)),
    "model.integers": Change(
        "true",
        (f"model.bottom={OWN}bottom", *OWN_ROWS, "split.how=columns"),
        refused="model.integers says so",
    ),
    "model.head_options": Change("{width = 5}", (f"model.head={OWN}head",)),
    "model.weights": Change(f'{{0 = "{OWN}bottom_weights"}}', ("model.bottom=linear",)),
    "model.partial_weights": Change(
        "false",
        (
            "model.bottom=linear",
            f'model.weights={{0="{OWN}bottom_bias"}}',
            "model.partial_weights=true",
        ),
        refused="missing: 1.weight",
    ),
    "model.hidden": Change("[6]"),
    "model.loss": Change('"binary"', FLAT),
    "model.targets": Change('"numbers"', (f"model.loss={OWN}loss", *OWN_ROWS, "split.how=columns")),
    "model.head": Change('"linear"'),
    "model.head_hidden": Change("[6, 5]"),
    "privacy.mode": Change('"none"'),
    "privacy.epsilon": Change("3.0"),
    "privacy.delta": Change("1e-5"),
    "privacy.sigma": Change("0.9", SIGMA),
    "privacy.clip": Change("0.01"),
    "privacy.noise_multiplier": Change("1e-8", SOUND),
    "privacy.relation": Change('"add_remove"', SOUND),
    "privacy.adversary": Change('"external"', SOUND, refused="privacy.adversary"),
    "privacy.head_clip": Change("0.1", PRIVATE_HEAD),
    "privacy.head_share": Change("0.5", PRIVATE_HEAD),
    "privacy.permit_large_delta": Change(
        "false",
        (*SOUND, "privacy.delta=0.5", "privacy.permit_large_delta=true"),
        refused="not below 1/D",
    ),
    "model.initial": Change('"zero_last"'),
    "privacy.noise": Change('"system"'),
    "clock.kind": Change('"wall"', ("arrivals.rate=500", "budget.updates=8")),
    "arrivals.kind": Change('"constant"'),
    **dict.fromkeys(
        (f"resources.{of}_{what}s" for of in ("client", "server") for what in ("cpu", "gpu")),
        PLACED,
    ),
    "resources.client_actors": Change("2", watch=("plan",)),
    "resources.timeout": Change("1e-9", WAITING, refused="raise resources.timeout"),
    "budget.seconds": Change("1.0", ("budget.updates=12",)),
    "budget.epsilon": Change("5.0", SPENDING, watch=("updates", "stopped_by")),
    "budget.adversary": Change('"paper"', SPENDING, watch=("updates", "stopped_by")),
    "record.staleness": Change("false"),
}
OF_USERS = {
    "privacy.mode": '"user"',
    "privacy.epsilon": "3.0",
    "privacy.multiplier": "3.0",
    "privacy.delta": "1e-5",
    "privacy.clip": "0.1",
    "privacy.against": '"client"',
    "privacy.noise": '"seeded"',
    "budget.epsilon": "3.0",
}
UNPROTECTED = "goes with methods that protect users"
"""What a method says to settings of users' privacy, which `test_user_privacy.py` follows in methods
that have it.
"""
HORIZONTAL = COMMON | {
    **adapters(f"model.kind={OWN}whole", ("0", "2"), (*OWN_ROWS, "split.how=iid")),
    "model.folder": PRETRAINED,
    "data.time": Change('"y"', (*TIMES, "data.time=x")),
    **{key: Change(value, refused=UNPROTECTED) for key, value in OF_USERS.items()},
    "data.source": Change('"wine"', ("data.source=breast_cancer",)),
    "split.how": Change('"iid"'),
    "split.alpha": Change("0.1"),
    "split.clients": Change("5"),
    "split.least": Change("8"),
    "users.count": Change("9", USERS),
    "users.how": Change('"uniform"', USERS),
    "users.alpha": Change("2.0", USERS),
    "users.silos": Change('"uniform"', USERS),
    "users.silo_alpha": Change("0.5", USERS),
    "users.labels": Change("3", USERS),
    "users.least": Change("2", USERS),
    "users.columns": Change(
        '["y", "second"]',
        (
            *TABLE,
            "split.how=users",
            "users.how=column",
            'users.columns=["x", "second"]',
            "users.silos=uniform",
        ),
    ),
    "data.options": Change("{shift = 3.0}", (*OWN_ROWS, "split.how=iid")),
    "model.kind": Change('"logistic"'),
    "model.integers": Change("true", WHOLE, refused="model.integers says so"),
    "model.options": Change("{width = 5}", (f"model.kind={OWN}whole", *OWN_ROWS, "split.how=iid")),
    "model.weights": Change(f'"{OWN}whole_weights"', WHOLE),
    "model.partial_weights": Change(
        "false",
        (*WHOLE, f"model.weights={OWN}first_layer", "model.partial_weights=true"),
        refused="missing: 2.weight",
    ),
    "model.hidden": Change("[6]"),
    "model.outputs": Change("12"),
    "model.loss": Change('"binary"', ("data.source=breast_cancer",)),
    "model.targets": Change('"numbers"', (f"model.loss={OWN}loss", *OWN_ROWS, "split.how=iid")),
    "clock.kind": Change('"wall"', (*PULLS, "arrivals.rate=500")),
    "clock.compute": Change("0.2"),
    "clock.service": Change("0.2"),
    "arrivals.kind": Change('"constant"', PULLS),
    "arrivals.rate": Change("3.0", PULLS),
    "arrivals.file": Change(COMMON["arrivals.file"].to, (*PULLS, *COMMON["arrivals.file"].given)),
    **dict.fromkeys(
        ("resources.host_cpus", "resources.host_gpus", "resources.server_cpus"), PLACED
    ),
    "resources.hosts": Change("2", watch=("plan",)),
    "resources.threads": Change("2", watch=("objectives",)),
    "budget.seconds": Change("0.5", ("clock.compute=0.2",)),
    "record.snapshots": Change("2", watch=("snapshots",)),
    "record.fsync": Change("true", watch=("fsyncs",)),
}
LATER = Change("[[3, 0.5]]")
GROUPS = Change('{"*.weight" = {lr = 3.0, smoothing = 2.0}}')
METHOD: dict[str, dict[str, Change]] = {
    "Batched": {"coins": Change('"system"', ("method.batches=poisson",)), "server_lr_at": LATER},
    "FrozenConfig": {"server": Change('"discriminant"', ("model.head=linear",))},
    "DpzvConfig": {
        "lr_at": LATER,
        "groups": GROUPS,
        "clip_over": Change('"scalar"', SOUND),
        "gather": Change("7", SOUND),
        "average": Change("0.5", SOUND, watch=("model_digest",)),
    },
    "SplitSgdConfig": {"lr_at": LATER},
    "ZooVflConfig": {"lr_at": LATER, "groups": GROUPS},
    "Directed": {"groups": GROUPS},
    "CzofoConfig": {"lr_at": LATER, "upload_bits": Change("4"), "answer_bits": Change("4")},
    "VaflConfig": {
        "lr_at": LATER,
        "synchrony": Change('"synchronous"'),
        "wait_for": Change("3", ("method.synchrony=t-synchronous", "method.wait_for=2")),
        "lr_decay": Change("3"),
        "max_delay": Change("2", SIGMA),
        "query_first": Change("true"),
        "also_send": Change("5", ("privacy.mode=none",)),
        "layer_noise": Change("[0.1]"),
        "layer_law": Change('"gaussian"', ("method.layer_noise=[0.1]",)),
    },
    "DecomflConfig": {
        "lr_at": LATER,
        "perturbations_at": Change("[[3, 5]]"),
        "replicas": Change('"per_client"', watch=("group",)),
        "revert": Change('"add_back"', ("method.replicas=per_client",)),
        "server_model": Change(
            "false",
            ("method.server_model=true", "method.pull_after=2"),
            refused="method.server_model: wanted true",
        ),
        "pull_after": Change(
            "1",
            (
                "method.server_model=true",
                "method.perturbations=40",
                "model.hidden=[1]",
                "budget.updates=12",
            ),
        ),
        "dampening": Change(given=("method.momentum=0.5",)),
        "beta2": Change("0.9", ("method.optimizer=adam",)),
        "v0": Change("0.5", ("method.optimizer=adam",)),
        "epoch": Change("3", ("method.optimizer=svrg", "method.epoch=2")),
        "asynchronous": Change("true", ONE_STEP),
    },
    "Sampled": {"weights": Change(given=("method.cohort=4",))},
    "FeedsignConfig": {"lr_at": LATER},
    "MezoConfig": {"lr_at": LATER},
    "FedkseedConfig": {"lr_at": LATER},
    "FzooConfig": {"lr_at": Change("[[3, 1e-3]]"), "asynchronous": Change("true", ONE_STEP)},
    "WeightsConfig": {"dampening": Change(given=("method.momentum=0.5",))},
    "UldpZoConfig": {"asynchronous": Change("true", ("method.weights=uniform",))},
    "SumsOverUsers": {"count_cap": Change("1"), "key_bits": Change("2048", PRIVATE_WEIGHTS)},
    "Absences": {
        "least_silos": Change("3", ("method.availability=0.3",)),
        "dropout": Change("0.5", MASKED),
        "late_uploads": Change("1.0", (*MASKED, "method.dropout=0.5")),
    },
}
"""By the class that declares a setting: a method whose configuration extends another's needs rows
for its own alone.
"""
STILL_CLIENTS = (
    "privacy.mode=none",
    "model.bottom=linear",
    "method.lr=1e-9",
    "method.server_lr=0.01",
)
"""Clients that do not move, and whose embeddings, averaged over both ends of a direction, do not
depend on it.
"""
STILL_HEAD = ("method.server_lr=1e-9",)
HEADS = ("method.server=zo", "method.server=zo_one_sided")
JOINT = (*SOUND, "method.server=joint", "method.average=0.9")
PARTS = [
    *[
        (name, f"method.{key}", Change(to, (*STILL_CLIENTS, head, "method.smoothing=0.5"), (HEAD,)))
        for name, head in (("dpzv", HEADS[0]), ("zoo_vfl", HEADS[0]), ("zoo_vfl", HEADS[1]))
        for key, to in (("smoothing", "1.0"), ("direction", '"rademacher"'))
    ],
    *[
        (
            name,
            "method.direction",
            Change('"rademacher"', (*STILL_HEAD, "method.lr=0.5"), (CLIENTS,)),
        )
        for name in ("dpzv", "zoo_vfl")
    ],
    *[("dpzv", "method.average", Change("0.5", JOINT, (part,))) for part in (HEAD, CLIENTS)],
]
"""Settings that head and clients both use: each part alone, since the other would hide that it is
cut off.
"""
IN_BOTH = {
    "resources.restarts": "matters when an actor dies: tests/integration/ray/test_losses.py",
    "data.confirmed": "what the verdict says: tests/unit/privacy/test_premise.py",
    "privacy.trust": "what the verdict says: tests/integration/local/test_two_tables_models.py",
    "evaluate.metrics": "moves no bit: tests/integration/local/test_losses_and_metrics.py",
    "evaluate.lower": "what a search chooses: tests/integration/local/test_losses_and_metrics.py",
}
EXCEPTIONS = {
    **{
        (kind, key): reason
        for kind in ("vertical", "horizontal")
        for key, reason in IN_BOTH.items()
    },
    (
        "horizontal",
        "resources.timeout",
    ): "waits for actors alone: tests/integration/ray/test_losses.py",
    ("vertical", "split.names"): "what people read: tests/integration/local/test_door.py",
    ("horizontal", "data.steps"): "of series, which only vertical models take; the vertical test",
    ("horizontal", "data.tokens"): "of texts, which only vertical models take; the vertical test",
    (
        "horizontal",
        "data.vocabulary",
    ): "of texts, which only vertical models take; the vertical test",
}
"""Settings that no run in this process can show, and where they are shown instead."""


def sections() -> list[object]:
    found = []
    for kind, table, method in (
        ("vertical", VERTICAL, "dpzv"),
        ("horizontal", HORIZONTAL, "decomfl"),
    ):
        for key, annotation in fields_of(kind):
            if (kind, key) not in EXCEPTIONS:
                change = split_by_columns(kind, table.get(key, Change()))
                found.append(pytest.param(method, key, change, annotation, id=f"{kind}-{key}"))
    return found


def split_by_columns(kind: str, change: Change) -> Change:
    """Give each of two parties columns of a table, where learning is vertical."""
    if kind == "vertical" and {TABLE[0], GENERATED[0]} & set(change.given):
        return dataclasses.replace(
            change, given=("split.how=columns", "split.clients=2", *change.given)
        )
    return change


def change_of(method: str, key: str) -> Change:
    """Return how a method's setting is changed: by the nearest row of the classes that its
    configuration extends.
    """
    setting = key.removeprefix("method.")
    rows = (METHOD.get(base.__name__, {}) for base in METHODS[method].config.__mro__)
    return next((row[setting] for row in rows if setting in row), Change())


def methods() -> list[object]:
    return [
        pytest.param(name, key, change_of(name, key), annotation, id=f"{name}-{key}")
        for name in METHODS
        for key, annotation in fields_of_method(name)
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Tables, traces and images, in two forms each."""
    root = tmp_path_factory.mktemp("files")
    for number, name in enumerate("ab"):
        (root / name).mkdir()
        lines = [f"{i % 7},{i * (number + 2) % 11},{i % 2},{i // 2 % 2}" for i in range(120)]
        (root / f"{name}.csv").write_text("\n".join(["x,y,label,second", *lines]))
        (root / "gaps.csv").write_text("\n".join(["x,y,label,second", *lines, ",1.5,0,1"]))
        headed = ["families,,,", "x,y,label,second", *lines]
        (root / "headed.csv").write_text("\n".join(headed))
        epochs = [f"{i % 4},{(i + 1) * 0.3 * (number + 1)}" for i in range(60)]
        (root / f"{name}-trace.csv").write_text("\n".join(["client,time", *epochs]))
        write_mnist(root / name)
    labels = root / "b" / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:8] + labels.read_bytes()[8:][::-1])
    return root


@pytest.mark.parametrize(("method", "key", "change", "annotation"), [*sections(), *methods()])
def test_a_changed_setting_changes_the_run(files, method, key, change, annotation):
    given = tuple(item.replace("{files}", str(files)) for item in change.given)
    value = usual(method, key, given)
    to = change.to or other(annotation, value)
    assert to, (
        f"{key}: nobody can guess another value than {value!r}; add it to a table of this file"
    )
    changed = Change(to.replace("{files}", str(files)), given, change.watch, change.refused)
    assert differs(method, key, changed), (
        f"{key}: {changed.to} in place of {value!r} changes nothing in a run of {method}: it does "
        "not reach what it sets, or it needs company to matter; mend it, or add the company to a "
        "table of this file"
    )


@pytest.mark.parametrize(("method", "key", "change"), PARTS)
def test_a_setting_of_head_and_clients_reaches_each_of_them(method, key, change):
    assert differs(method, key, change), f"{key}: does not reach {change.watch[0]} of {method}"


@pytest.mark.parametrize(
    ("method", "key", "change"), [part for part in PARTS if set(part[2].given) & set(HEADS)]
)
def test_a_head_that_uses_no_such_setting_is_moved_by_none(method, key, change):
    """The control: what clients do with the setting does not reach the head."""
    of_gradients = dataclasses.replace(change, given=(*change.given, "method.server=sgd"))
    assert not differs(method, key, of_gradients)


def test_no_exception_or_entry_is_left_of_a_setting_that_is_gone():
    for kind, table in (("vertical", VERTICAL), ("horizontal", HORIZONTAL)):
        known = {key for key, _ in fields_of(kind)}
        assert set(table) <= known
        assert {key for of, key in EXCEPTIONS if of == kind} <= known
    bases = {base for name in METHODS for base in METHODS[name].config.__mro__}
    declared = {base.__name__: set(vars(base).get("__annotations__", {})) for base in bases}
    for base, rows in METHOD.items():
        assert set(rows) <= declared[base]
    assert all(reason for reason in EXCEPTIONS.values())


@pytest.mark.parametrize("method", ["decomfl", "fedavg"])
def test_dampening_is_a_factor_of_the_step_size(method):
    """m <- βm + (1-β)g with β = 1/2 makes the steps of m <- βm + g with half the step size, to the
    last bit.
    """
    heavy = ("method.momentum=0.5", "method.local_steps=3")
    damped = model(method, *heavy, "method.dampening=true", "method.lr=0.5")
    assert np.array_equal(damped, model(method, *heavy, "method.dampening=false", "method.lr=0.25"))
    assert (
        np.abs(damped - model(method, *heavy, "method.dampening=false", "method.lr=0.5")).max()
        > 1e-3
    )


def test_decomfl_is_damped_and_fedavg_is_not_where_nothing_is_said():
    """With damped momentum 1/2 and twice the step size, the first update is that without
    momentum.
    """
    once = ("budget.updates=1", "evaluate.every=1", *ONE_STEP)
    start = model("decomfl", *once, "method.lr=1e-9")
    plain = model("decomfl", *once, "method.lr=0.25") - start
    damped = model("decomfl", *once, "method.lr=0.5", "method.momentum=0.5") - start
    assert np.abs(plain).max() > 1e-3
    assert damped == pytest.approx(plain, abs=1e-5)
    assert not METHODS["fedavg"].config().dampening


def model(method, *overrides):
    """Return the model at the end of a small run, float32 [d]."""
    return run_small(method, overrides).models["shared"]


def test_mezo_takes_central_differences():
    """MeZO is DeComFL with one client that has all rows, and central estimates."""
    alone = (
        *ONE_STEP,
        "split.clients=1",
        "method.cohort=1",
        "method.lr=0.05",
        "method.smoothing=0.1",
    )
    agent = ("method.lr=0.05", "method.smoothing=0.1")
    central, forward = (
        observed("decomfl", (*alone, f"method.estimate={how}")) for how in ("central", "forward")
    )
    assert (
        observed("mezo", agent)["model_digest"]
        == central["model_digest"]
        != forward["model_digest"]
    )
