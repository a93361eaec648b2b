"""Models before the first update, and the rules by which updates move them: needs no data.

A model also says of which type its rows are. Rows do not: one cell would decide what becomes of all
the others.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from raydpzv.config.scenario import HorizontalScenario, VerticalScenario
from raydpzv.data.table import Split
from raydpzv.data.vertical import Part, by_view, partition
from raydpzv.data.whole_rows import WholeRows
from raydpzv.engine.dense import DenseNetwork, dense_bottom, dense_whole
from raydpzv.errors import DataError, SpecError
from raydpzv.files import sha256
from raydpzv.foreign import is_foreign
from raydpzv.keys import Key, pool_seeds
from raydpzv.lazy_import import torch
from raydpzv.ledger.header import Header, Model
from raydpzv.methods.descriptor import UpdateRule
from raydpzv.methods.model_averaging import tail_begin
from raydpzv.methods.replica import PooledReplica, Replica
from raydpzv.models.flat import FlatModel
from raydpzv.models.initial_weights import with_weights, without_weights
from raydpzv.registry import BOTTOMS, DATA_SOURCES, WHOLE_MODELS
from raydpzv.settings.fields import with_folder
from raydpzv.settings.party_names import label
from raydpzv.settings.sections import LoraSection
from raydpzv.settings.sections_data import DataSection
from raydpzv.zo.spans import Shapes, check_groups, factors, groups_of, layout_of
from raydpzv.zo.update import Rule
from raydpzv.zo.vectors import Vector, as_array

if TYPE_CHECKING:  # defines torch modules, and so loads torch
    from raydpzv.models.own_model import OwnModel

_MOST_PARAMETERS = 10**11
_MOST_NUMBERS = 2**28
"""Of one record."""
_CHECKED = 8
"""Fewest records on which a user's own model is checked."""
BASE = "base_sha256"
WHOLE = "whole_models"
"""In environment.json: the user's models whose parameters are all that their modules hold."""
MODEL = "shared"
"""The name of a horizontal run's one model in the ledger, in the rows and in models.npz."""
RESUMED = "resumed"
"""Under which name a ledger keeps the snapshot that a run continues from."""
_SETTING = WholeRows("model.integers says so")
_LAYER = WholeRows("an embedding layer of the model reads them, or it takes no others")


def check_size(model: DenseNetwork | torch.nn.Module, what: str) -> None:
    """Refuse a model that no machine will hold."""
    size = (
        model.size
        if isinstance(model, DenseNetwork)
        else sum(p.numel() for p in model.parameters())
    )
    if size > _MOST_PARAMETERS:
        raise SpecError(
            f"model: {what} would have {size:,} parameters; the limit is {_MOST_PARAMETERS:,}"
        )


def parameter_names(model: DenseNetwork | torch.nn.Module) -> list[str]:
    """Return the names of a model's trained parameters."""
    if isinstance(model, DenseNetwork):
        return [name for name, _ in model.shapes]
    return [name for name, p in model.named_parameters() if p.requires_grad]


def check_patterns(method: Any, *models: DenseNetwork | torch.nn.Module) -> None:
    """Refuse groups of parameters of which a run's models have none. Raises SpecError."""
    names = dict.fromkeys(name for model in models for name in parameter_names(model))
    check_groups(groups_of(getattr(method, "groups", None)), list(names))


def checked_records(method: Any) -> int:
    """Return on how many records a user's own model is checked: more than a random batch has."""
    batch = getattr(method, "batch", None)
    return max(_CHECKED, 2 * batch) if isinstance(batch, int) else _CHECKED


def refuse_options(options: Mapping[str, Any] | None, setting: str, name: str) -> None:
    """Refuse options of a model that is not the user's own. Raises SpecError."""
    if options:
        raise SpecError(
            f'model.{setting}: "{name}" is no model of your own and takes none; leave them out'
        )


def adapted(
    module: torch.nn.Module, lora: LoraSection | None, name: str, title: str
) -> torch.nn.Module:
    """Return a module with the adapters of `model.lora`, if it is the user's own; name: of the
    model.
    """
    if lora is None or not is_foreign(name):
        return module
    from raydpzv.models.lora import LoraModel  # defines torch modules, and so loads torch

    return LoraModel(module, lora, title)


def base_sha256(
    lora: LoraSection | None, models: Iterable[str], make: Callable[[str], FlatModel]
) -> dict[str, Any]:
    """Return what environment.json says of the layers that adapters leave as they are: a digest by
    model.
    """
    if lora is None:
        return {}
    from raydpzv.models.own_model import constants_sha256  # loads torch

    return {BASE: {name: constants_sha256(make(name)) for name in models}}


def bottom_model(
    spec: VerticalScenario, client: int, shape: Sequence[int], device: str = "cpu"
) -> FlatModel:
    """Return a client's bottom model with its parameters before the first update; shape: of one
    record's features.
    """
    model = FlatModel(
        lambda: bottom_module(spec, client, shape), Key(spec.seed) / "client" / client, device
    )
    if spec.model.initial == "zero_last":
        model.zero_last()
    if spec.model.initial == "orthogonal_last":
        model.orthogonal_last()
    return model


def bottom_module(spec: VerticalScenario, client: int, shape: Sequence[int]) -> torch.nn.Module:
    """Return a client's bottom network; shape: of one record's features."""
    weights, title = (
        spec.model.weights_of(client, spec.party_names),
        f"the bottom model of {label(client, spec.party_names)}",
    )
    partial, files = spec.model.partial_weights, spec.sent_files
    module = with_weights(_bottom_module(spec, client, shape), weights, partial, title, files)
    return adapted(module, spec.model.lora, spec.model.bottom_of(client), title)


def _bottom_module(spec: VerticalScenario, client: int, shape: Sequence[int]) -> torch.nn.Module:
    from raydpzv.models.bottoms import bottom  # defines torch modules, and so loads torch

    model, data = spec.model, spec.data
    name = model.bottom_of(client)
    if is_foreign(name):
        own: OwnModel = BOTTOMS[name]
        offered = {
            "shape": tuple(shape),
            "embedding": model.embedding,
            "client": client,
        } | _vocabulary(data)
        return own(with_folder(model.options, model.folder, spec.sent_files), offered)
    vocabulary = data.vocabulary if DATA_SOURCES[data.source].tokens else None
    return bottom(name, tuple(shape), model.hidden, model.embedding, vocabulary)


def _vocabulary(data: DataSection) -> dict[str, int]:
    """Return what is offered to a user's own model of token ids beside their shape."""
    return {"vocabulary": data.vocabulary} if DATA_SOURCES[data.source].tokens else {}


def bottom_network(
    spec: VerticalScenario, client: int, shape: Sequence[int]
) -> DenseNetwork | None:
    """Return a client's bottom network if it is one of dense layers, else None; shape: of one
    record's features.
    """
    model = spec.model
    if DATA_SOURCES[spec.data.source].tokens or model.weights_of(client, spec.party_names):
        return None  # torch alone reads weights
    return dense_bottom(
        model.bottom_of(client), shape, model.hidden, model.embedding, model.initial
    )


@dataclass(frozen=True)
class FirstModel:
    """A user's model before the first update, as a run keeps it: parameters float32 [d], their
    names and shapes.

    whole: whether these are all that its module holds; else it has constants, or tied names.
    """

    flat: np.ndarray
    shapes: Shapes
    whole: bool = False

    @classmethod
    def recorded(
        cls, vectors: Mapping[str, np.ndarray], facts: Mapping[str, Any]
    ) -> dict[str, FirstModel]:
        """Return those of a recorded run by their names, {} where their file is missing. Raises
        DataError.
        """
        layouts = facts.get("layouts", {})
        if layouts and not vectors:
            warnings.warn(
                "initial.npz is missing: your models are built again, and must have the digests in "
                "the ledger's header",
                RuntimeWarning,
                stacklevel=2,
            )
            return {}
        whole = facts.get(WHOLE) or ()
        found = {
            name: cls(vectors[name], _read_shapes(layouts, name), name in whole) for name in vectors
        }
        if found.keys() != dict(layouts).keys() or any(
            m.flat.size != m.size for m in found.values()
        ):
            raise DataError(
                "environment.json, initial.npz: do not hold the same models; restore both from a "
                "copy, or run it again"
            )
        return found

    @property
    def size(self) -> int:
        """Number of parameters by their shapes."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def identity(self, rule: Rule) -> Model:
        """Return what a ledger's header says of it; of its tensors only where the rule depends on
        them.
        """
        own = factors(rule.groups, self.shapes) if rule.shaped else []
        tensors = [
            (*of, group.lr, group.smoothing) for of, group in zip(self.shapes, own, strict=False)
        ]
        return Model(self.flat.size, layout_of(self.shapes), sha256(self.flat), tuple(tensors))


def _read_shapes(layouts: Any, name: str) -> Shapes:
    """Return one model's names and shapes as environment.json has them, () where it does not."""
    try:
        return tuple((str(tensor), tuple(map(int, shape))) for tensor, shape in layouts[name])
    except (KeyError, TypeError, ValueError):
        return ()


def layouts(first: Mapping[str, FirstModel]) -> dict[str, Any]:
    """Return what environment.json says of a user's models."""
    if not first:
        return {}
    whole = [name for name, model in first.items() if model.whole]
    return {"layouts": {name: model.shapes for name, model in first.items()}, WHOLE: whole}


def _shape(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Return a record's shape; ValueError for more numbers than one can have."""
    shape = tuple(int(n) for n in sizes)
    if math.prod(shape) > _MOST_NUMBERS:
        raise ValueError(f"{shape}")
    return shape


@dataclass(frozen=True)
class BottomPlan:
    """The clients' models of a method with a ledger. shapes: of one record's features, client by
    client.

    first: models of a recorded run that only their user can make again, by name.
    """

    spec: VerticalScenario
    shapes: tuple[tuple[int, ...], ...]
    first: Mapping[str, FirstModel] = field(default_factory=dict)

    @classmethod
    def of(
        cls, spec: VerticalScenario, facts: Mapping[str, Any], vectors: Mapping[str, np.ndarray]
    ) -> BottomPlan:
        """Return the plan of a recorded run, from what its environment.json and initial.npz say.
        Raises DataError.
        """
        try:
            shapes = tuple(_shape(shape) for shape in facts["input_shapes"])
        except (KeyError, TypeError, ValueError):
            shapes = ()
        if len(shapes) != spec.split.clients:
            raise DataError(
                "environment.json: does not say what each client's model takes in (input_shapes); "
                "it is damaged"
            )
        return cls(spec, shapes, FirstModel.recorded(vectors, facts))

    def lost(self) -> bool:
        """Return whether the record lacks a model that only code of its user can make again."""
        model, names = self.spec.model, self.spec.party_names
        return any(
            f"client {m}" not in self.first
            and (is_foreign(model.bottom_of(m)) or is_foreign(model.weights_of(m, names)))
            for m in range(len(self.shapes))
        )

    def own_models(self) -> dict[str, FirstModel]:
        """Return the models that only their user can make again."""
        model, names = self.spec.model, self.spec.party_names
        own = [
            m
            for m in range(len(self.shapes))
            if is_foreign(model.bottom_of(m)) or model.weights_of(m, names)
        ]
        return {f"client {m}": _first(self.model(m)) for m in own}

    def facts(self) -> dict[str, Any]:
        """Return what `of` needs."""
        return {"input_shapes": [list(shape) for shape in self.shapes]}

    def model(self, client: int) -> FlatModel:
        """Return a client's network with its parameters before the first update."""
        return bottom_model(self.spec, client, self.shapes[client])

    def header(self) -> Header:
        """Return what identifies this run's ledger: one model per client."""
        models = {
            f"client {m}": self.first_model(m).identity(self._rule) for m in range(len(self.shapes))
        }
        return Header(models, self._rule.law, self._rule.momentum)

    def replica(self, client: int) -> Replica:
        """Return a client's model before the first update, ready to follow the client's part of the
        ledger.
        """
        first = self.first_model(client)
        return Replica(first.flat.copy(), self._rule.on(first.shapes), party=client)

    def first_model(self, client: int) -> FirstModel:
        """Return a client's model before the first update."""
        if (own := self.first.get(f"client {client}")) is not None:
            return own
        network = bottom_network(self.spec, client, self.shapes[client])
        if network is None or self.spec.model.engine != "compiled":
            return _first(self.model(client))
        return FirstModel(network.initial(Key(self.spec.seed) / "client" / client), network.shapes)

    def tail(self) -> int | None:
        """Return after which update of the ledger models go into the mean that is shown; None: the
        newest is shown.
        """
        rule = self.updates
        return tail_begin(rule.average, self.spec.budget.updates, rule.gathered)

    @property
    def updates(self) -> UpdateRule:
        """How releases move the models."""
        rule = self.spec.descriptor.rule
        assert rule is not None  # `of_releases` made this plan
        return rule(self.spec.method)

    @property
    def _rule(self) -> Rule:
        return self.updates.rule


def _first(model: FlatModel) -> FirstModel:
    whole = list(model.module.state_dict()) == [name for name, _ in model.shapes]
    return FirstModel(as_array(model.flat), model.shapes, whole)


@dataclass(frozen=True)
class ModelPlan:
    """shape: of one record's features; classes: that labels have, or how many numbers; first: see
    `BottomPlan`.
    """

    spec: HorizontalScenario
    shape: tuple[int, ...]
    classes: int
    first: Mapping[str, FirstModel] = field(default_factory=dict)

    @classmethod
    def of(
        cls, spec: HorizontalScenario, facts: Mapping[str, Any], vectors: Mapping[str, np.ndarray]
    ) -> ModelPlan:
        """Return the plan of a recorded run, from what its environment.json and initial.npz say.
        Raises DataError.
        """
        try:
            shape, classes = _shape(facts["input_shape"]), int(facts["classes"])
            if min(shape, default=0) < 1 or classes < 1:
                raise ValueError
            return cls(spec, shape, classes, FirstModel.recorded(vectors, facts))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                "environment.json: does not say what the run's model takes in (input_shape, "
                "classes); it is damaged"
            ) from None

    def lost(self) -> bool:
        """Return whether the record lacks a model that only code of its user can make again."""
        model = self.spec.model
        return MODEL not in self.first and (is_foreign(model.kind) or is_foreign(model.weights))

    def own_models(self) -> dict[str, FirstModel]:
        """Return the model if only its user can make it again."""
        model = self.spec.model
        return {MODEL: _first(self.model())} if is_foreign(model.kind) or model.weights else {}

    def facts(self) -> dict[str, Any]:
        """Return what `of` needs."""
        return {"input_shape": list(self.shape), "classes": self.classes}

    def module(self) -> torch.nn.Module:
        """Return the network."""
        model, files = self.spec.model, self.spec.sent_files
        module = with_weights(
            self._module(), model.weights, model.partial_weights, "the model", files
        )
        return adapted(module, model.lora, model.kind, "the model")

    def _module(self) -> torch.nn.Module:
        from raydpzv.models.whole import whole  # defines torch modules, and so loads torch

        model = self.spec.model
        if is_foreign(model.kind):
            own: OwnModel = WHOLE_MODELS[model.kind]
            offered = {"shape": self.shape, "outputs": self.outputs, "classes": self.classes}
            offered |= _vocabulary(self.spec.data)
            return own(with_folder(model.options, model.folder, self.spec.sent_files), offered)
        refuse_options(model.options, "options", model.kind)
        return whole(model.kind, self.shape, model.hidden, self.outputs)

    def dense(self) -> DenseNetwork | None:
        """Return the network if compiled kernels know its layers and its loss, cross-entropy; else
        None.
        """
        model = self.spec.model
        if self.spec.loss != "cross_entropy" or model.weights:  # torch alone reads weights
            return None
        return dense_whole(model.kind, self.shape, model.hidden, self.outputs)

    def model(self, device: str = "cpu") -> FlatModel:
        """Return the network with its parameters before the first update."""
        return FlatModel(self.module, self._key, device)

    def initial(self, device: str = "cpu") -> Vector:
        """Return the parameters before the first update, of the engine's kind: the same bits under
        either.
        """
        if MODEL in self.first:
            return torch.tensor(self.first[MODEL].flat, device=device)
        network = self._compiled()
        return network.initial(self._key) if network else self.model(device).flat

    @property
    def updates(self) -> UpdateRule | None:
        """How (seed, scalar) pairs move the model; None for methods that send weights."""
        rule = self.spec.descriptor.rule
        return rule(self.spec.method) if rule else None

    def header(self) -> Header:
        """Return what identifies this run's ledger; only for methods with a rule."""
        updates = self._seeded()
        rule, first = updates.rule, self.first_model()
        return Header(
            {MODEL: first.identity(rule)},
            rule.law,
            rule.momentum,
            rule.damped,
            updates.secret_seeds,
            updates.step_seeds,
            optimizer=rule.optimizer,
            beta2=rule.beta2,
            v0=rule.v0,
            epoch=rule.epoch,
            pool=updates.pool,
        )

    def first_model(self) -> FirstModel:
        """Return the model before the first update."""
        return FirstModel(as_array(self.initial()), self._shapes())

    def replica(self, device: str = "cpu", *, follows_secret: bool = True) -> Replica:
        """Return the model before the first update, ready to follow a ledger.

        follows_secret: as a client does, who knows the seeds' secret shift if there is one; False:
        as the server.
        """
        updates = self._seeded()
        shift = updates.secret_seeds and follows_secret
        rule = updates.rule.on(self._shapes()) if updates.rule.shaped else updates.rule
        if updates.pool:
            pool = pool_seeds(Key(self.spec.seed), updates.pool)
            threads = self.spec.resources.threads
            return PooledReplica(self.initial(device), rule, pool=pool, threads=threads)
        return Replica(
            self.initial(device),
            rule,
            secret=Key(self.spec.seed) / "private seed shift" if shift else None,
            step_seeds=updates.step_seeds,
            threads=self.spec.resources.threads,
        )

    @property
    def _key(self) -> Key:
        return Key(self.spec.seed) / "model"

    def _compiled(self) -> DenseNetwork | None:
        """Return the network of a run under compiled kernels."""
        return self.dense() if self.spec.model.engine == "compiled" else None

    @property
    def vectors(self) -> int:
        """How many vectors of the model's size every model of its own keeps beside it."""
        return self.updates.rule.vectors if self.updates else 0

    @property
    def outputs(self) -> int:
        """Scores of a record."""
        return self.spec.scores(self.classes)

    def _seeded(self) -> UpdateRule:
        assert self.updates is not None  # methods without a rule keep no ledger
        return self.updates

    def _shapes(self) -> Shapes:
        """Return the parameters' names and shapes."""
        found: FirstModel | DenseNetwork | FlatModel = (
            self.first.get(MODEL) or self._compiled() or self.model()
        )
        return found.shapes


def typed_parts(spec: VerticalScenario, split: Split) -> tuple[Part, ...]:
    """Return what each client holds of a row, and whether as whole numbers.

    Raises SpecError where scaling would change whole numbers, DataError for rows that have others.
    """
    train, model = split.train, spec.model
    parts = by_view(train.views, spec.split.clients) or partition(
        train.shape, spec.split, train.features
    )

    known: dict[object, bool] = {}

    def reads(client: int, part: Part) -> bool:
        of = model.bottom_of(client), part.shape  # a deep model takes tens of milliseconds to build
        if of not in known:
            known[of] = _reads(lambda: bottom_module(spec, client, part.shape), part.shape)
        return known[of]

    found = []
    for client, part in enumerate(parts):
        why = _why(
            model.bottom_of(client),
            _setting(spec, client),
            named=train.vocabulary is not None,
            reads=partial(reads, client, part),
        )
        if why is not None:
            why.check_scale("none" if train.vocabulary else spec.data.scale)
            why.check_part(split, part, label(client, spec.party_names))
        found.append(replace(part, integers=why is not None))
    return tuple(found)


def typed_rows(spec: HorizontalScenario, split: Split) -> Split:
    """Return rows as whole numbers, or as they are. Raises as `typed_parts` does."""
    train = split.train

    def reads() -> bool:
        return _reads(ModelPlan(spec, train.shape, train.width).module, train.shape)

    named = train.vocabulary is not None
    why = _why(spec.model.kind, spec.model.integers, named=named, reads=reads)
    if why is None:
        return split
    why.check_scale("none" if named else spec.data.scale)
    return why.rows(split)


def _setting(spec: VerticalScenario, client: int) -> bool | None:
    given = spec.model.integers
    if not isinstance(given, tuple):
        return given
    return bool({str(client), label(client, spec.party_names)} & set(given))


def _why(
    name: str, setting: bool | None, *, named: bool, reads: Callable[[], bool]
) -> WholeRows | None:
    """Return why a model of that name takes whole numbers; None: it takes numbers.

    named: whether the data set says that its rows are ids, which models read as they are.
    """
    if not is_foreign(name):
        return None
    if setting is not None:
        return _SETTING if setting else None
    return _LAYER if not named and reads() else None


def _reads(make: Callable[[], torch.nn.Module], shape: tuple[int, ...]) -> bool:
    from raydpzv.models.own_model import takes_whole_numbers  # loads torch

    with without_weights():
        return takes_whole_numbers(make, shape)
