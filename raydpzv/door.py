"""Scenarios from objects: your own model, data and method, from a script or a notebook."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import parse
from raydpzv.data.own_arrays import columns_of
from raydpzv.data.own_data import OwnData, labels, own_data, side_by_side
from raydpzv.data.own_rows import by_ids, in_one_order
from raydpzv.data.table import View
from raydpzv.errors import DataError, SpecError, suggest
from raydpzv.foreign import handle, is_foreign, numbered, shown_name
from raydpzv.registry import LOSSES, METHODS
from raydpzv.settings.values import plain_value

_TABLES = {
    "updates": "budget.updates",
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "trust": "privacy.trust",
    "classes": "data.classes",
    "scale": "data.scale",
    "missing": "data.missing",
    "embedding": "model.embedding",
    "integers": "model.integers",
    "every": "evaluate.every",
    "weights": "model.weights",
    "partial_weights": "model.partial_weights",
    "targets": "model.targets",
    "lora": "model.lora",
    "rate": "arrivals.rate",
    "clock": "clock.kind",
    "seed": "seed",
    "title": "title",
}
"""Short names of settings; other keywords are tables, dotted settings with "__", or settings of the
method.
"""


_ELSEWHERE = {
    "learning_rate": "lr",
    "step_size": "lr",
    "batch_size": "batch",
    "epochs": "updates",
    "rounds": "updates",
    "steps": "updates",
    "random_state": "seed",
}
"""Names of settings in other libraries."""


def horizontal(
    model: Any,
    data: Any,
    *,
    clients: int | Sequence[Hashable] | np.ndarray = 10,
    test: Any = None,
    loss: Any = None,
    metrics: Any = None,
    method: Any = "decomfl",
    **settings: Any,
) -> AnyScenario:
    """Return a scenario of horizontal learning from your own model and data.

    model: an nn.Module class, a function that returns a module, a module (copied, and its weights
    are the first ones) or a name of the program's. data: (x [D, ...], y [D]) of arrays, tensors or
    a frame, or a map-style data set of
    pairs. clients: how many share the rows at random, or each row's owner. test: (x, y); left out:
    a part of the rows.
    loss: "cross_entropy", "binary", "multi_label", "squared_error", or a function of scores and
    labels with one value a
    record. metrics: a function of scores and labels of held-out rows that returns floats by name.
    method: a name, or a method's descriptor. settings: `updates=600`, `privacy={"mode": "user"}`,
    or a setting of the method such as `lr=0.02`; `weights` is a file or a state_dict. Raises
    SpecError and DataError.
    """
    numbers = _numbers(loss, settings)
    listed = isinstance(clients, list | tuple)
    clients = clients if listed or np.ndim(clients) else plain_value(clients)  # type: ignore[arg-type]
    counted = isinstance(clients, int)
    if clients is None:
        raise DataError("clients: wanted how many there are, or the owner of each row, got None")
    found = own_data(data, numbers=numbers, owners=None if counted else clients)
    many = clients if found.owners is None else int(found.owners.max()) + 1
    found = _with_test(found, own_data(test, numbers=numbers) if test is not None else None)
    tree: dict[str, Any] = {
        "data": {"source": numbered(found, "data")},
        "split": {"how": "iid" if counted else "owners", "clients": many},
        "model": {"kind": _named(model)},
    }
    return _scenario(_judged(tree, loss, metrics), method, "horizontal", settings)


def vertical(
    bottoms: Any,
    views: Sequence[Any] | Mapping[str, Any],
    labels: Any,
    *,
    head: Any = "mlp",
    ids: Any = None,
    test: Any = None,
    loss: Any = None,
    metrics: Any = None,
    method: Any = "dpzv",
    **settings: Any,
) -> AnyScenario:
    """Return a scenario of vertical learning from your own models and data.

    bottoms: each party's model, by name or in order, or one that all use: from a record's part to
    [B, E]. views: each party's array [D, ...], by name or in order; records are in the same order
    in each, or `ids` joins them. labels: [D], or numbers [D, T]. head: from all embeddings [B, M·E]
    to scores [B, classes or T]. ids: of each view's records, in the form of `views`, and of the
    labels, last or as "labels". test: (views, labels) or (views, labels, ids); left
    out: a part of the rows. The rest as in `horizontal`. Raises SpecError and DataError.
    """
    if not isinstance(views, Mapping | list | tuple):
        raise SpecError(
            f"views: wanted a list or a table of the parties' arrays, got {type(views).__name__}"
        )
    many, names = len(views), list(views) if isinstance(views, Mapping) else []
    if isinstance(bottoms, Mapping):
        if bottoms.keys() != set(names):
            wanted = ", ".join(map(str, names)) or "none: give a list"
            raise SpecError(
                f"bottoms: wanted the names of views ({wanted}), got {', '.join(map(str, bottoms))}"
            )
        bottoms = [bottoms[name] for name in names]
    listed = list(bottoms) if isinstance(bottoms, list | tuple) else [bottoms] * many
    if len(listed) != many:
        raise SpecError(f"bottoms: wanted one for each of {many} views, got {len(listed)}")
    if ids is not None:
        views, labels = by_ids(views, labels, ids)
    if isinstance(test, list | tuple) and len(test) == 3:
        test = by_ids(*test)
    numbers = _numbers(loss, settings)
    found = _of_views(views, labels, numbers)
    if test is not None:
        found = _with_test(found, _of_test(test, views, found.views, numbers))
    joined = {} if ids is None else {"confirmed": ["ids"]}
    tree: dict[str, Any] = {
        "data": {"source": numbered(found, "data")} | joined,
        "split": {"how": "views", "clients": many} | ({"names": names} if names else {}),
        "model": {"bottoms": [_named(model) for model in listed], "head": _named(head)},
    }
    return _scenario(_judged(tree, loss, metrics), method, "vertical", settings)


def _of_views(views: Sequence[Any] | Mapping[str, Any], y: Any, numbers: bool | None) -> OwnData:
    """Return the records of all parties, those of frames in the order of the first one's index."""
    named = (
        dict(views)
        if isinstance(views, Mapping)
        else {str(m): view for m, view in enumerate(views)}
    )
    titled = {f"the view of {name}": view for name, view in named.items()}
    *ordered, y = in_one_order(titled | {"y": y}).values()
    flat, found = side_by_side(dict(zip(named, ordered, strict=True)))
    listed = labels(y, "y", numbers=numbers)
    if len(listed) != len(flat):
        raise DataError(f"data: wanted one label a record, {len(flat)}, got {len(listed)}")
    features = [name for view in ordered for name in columns_of(view)]
    known = len(features) == flat.shape[1]  # not where one view is an array
    return OwnData(flat, listed, views=found, features=tuple(features) if known else ())


def _of_test(test: Any, views: Any, wanted: Sequence[View], numbers: bool | None) -> OwnData:
    """Return the test rows of the parties in the order of the training rows' views. Raises
    SpecError.
    """
    if not isinstance(test, list | tuple) or len(test) != 2:
        raise SpecError(f"test: wanted a pair of views and labels, got {type(test).__name__}")
    given, y = test
    if isinstance(views, Mapping):
        if not isinstance(given, Mapping) or given.keys() != views.keys():
            raise SpecError(f"test: wanted a view of each of {', '.join(map(str, views))}, by name")
        given = {name: given[name] for name in views}
    elif not isinstance(given, list | tuple) or len(given) != len(views):
        raise SpecError(f"test: wanted a list of {len(views)} views, as for training")
    found = _of_views(given, y, numbers)
    for view, other in zip(wanted, found.views, strict=True):
        if view.shape != other.shape:
            raise SpecError(
                f"test: the view of {view.name} has rows of shape {list(other.shape)}: wanted "
                f"{list(view.shape)}, as in training"
            )
    return found


def _with_test(data: OwnData, test: OwnData | None) -> OwnData:
    return data if test is None else replace(data, x_test=test.x, y_test=test.y)


def _numbers(loss: Any, settings: Mapping[str, Any]) -> bool | None:
    """Return whether labels are numbers rather than classes; None: as their type says."""
    if loss is None or (isinstance(loss, str) and not is_foreign(loss)):
        return loss is not None and LOSSES[loss].labels != "classes"
    given = [
        settings.get("targets"),
        settings.get("model__targets"),
        dict(settings.get("model", {})).get("targets"),
    ]
    targets = next(filter(None, given), None)
    return None if targets is None else bool(targets == "numbers")


def _judged(tree: dict[str, Any], loss: Any, metrics: Any) -> dict[str, Any]:
    """Return a scenario's tree with the names of loss and metrics."""
    if loss is not None:
        tree["model"]["loss"] = _named(loss)
    return tree if metrics is None else tree | {"evaluate": {"metrics": _named(metrics)}}


def _named(model: Any) -> str:
    return model if isinstance(model, str) else handle(model)


def _named_weights(given: Any) -> Any:
    """Return weights as a scenario names them: files and handles of state_dicts, by party where
    there are several.
    """
    if isinstance(given, list | tuple):
        return [_named_weights(each) for each in given]
    if isinstance(given, Mapping) and any(hasattr(value, "detach") for value in given.values()):
        return handle({name: _copied(value) for name, value in given.items()}, "weights")
    if isinstance(given, Mapping):
        return {str(party): _named_weights(each) for party, each in given.items()}
    return str(given) if isinstance(given, PathLike) else given


def _copied(value: Any) -> Any:
    """Copy a tensor, which training elsewhere may move."""
    return value.detach().cpu().clone() if hasattr(value, "detach") else value


def _scenario(
    tree: dict[str, Any], method: Any, kind: str, settings: Mapping[str, Any]
) -> AnyScenario:
    name = method if isinstance(method, str) else handle(method)
    descriptor = METHODS[name]
    if descriptor.kind != kind:
        known = [m for m in METHODS if METHODS[m].kind == kind]
        raise SpecError(
            f'method: "{shown_name(name)}" is not {kind}; choose {", ".join(known)}, or a '
            "descriptor of your own"
        )
    tree |= {"method": {"name": name}}
    tree["data"].setdefault("scale", "none")
    own = descriptor.config.__dataclass_fields__
    if "cohort" in own and "cohort" not in settings:
        tree["method"]["cohort"] = max(1, min(own["cohort"].default, tree["split"]["clients"]))
    for key, value in settings.items():
        value = _named_weights(value) if key == "weights" else value
        _set(tree, setting_path(key, own), value, [*own, *_TABLES])
    return parse(tree, "the call")


def setting_path(key: str, own: Collection[str]) -> str:
    """Return the dotted name of a keyword's setting; own: the settings of the method."""
    return (_TABLES.get(key) or (f"method.{key}" if key in own else key)).replace("__", ".")


def _set(tree: dict[str, Any], path: str, value: Any, known: Sequence[str]) -> None:
    *tables, last = path.split(".")
    table = tree
    for name in tables:
        table = table.setdefault(name, {})
    if isinstance(value, Mapping):
        table[last] = {**table.get(last, {}), **value}
        return
    if not tables and last not in ("seed", "name", "title"):
        near = suggest(_ELSEWHERE.get(last, last), known)
        raise SpecError(
            f"{last}: unknown setting. {near}Give a setting of the method, a table such as "
            'budget={"updates": 100}, or budget__updates=100'
        )
    table[last] = value
