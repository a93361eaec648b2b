"""From a scenario to everything a run needs; all errors in the input show here, before anything is
written.
"""

from __future__ import annotations

import hmac
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from raydpzv.config.scenario import AnyScenario, HorizontalScenario, VerticalScenario
from raydpzv.config.timing import links
from raydpzv.config.toml import scenario_sha256
from raydpzv.data.generated import GeneratedSplit, GeneratedTable
from raydpzv.data.held_out import check_both_classes, limit, with_validation
from raydpzv.data.horizontal import Partition, split_rows
from raydpzv.data.read_once import ReadOnce
from raydpzv.data.scaling import encoded, scale, scale_by
from raydpzv.data.sources import Request, load
from raydpzv.data.table import Split, Table
from raydpzv.data.users import Known, UserParts, check_least, share_users
from raydpzv.data.vertical import Part
from raydpzv.engine.scores import own_metrics
from raydpzv.errors import DataError, SpecError, suggest
from raydpzv.experiment.initial_model import BottomPlan, FirstModel, ModelPlan, typed_parts
from raydpzv.experiment.privacy_setting import PrivacySetting, privacy_setting, user_privacy
from raydpzv.foreign import is_foreign, is_handle, own_digests
from raydpzv.grouping import grouped
from raydpzv.keys import Key
from raydpzv.lazy_import import torch
from raydpzv.ledger.header import Header
from raydpzv.models.flat import FlatModel
from raydpzv.models.losses import Loss, check_loss, records_checked
from raydpzv.privacy.release import ReleasePlan
from raydpzv.records.checkpoint_policy import CheckpointPolicy
from raydpzv.records.environment import DATA_DIGEST, OWN_DIGESTS
from raydpzv.registry import DATA_SOURCES, LOSSES, PREPARERS
from raydpzv.settings.fields import per_client
from raydpzv.settings.sections import CommonSections, SplitSection
from raydpzv.settings.sections_data import DataSection
from raydpzv.settings.sections_horizontal import HorizontalSplitSection, UsersSection
from raydpzv.sim.arrivals import Arrivals, Constant, Immediate, Poisson, Trace
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.virtual import Timing

if TYPE_CHECKING:  # Arrow, which privacy before a run does not need
    from raydpzv.records.store import Rows

_ROWS, _LAST_PARTS = ReadOnce(256), ReadOnce(1)
TableChange = Callable[[Table], Table]
Goal = tuple[str, str | None]
"""The loss, and what a user's own takes (`Request.targets`)."""


class Prepared(ABC):
    """A scenario of either kind with its data loaded and its parties ready. It answers for its
    kind.

    timing: arrivals, delays and network; unused: the columns that no client holds; remarks: what to
    look at in the data's file, a sentence each. A wing holds
    what differs from what is said here.
    """

    spec: Any
    timing: Timing
    unused: tuple[str, ...]
    remarks: tuple[str, ...]

    ledger_of_releases = False
    """Whether each pair of the ledger is a release that the rows record, too."""
    lateness_by_client = False
    """Whether a warning of late epochs names each client: there are few."""

    @property
    @abstractmethod
    def setting(self) -> ReleasePlan | None:
        """What the claims about privacy are made from; None for a run without noise."""

    @property
    def engine(self) -> str:
        """What computes the models: "torch" or "compiled"."""
        return str(self.spec.model.engine)

    @property
    def secret(self) -> int | None:
        """What the coins of its batches come from, for the operator alone; None: the run's seed."""
        return None

    @property
    def unrecorded(self) -> str | None:
        """What of a run came from the operating system and is not kept, so that it cannot be
        repeated; or None.
        """
        return None

    @property
    def no_segment(self) -> str | None:
        """Why a run under the wall clock cannot resume as a new segment, or None; None under the
        virtual clock.
        """
        return cast("str | None", self.spec.no_segment)

    @property
    def counts_segments(self) -> bool:
        """Whether each segment is recorded before it releases anything: its account must count
        those of lost ones.
        """
        return False

    @property
    def under_way(self) -> int:
        """Releases that a segment may have made and lost, of which there is no record."""
        return 0

    @property
    def releases_again(self) -> bool:
        """Whether a resumed run makes the ledger's updates beyond its checkpoint once more, of
        recorded scalars.
        """
        return False

    @property
    def awaits_checkpoints(self) -> bool:
        """Whether each round waits until its checkpoint is written: no other record has its
        releases.
        """
        return False

    @property
    def user_parts(self) -> UserParts | None:
        """Which record is whose, of a method that protects users; None of another."""
        return None

    @property
    def averages_after(self) -> int | None:
        """After which update of the ledger models go into the mean that is evaluated; None: the
        newest is evaluated.
        """
        return None

    @abstractmethod
    def summary_facts(self, rows: Rows, updates: int) -> dict[str, Any]:
        """Return what summary.json says of runs of this kind alone. updates: of the server's
        loop.
        """

    @property
    def barrier(self) -> int:
        """For how many clients' uploads the server waits before it answers."""
        return 1

    @property
    def local_device(self) -> str:
        """Where models are computed in this process: "cuda" if a party has a GPU share and there is
        one, else "cpu".
        """
        shares = [
            share
            for of in self.spec.gpu_shares
            for share in (of if isinstance(of, tuple) else (of,))
        ]
        wanted = any(share == "auto" or float(share) > 0 for share in shares)
        return "cuda" if wanted and torch.cuda.is_available() else "cpu"

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the data that actors are given."""

    @property
    def client_bytes(self) -> tuple[int, ...]:
        """Bytes of each client's own data, if its actor keeps a copy of them."""
        return ()

    def object_store_bytes(self) -> int:
        """Return the bytes of the data in this machine's object store."""
        return self.nbytes

    @property
    def fsync(self) -> bool:
        """Whether the ledger of a run in this process is forced onto the disk with each update."""
        return False

    @abstractmethod
    def ledger_plan(self) -> BottomPlan | ModelPlan | None:
        """Return the models that the ledger's updates move; None for methods that keep no
        ledger.
        """

    def ledger_header(self) -> Header | None:
        """Return what identifies the run's ledger; None for methods that keep none."""
        plan = self.ledger_plan()
        return plan.header() if plan else None

    @abstractmethod
    def measures(self) -> tuple[str, ...]:
        """Return the names of the user's measures."""

    def own_models(self) -> Mapping[str, FirstModel]:
        """Return models that the ledger's updates move and only their user can make again, by
        name.
        """
        plan = self.ledger_plan()
        return plan.own_models() if plan else {}

    def checkpoint_policy(self) -> CheckpointPolicy | None:
        """Return when checkpoints are due; None for a run that can resume from none."""
        record = self.spec.record
        if self.unrecorded or self.no_segment:
            return None
        return CheckpointPolicy(record.checkpoint, record.checkpoint_updates, record.flush)

    @abstractmethod
    def privacy_filter(self) -> PrivacyFilter:
        """Return a fresh privacy account."""

    def budget(self) -> Budget:
        """Return what ends the run (besides the privacy filter)."""
        found = self.spec.budget
        return Budget(found.updates, found.seconds, found.bytes)

    @abstractmethod
    def fingerprint(self, key: bytes) -> dict[str, Any]:
        """Return digests of scenario and data, by which a continuation knows its run. key: of
        `fingerprint`.
        """

    def skipped_rows(self) -> frozenset[str]:
        """Return the row types this scenario does not keep."""
        return frozenset()

    @property
    def age_window(self) -> int:
        """Rounds over which the staleness rows of a client are summed."""
        return 1

    @abstractmethod
    def class_shares(self) -> list[float]:
        """Return the share of each class among the test rows: what constant predictions reach; NaN
        without classes.
        """

    @abstractmethod
    def model_names(self) -> list[str]:
        """Return the names of all models on record."""

    @abstractmethod
    def model_name(self, party: str | int | None) -> str:
        """Return under which name a party's model is on record. Raises InputError if there is
        none.
        """

    @abstractmethod
    def module(self, name: str) -> torch.nn.Module:
        """Return the network of that name as it is built."""

    @abstractmethod
    def flat_model(self, name: str) -> FlatModel:
        """Return the model of that name before the first update."""


def prepare(spec: AnyScenario) -> Prepared:
    """Load a scenario's data and build what a run needs. Raises SpecError and DataError."""
    return cast(Prepared, PREPARERS[spec.kind](spec))


@dataclass(frozen=True)
class Loaded:
    """What vertical scenarios begin with: rows for training and testing, what each client holds of
    them, and arrivals, delays, network.
    """

    split: Split
    parts: tuple[Part, ...]
    timing: Timing


def load_scenario(
    spec: VerticalScenario, change: TableChange | None = None, strangers: tuple[int, ...] = ()
) -> Loaded:
    """Load a scenario's data, cut to size and scaled, and its clocks. Raises SpecError and
    DataError.
    """
    request = Request(
        spec.data, Key(spec.seed) / "data", None, strangers, spec.split.holders, *spec.goal
    )
    split = read_rows(request, change)
    parts = typed_parts(spec, split)
    return Loaded(scaled(split, spec.data), parts, timing(spec, spec.split.clients))


def load_data(
    request: Request,
    change: TableChange | None = None,
    typed: Callable[[Split], Split] = lambda split: split,
) -> Split:
    """Load rows, cut to size and scaled. Raises SpecError and DataError.

    change: as of `read_rows`; typed: makes whole numbers of rows that a model takes as such.
    """
    return scaled(typed(read_rows(request, change)), request.data)


def read_rows(request: Request, change: TableChange | None = None) -> Split:
    """Load rows, cut to size and not scaled. Raises SpecError and DataError.

    change: made to the table as it was read, before it is divided and cut.
    """
    data, key = request.data, request.key
    split = load(request, change)
    check_labels(split.train, request.loss or DATA_SOURCES[data.source].loss)
    found = limit(split, data.train_rows, data.test_rows, key / "limit", data.split)
    found = with_validation(found, data.validation_fraction or 0.0, key / "validation", data.split)
    check_both_classes(found)
    return encoded(found)


def scaled(found: Split, data: DataSection) -> Split:
    """Return rows scaled as a section says, float32 or whole numbers. Raises SpecError and
    DataError.
    """
    if data.centre is not None and data.spread is not None:
        return scale_by(found, data.centre, data.spread)
    return scale(found, data.scale)


def check_labels(train: Table | GeneratedTable, loss: str) -> None:
    """Raise DataError for labels that are not what the loss is for."""
    wanted: Loss = LOSSES[loss]
    values = getattr(train, "values", None)
    times = getattr(train, "times", None) is not None
    kind = "times" if times else "classes" if values is None else "numbers"
    if not wanted.accepts(kind):
        raise DataError(
            f'model.loss: "{loss}" is for {wanted.labels}, and the labels of "{train.name}" are '
            f"{kind}; choose another "
            "loss or data"
        )
    if loss == "binary" and train.classes != 2:
        raise DataError(
            f'model.loss: "binary" is for two classes, 0 and 1, and "{train.name}" has '
            f'{train.classes}; use "cross_entropy"'
        )
    if wanted.values and values is not None and not (fits := np.isin(values, wanted.values)).all():
        row, place = np.argwhere(~fits)[0]
        raise DataError(
            f'model.loss: "{loss}" wants labels 0 and 1, "{train.name}" has {values[row, place]:g} '
            f'in row {row} (counted from 0); use "squared_error" for numbers'
        )


def check_functions(spec: AnyScenario, labels: np.ndarray, outputs: int) -> None:
    """Try a user's own loss and metrics on made-up scores and the held-out labels. Raises
    InputError.
    """
    if is_foreign(spec.loss):
        records = records_checked(getattr(spec.method, "batch", None))
        check_loss(LOSSES[spec.loss], torch.tensor(labels[:records]), outputs, records)
    measures = own_measures(spec, labels, outputs)
    if unknown := sorted(set(spec.evaluate.lower or ()) - set(measures)):
        raise SpecError(
            f'evaluate.lower: your metrics have no "{unknown[0]}". '
            f"{suggest(unknown[0], measures)}They have "
            f"{', '.join(measures)}"
        )


def own_measures(spec: AnyScenario, labels: np.ndarray, outputs: int) -> tuple[str, ...]:
    """Return the names of a user's measures, () for none. Raises InputError."""
    if not spec.evaluate.metrics:
        return ()
    scores = (Key(0) / "made-up scores").generator().random((len(labels), outputs), np.float32)
    return tuple(own_metrics(spec.evaluate.metrics)(scores, labels))


def shared_rows(
    data: DataSection,
    how: HorizontalSplitSection,
    users: UsersSection | None,
    key: Key,
    goal: Goal,
    typed: Callable[[Split], Split] = lambda split: split,
) -> tuple[Split | GeneratedSplit, Partition]:
    """Return the rows and whose they are: shared out among the clients, or made for each of them
    when it works. typed: as of `load_data`.
    """
    if generate := DATA_SOURCES[data.source].generate:
        made: GeneratedSplit = generate(data, how, key / "data")
        check_labels(made.train, goal[0])
        return made, made.train.parts
    owners = users.columns if users else None
    split = load_data(
        Request(data, key / "data", owners, loss=goal[0], targets=goal[1]), typed=typed
    )
    if users is not None:
        train = split.train
        known = Known(train.y, train.users, train.silos)
        shared = share_users(known, how.clients, users, key / "parts")
        if train.times is not None:
            check_least(shared, 2, "with survival times, whose loss compares a user's records")
        return split, shared
    classed = split.train.silos if how.how == "owners" else split.train.y
    if how.how == "dirichlet" and not split.train.classed and split.train.times is None:
        raise SpecError(
            'split.how: "dirichlet" mixes classes, and the labels are numbers (model.loss); use '
            '"iid" or "owners"'
        )
    if classed is None:
        raise SpecError(
            'split.how: "owners" wants data that say whose each row is, got data.source = '
            f'"{data.source}"; use "iid" or "dirichlet"'
        )
    return split, split_rows(classed, how, key / "parts")


def fingerprint(spec: CommonSections, arrays: Sequence[np.ndarray], key: bytes) -> dict[str, Any]:
    """Return digests of a resolved scenario, wherever its data lie, of the data, and of a user's
    own code by its name.

    key: the operator's, without which nobody can try guesses at the data.
    """
    data = hmac.new(key, digestmod="sha256")
    for array in arrays:
        data.update(str((array.shape, array.dtype.str)).encode())
        data.update(np.ascontiguousarray(array).reshape(-1).data)
    if spec.arrivals.file is not None:
        data.update(Path(spec.arrivals.file).read_bytes())
    found: dict[str, Any] = {
        "scenario_sha256": scenario_sha256(spec),
        DATA_DIGEST: data.hexdigest(),
    }
    code = [name for name in spec.own if name not in spec.weights and not is_handle(name)]
    return found | ({OWN_DIGESTS: own_digests(code, key)} if code else {})


def timing(spec: CommonSections, clients: int) -> Timing:
    """Return arrivals, delays and network of a scenario."""
    key, clock = Key(spec.seed), spec.clock
    return Timing(
        _arrivals(spec, clients, key),
        DelayModel(
            per_client(clock.compute, clients),
            clock.compute_law,
            key / "compute",
            clock.compute_quantum,
        ),
        DelayModel([clock.service], clock.service_law, key / "service"),
        links(spec, clients),
    )


def _arrivals(spec: CommonSections, clients: int, key: Key) -> Arrivals:
    arrivals = spec.arrivals
    if arrivals.kind == "trace":
        assert arrivals.file is not None
        return Trace(_trace(Path(arrivals.file), clients))
    if arrivals.kind == "immediate":
        return Immediate()
    rates = per_client(arrivals.rate, clients)
    return Poisson(rates, key) if arrivals.kind == "poisson" else Constant(rates)


def _trace(path: Path, clients: int) -> dict[int, list[float]]:
    """Read a trace file with the columns client and time, one row per activation."""
    import pyarrow as pa  # half a second: most scenarios have no trace
    import pyarrow.csv
    import pyarrow.parquet

    try:
        parquet = path.suffix == ".parquet"
        table = pyarrow.parquet.read_table(path) if parquet else pyarrow.csv.read_csv(path)
        client, times = table.column("client"), table.column("time")
        if not pa.types.is_integer(client.type):
            raise ValueError(f"client numbers are whole, these are {client.type}")
        pairs = list(zip(client.to_pylist(), map(float, times.to_pylist()), strict=True))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path}: wanted a CSV or Parquet trace with the columns client and time ({reason})"
        ) from None
    if not pairs:
        raise DataError(f"{path}: the trace has no rows; give at least one activation")
    if not all(0 <= time < math.inf for _, time in pairs):
        raise DataError(
            f"{path}: the trace has a time that is negative or not finite; times are seconds from 0"
        )
    if stray := {c for c, _ in pairs} - set(range(clients)):
        raise DataError(
            f"{path}: the trace names client {min(stray)}; there are clients 0..{clients - 1}"
        )
    return grouped(pairs)


def class_shares(labels: np.ndarray, classes: int) -> list[float]:
    """Return the share of each class among labels int [N]."""
    return (np.bincount(labels, minlength=classes) / max(1, len(labels))).tolist()


def planned_privacy(spec: AnyScenario, rows: int | None = None) -> ReleasePlan | None:
    """Return what a whole run's claims are made from; None where no noise is added.

    rows: D, training rows; None: as many as the data have. Users are always those of the data.
    Raises SpecError where no noise reaches the ε asked for.
    """
    return _CLAIMS[spec.kind](spec, rows)


def _of_records(spec: VerticalScenario, rows: int | None) -> ReleasePlan | None:
    if spec.descriptor.noise(spec.method) is None or spec.privacy.mode == "none":
        return None
    return privacy_setting(spec, rows or _rows_of(spec)).claims


def unrecorded(spec: AnyScenario) -> str | None:
    """Return what of a scenario's runs will come from the operating system and be kept nowhere, or
    None.
    """
    return _UNRECORDED[spec.kind](spec)


def _unrecorded_rows(spec: VerticalScenario) -> str | None:
    if spec.descriptor.noise(spec.method) is None or spec.privacy.mode == "none":
        return spec.descriptor.unrecorded(spec.method)
    return unrecorded_noise(spec, privacy_setting(spec, _rows_of(spec)))


def unrecorded_noise(spec: VerticalScenario, privacy: PrivacySetting) -> str | None:
    """As `unrecorded`, of a run whose noise is known."""
    noise = privacy.noise()
    if noise.on in ("embedding", "gradient") and not noise.seeded:
        return f"its noise on every {noise.on} row"
    return spec.descriptor.unrecorded(spec.method)


def _of_users(spec: HorizontalScenario, rows: int | None) -> ReleasePlan | None:
    if (
        spec.descriptor.users(spec.method) is None
        or spec.privacy is None
        or spec.privacy.mode == "none"
    ):
        return None
    data = spec.data.model_dump_json()
    parts = _LAST_PARTS.of(spec.data, _parts, data, spec.split, spec.users, spec.seed, spec.goal)
    found = user_privacy(spec, parts)
    return found.claims if found else None


_CLAIMS: dict[str, Callable[[Any, int | None], ReleasePlan | None]] = {
    "vertical": _of_records,
    "horizontal": _of_users,
}
_UNRECORDED: dict[str, Callable[[Any], str | None]] = {
    "vertical": _unrecorded_rows,
    "horizontal": lambda spec: None,  # releases are charged a second time
}


def _rows_of(spec: VerticalScenario) -> int:
    data, split = spec.data.model_dump_json(), spec.split.model_dump_json()
    return _ROWS.of(spec.data, _rows, data, split, spec.seed, spec.goal)


def _rows(data: str, split: str, seed: int, goal: Goal) -> int:
    """Return how many training rows sections as JSON have."""
    holders = SplitSection.model_validate_json(split).holders
    section = DataSection.model_validate_json(data)
    return load_data(Request(section, Key(seed) / "data", None, (), holders, *goal)).train.rows


def _parts(
    data: str, how: HorizontalSplitSection, users: UsersSection | None, seed: int, goal: Goal
) -> Partition:
    """Return whose the rows of a data section are, given as JSON."""
    return shared_rows(DataSection.model_validate_json(data), how, users, Key(seed), goal)[1]
