"""What a scenario can name, in one place: methods, data sources, splits, models, heads, losses,
runners, logs.

An entry is a name and where to find it, "module:attribute". Nothing is imported before it is asked
for, so that a list of names costs nothing and a layer can offer what lies above it (the Ray runner)
without importing upward. A new method is one file and one line here.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raydpzv.errors import SpecError, suggest
from raydpzv.foreign import is_foreign
from raydpzv.package_check import import_module


def _entries(module: str, names: str) -> dict[str, str]:
    """Return the entries of a module that are called as there."""
    return {name: f"{module}:{name}" for name in names.split()}


class Registry(Mapping[str, Any]):
    """Entries of one kind by name, imported when they are asked for.

    kind: what an entry is, for messages ("method"); setting: the key of a scenario that names one.
    check: a function of name and entry, "module:function", that returns the entry or refuses it;
    asked once for each. own: users may name an object of their own, "module:attribute"; a function
    of that name, which returns an entry.
    """

    def __init__(
        self, kind: str, setting: str, entries: Mapping[str, str], check: str = "", own: str = ""
    ) -> None:
        self.kind, self.setting = kind, setting
        self._entries = dict(entries)
        self._check, self._own, self._checked = check, own, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        """Return the entry; SpecError names the nearest known one if there is none of that name, or
        what is wrong.
        """
        if name not in self:
            raise SpecError(
                f'{self.setting}: unknown {self.kind} "{name}". {suggest(name, self._entries)}'
                f"Choose {', '.join(self._entries)}"
            )
        if name not in self._entries:
            return _imported(self._own)(
                name
            )  # looked up anew: a notebook may have loaded its module again
        if name not in self._checked:
            found = _imported(self._entries[name])
            self._checked[name] = _imported(self._check)(name, found) if self._check else found
        return self._checked[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or (bool(self._own) and is_foreign(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: str, target: str) -> None:
        """Add an entry, "module:attribute". Raises SpecError if the name is taken or the target is
        no such pair.
        """
        if name in self._entries:
            raise SpecError(
                f'{self.kind} "{name}" is there already ({self._entries[name]}); choose another '
                "name"
            )
        module, colon, attribute = target.partition(":")
        if not (module and colon and attribute.isidentifier()):
            raise SpecError(f'{self.kind} "{name}": wanted "module:attribute", got {target!r}')
        self._entries[name] = target

    def remove(self, name: str) -> None:
        """Take an entry out again."""
        del self._entries[name]
        self._checked.pop(name, None)

    def module_of(self, name: str) -> str:
        """Return the module that an entry is in, without importing it."""
        return self._entries.get(name, name).partition(":")[0]

    def summary(self, name: str) -> str:
        """Return the first paragraph of an entry's docstring without importing it; of a method, of its
        configuration's.
        """
        module, _, attribute = self._entries[name].partition(":")
        return _first_paragraph(module, attribute)


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def _first_paragraph(module: str, attribute: str) -> str:
    """Read a docstring from the source: importing a method's module would import torch for one line
    of text.
    """
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return ""
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    documented = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    for node in tree.body:
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and attribute in _targets(node)
            and isinstance(node.value, ast.Call)
        ):
            config = next((k.value for k in node.value.keywords if k.arg == "config"), None)
            attribute = config.id if isinstance(config, ast.Name) else attribute
    text = ast.get_docstring(documented[attribute]) if attribute in documented else None
    return " ".join((text or ast.get_docstring(tree) or "").partition("\n\n")[0].split())


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]


_VERTICAL, _HORIZONTAL = "raydpzv.methods.vertical", "raydpzv.methods.horizontal"

METHODS = Registry(
    "method",
    "method.name",
    {
        "dpzv": f"{_VERTICAL}.dpzv:DPZV",
        "frozen": f"{_VERTICAL}.frozen:FROZEN",
        "sgd": f"{_VERTICAL}.split_sgd:SPLIT_SGD",
        "vafl": f"{_VERTICAL}.vafl:VAFL",
        "zoo_vfl": f"{_VERTICAL}.zoo_vfl:ZOO_VFL",
        "czofo": f"{_VERTICAL}.czofo:CZOFO",
        "decomfl": f"{_HORIZONTAL}.decomfl:DECOMFL",
        "mezo": f"{_HORIZONTAL}.mezo:MEZO",
        "feedsign": f"{_HORIZONTAL}.feedsign:FEEDSIGN",
        "fzoo": f"{_HORIZONTAL}.fzoo:FZOO",
        "fedkseed": f"{_HORIZONTAL}.fedkseed:FEDKSEED",
        "uldp_zo": f"{_HORIZONTAL}.uldp_zo:ULDP_ZO",
        "fedavg": f"{_HORIZONTAL}.fedavg:FEDAVG",
        "fedcom": f"{_HORIZONTAL}.fedavg:FEDCOM",
        "topk": f"{_HORIZONTAL}.fedavg:TOPK",
        "fedzo": f"{_HORIZONTAL}.fedzo:FEDZO",
        "uldp_naive": f"{_HORIZONTAL}.uldp_naive:ULDP_NAIVE",
        "uldp_group": f"{_HORIZONTAL}.uldp_group:ULDP_GROUP",
        "uldp_sgd": f"{_HORIZONTAL}.uldp_sgd:ULDP_SGD",
        "uldp_avg": f"{_HORIZONTAL}.uldp_avg:ULDP_AVG",
    },
    check="raydpzv.methods.descriptor:checked",
    own="raydpzv.methods.descriptor:own_method",
)
"""Descriptors (`raydpzv.methods.descriptor`) of all methods."""

_SOURCES = """
digits breast_cancer wine mnist mnist5k fashion_mnist cifar10 csv parquet multiview
synthetic synthetic_clients mimic3 synthetic_series amazon_polarity tokens synthetic_reviews
survival synthetic_survival creditcard heart_disease tcga_brca
"""

DATA_SOURCES = Registry(
    "data set",
    "data.source",
    {name: f"raydpzv.data.sources:{name.upper()}" for name in _SOURCES.split()},
    own="raydpzv.data.own_data:source",
)
"""`raydpzv.data.sources.Source` of every data set."""

VERTICAL_SPLITS = Registry(
    "split",
    "split.how",
    {
        how: f"raydpzv.data.vertical:by_{how}"
        for how in ("columns", "rows", "patches", "views", "variables", "tokens")
    },
)
"""(shape of a record, clients) to each client's `Part`."""

HORIZONTAL_SPLITS = Registry(
    "split",
    "split.how",
    {
        "iid": "raydpzv.data.horizontal:iid",
        "dirichlet": "raydpzv.data.horizontal:dirichlet",
        "owners": "raydpzv.data.horizontal:by_owner",
        "users": "raydpzv.data.users:share_users",
    },
)
"""The [split] section to each row's owner; of users, the [users] section to all parts."""

BOTTOMS = Registry(
    "bottom model",
    "model.bottom",
    {
        **_entries("raydpzv.models.bottoms", "mlp cnn linear lstm"),
        "resnet18": "raydpzv.models.resnet:resnet18",
        "transformer": "raydpzv.models.transformer:transformer",
    },
    own="raydpzv.models.own_model:model",
)
"""Client models: (shape of a record, hidden widths, embedding width[, vocabulary]) to a torch
module.
"""

HEADS = Registry(
    "head",
    "model.head",
    {
        "mlp": "raydpzv.models.heads:mlp",
        "linear": "raydpzv.models.heads:one_layer",
        "sum": "raydpzv.models.heads:summed",
    },
    own="raydpzv.models.own_model:model",
)
"""Server models: (clients, embedding width, hidden widths, classes) to a torch module."""

WHOLE_MODELS = Registry(
    "model",
    "model.kind",
    {
        "mlp": "raydpzv.models.bottoms:mlp",
        **_entries("raydpzv.models.whole", "logistic cnn_mnist cnn_fashion cnn_users mlp_normed"),
    },
    own="raydpzv.models.own_model:model",
)
"""Models of horizontal learning: (shape of a record, hidden widths, outputs) to a torch module."""

LOSSES = Registry(
    "loss",
    "model.loss",
    _entries("raydpzv.models.losses", "cross_entropy binary multi_label squared_error cox"),
    own="raydpzv.models.losses:own_loss",
)
"""`raydpzv.models.losses.Loss` of labels of one kind; each data set has a usual one
(`raydpzv.data.sources.Source`).
"""

RUNNERS = Registry(
    "runner",
    "--runner",
    {"local": "raydpzv.experiment.runner:run_local", "ray": "actors.runner:run_on_ray"},
)
"""(prepared scenario, `RunOptions`) to a finished `Run`: in this process, or on Ray actors."""

RUN_POOLS = Registry(
    "runner",
    "--runner",
    {"local": "raydpzv.compare.run_comparison:on_this_machine", "ray": "actors.run_pool:on_ray"},
)
"""(`PoolOptions`, scenarios) to a function that makes many runs, with the arguments of
`one_by_one`.
"""

TUNERS = Registry("tuner", "--runner", {"ray": "actors.run_trials:on_tune"})
"""(plan, `TuneOptions`) to a block in which a function runs the trials of a search: (folder, watch,
stop) to an `Outcome`.
"""

LOGS = Registry(
    "log",
    "--log",
    {
        "csv": "raydpzv.records.exporters:CsvLog",
        "tensorboard": "raydpzv.records.exporters:TensorBoardLog",
        "json": "raydpzv.records.exporters:JsonLog",
        "mlflow": "raydpzv.records.trackers:MlflowLog",
        "wandb": "raydpzv.records.trackers:WandbLog",
        "trackio": "raydpzv.records.trackers:TrackioLog",
    },
)
"""Classes of `raydpzv.records.callbacks.Callback` that write to the run's folder, or to a
tracker.
"""

PREPARERS = Registry(
    "kind of learning",
    "method.name",
    {kind: f"raydpzv.experiment.{kind}:prepare_{kind}" for kind in ("vertical", "horizontal")},
)
"""A scenario to what a run needs, by the kind of its method."""

LOCAL_PARTIES = Registry(
    "kind of learning",
    "method.name",
    {
        kind: f"raydpzv.experiment.run_{kind}:{kind.title()}Parties"
        for kind in ("vertical", "horizontal")
    },
)
"""`raydpzv.experiment.local_session.PartiesMaker` of the parties of a run in this process."""

RESTARTERS = Registry(
    "kind of learning",
    "method.name",
    {kind: f"raydpzv.experiment.resuming:restarted_{kind}" for kind in ("vertical", "horizontal")},
)
"""(prepared, `RunWriter`) to what resumes from the last checkpoint of the folder that a run writes;
reads alone.
"""

SCENARIO_FOLDERS = [Path(__file__).parent.parent / "scenarios"]
"""Folders whose `*.toml` files are scenarios, and those in `comparisons/` comparisons, by name."""
