"""The models of a run after any of its updates, rebuilt from the ledger, and what the rows say of
each update.

M clients; d parameters of a party; T updates. Replicas keep their state on the way, so that going
back is as fast as going on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydpzv.arrow_columns import array
from raydpzv.engine.split_model import Metrics
from raydpzv.errors import DataError, InputError, NotRecomputable, command
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.initial_model import MODEL, BottomPlan, ModelPlan
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.rebuild import recorded_plan, serve_again
from raydpzv.experiment.release_ledger import released
from raydpzv.experiment.resuming import check_recomputable, check_same, prepared_again
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.replica import Replica
from raydpzv.privacy.claim_words import claim_text
from raydpzv.records.moments import (
    begins,
    greatest_staleness,
    keep_found,
    next_update,
    read_found,
    spent_epsilon,
    update_rounds,
)
from raydpzv.records.recorder import Recorder
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.schema import SCHEMAS
from raydpzv.sim.server_loop import WatchedServer
from raydpzv.timetravel.clips import CountedTop, cut_by

_EVERY = 256
"""Updates from one kept state to the next, at least."""
_MOST_BYTES = 2**29
"""Memory for the kept states of all replicas."""


def spacing(updates: int, nbytes: int, most_bytes: int) -> int:
    """Return the updates from one kept state of `nbytes` to the next, so that all need `most_bytes`
    at most.
    """
    return max(_EVERY, math.ceil(updates * nbytes / most_bytes))


class ModelHistory:
    """One model at any update: a replica that keeps its state every so many updates."""

    def __init__(self, replica: Replica, ledger: Ledger, most_bytes: int = _MOST_BYTES) -> None:
        self._first, self._ledger = replica, ledger
        state = replica.state()
        self._kept: dict[int, np.ndarray] = {0: state}
        self._every = spacing(ledger.version, state.nbytes, most_bytes)
        self._now = replica.twin()

    def at(self, update: int) -> np.ndarray:
        """Return the parameters after `update` updates, float32 [d], a copy."""
        begin = update // self._every * self._every
        while begin not in self._kept:
            begin -= self._every
        if not begin <= self._now.version <= update:
            self._now = self._first.twin()
            self._now.adopt(self._kept[begin], begin)
        while self._now.version < update:
            step = min(update, (self._now.version // self._every + 1) * self._every)
            self._now.go_to(step, self._ledger)
            if step % self._every == 0:
                self._kept.setdefault(step, self._now.state())
        return self._now.state()[0]


@dataclass(frozen=True)
class Moment:
    """One update.

    time: seconds of the run's clock; released: (client, scalars) of the ledger; seeds: of these
    scalars, in the same order; moved: the length of each party's step; staleness: of the oldest
    embedding or model that the update used, in updates; clipped: records that the clip cut, None
    until `next_clip` has counted them; loss: the mean on its batches;
    epsilon: spent until then, as it is proved, and its terms, None where nothing is; evaluated:
    (update, accuracy), the newest on record.
    """

    update: int
    time: float
    clients: tuple[int, ...]
    released: tuple[tuple[int, tuple[float, ...]], ...]
    seeds: tuple[int, ...]
    lr: float
    moved: Mapping[str, float]
    staleness: int
    clipped: int | None
    loss: float
    epsilon: tuple[float, str] | None
    evaluated: tuple[int, float] | None


class RunHistory(ABC):
    """A run with a ledger. Close it after use, or use it as a context."""

    def __init__(self, folder: RunFolder, plan: Any) -> None:
        self.folder, self.spec, self.plan = folder, cast(Any, folder.spec()), plan
        self.rows = folder.rows()
        self.ledger = Ledger.open(folder.ledger, expect=plan.header())
        self.updates = self.ledger.version
        kept = read_found(folder, self.ledger.digest).get("clipped")
        self._kept_clipped = None if kept is None else np.array(kept, np.int64)

    def __enter__(self) -> RunHistory:
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of the models that the ledger moves."""

    @abstractmethod
    def replica(self, name: str) -> Replica:
        """Return a model before the first update."""

    @abstractmethod
    def evaluate(self, update: int, instead: Mapping[str, np.ndarray] | None = None) -> Metrics:
        """Score the model after `update` updates on the held-out rows; instead: other parameters of
        some parties.

        Raises InputError where the run's data or its order cannot be had again.
        """

    @cached_property
    def prepared(self) -> Prepared:
        """The run's scenario with its data, which must be those of the run."""
        found = prepared_again(self.folder)
        check_same(found, self.folder)
        check_recomputable(found, self.folder.path)
        return found

    def model(self, name: str, update: int) -> np.ndarray:
        """Return a model's parameters after `update` updates, float32 [d]. Raises InputError beyond
        the ledger.
        """
        if not 0 <= update <= self.updates:
            raise InputError(
                f"update {update}: wanted 0..{self.updates}, the updates in the ledger of "
                f"{self.folder.path}"
            )
        return self._models[name].at(update)

    def moment(self, update: int) -> Moment:
        """Return what happened in an update from 1 on; of 0, what was before."""
        last = (
            max(update - 1, 0) if update <= self.updates else update
        )  # which is refused by its own name
        before = [self.model(name, last) for name in self.names()]
        moved = {
            name: float(np.linalg.norm(self.model(name, update).astype(np.float64) - was))
            for name, was in zip(self.names(), before, strict=True)
        }
        entries = self.ledger.since(max(update - 1, 0), update)
        parties = [entries.of(party) for party in np.unique(entries.party).tolist()]
        services = self._of("service", update)
        losses = array(services["loss"])
        evaluated = self._until("evaluation", update)
        evaluated = evaluated.filter(pc.equal(evaluated["part"], "test"))
        return Moment(
            update,
            float(max(array(services["served"]), default=0.0)),
            tuple(sorted(array(services["client"]).tolist())),
            tuple((int(mine.party[0]), tuple(mine.scalar.tolist())) for mine in parties),
            tuple(seed for mine in parties for seed in mine.seed.tolist()),
            float(entries.lr[0]) if len(entries) else math.nan,
            {name: size for name, size in moved.items() if size},
            max(int(self._stale[update]), 0),
            None if self._kept_clipped is None else int(self._kept_clipped[update]),
            float(losses.mean()) if len(losses) else math.nan,
            self._epsilon(update),
            (int(evaluated["round"][-1].as_py()), float(evaluated["accuracy"][-1].as_py()))
            if evaluated.num_rows
            else None,
        )

    def next_fall(
        self, after: int, progress: Callable[[int], None] = lambda update: None
    ) -> int | None:
        """Return the first update > `after` whose accuracy is below that of the update before;
        None: there is none.
        """
        before = self.evaluate(after).accuracy
        for update in range(after + 1, self.updates + 1):
            now = self.evaluate(update).accuracy
            if now < before:
                return update
            before = now
            progress(update)
        return None

    def next_stale(self, after: int, least: int) -> int | None:
        """Return the first update > `after` that used an embedding or model at least so many
        updates old, or None.

        Raises InputError for a number below 1.
        """
        if least < 1:
            raise InputError(f"--stale: wanted a number from 1 on, got {least}")
        return next_update(self._stale >= least, after)

    def next_clip(self, after: int) -> int | None:
        """Return the first update > `after` at which a clip began to bind, or None.

        Raises InputError or NotRecomputable where nobody can tell, see `clipped`.
        """
        return next_update(begins(self.clipped), after)

    @cached_property
    def clipped(self) -> np.ndarray:
        """How many records' slopes the clip cut in each update 0..T, int64: no row has it, so the
        run serves again.
        """
        if self._kept_clipped is None:
            self._kept_clipped = self._count_clipped()
            self.keep(clipped=self._kept_clipped.tolist())
        return self._kept_clipped

    def keep(self, **found: Any) -> None:
        """Keep what was computed of this ledger in the run's folder, for its page."""
        keep_found(self.folder, self.ledger.digest, **found)

    @abstractmethod
    def _count_clipped(self) -> np.ndarray:
        """Count them again."""

    def _no_clip(self) -> InputError:
        return InputError(f"{self.folder.path}: the run clips nothing (privacy.clip is not set)")

    @cached_property
    def _models(self) -> dict[str, ModelHistory]:
        names = self.names()
        return {
            name: ModelHistory(self.replica(name), self.ledger, _MOST_BYTES // len(names))
            for name in names
        }

    @cached_property
    def _stale(self) -> np.ndarray:
        return greatest_staleness(self.rows, self.rounds)

    @cached_property
    def rounds(self) -> np.ndarray:
        """The server's round of each update 0..T."""
        try:
            return update_rounds(self.rows, self.updates)
        except DataError as error:
            raise DataError(f"{self.folder.path}: {error}") from None

    def _of(self, table: str, update: int) -> pa.Table:
        """Return the rows of the rounds that made an update."""
        rows, after = self.rows[table], int(self.rounds[max(update - 1, 0)])
        return rows.filter(
            pc.and_(
                pc.greater(rows["round"], after),
                pc.less_equal(rows["round"], int(self.rounds[update])),
            )
        )

    def _until(self, table: str, update: int) -> pa.Table:
        rows = self.rows[table]
        return rows.filter(pc.less_equal(rows["round"], int(self.rounds[update])))

    def _epsilon(self, update: int) -> tuple[float, str] | None:
        """Return the ε on record until then and its terms, None where the summary proves none."""
        if self._spent is None or math.isnan(spent := float(self._spent[0][update])):
            return None
        return spent, claim_text({**self._spent[1], "epsilon": spent})

    @cached_property
    def _spent(self) -> tuple[np.ndarray, Mapping[str, Any]] | None:
        claims = self.folder.summary().get("epsilon") or [] if self.folder.has_summary() else []
        return spent_epsilon(self.rows, self.rounds, claims)


class HorizontalHistory(RunHistory):
    """One model that the clients share."""

    prepared: PreparedHorizontal

    def names(self) -> Sequence[str]:
        return [MODEL]

    def replica(self, name: str) -> Replica:
        return cast(ModelPlan, self.plan).replica()

    def evaluate(self, update: int, instead: Mapping[str, np.ndarray] | None = None) -> Metrics:
        x = (instead or {}).get(MODEL)
        if x is None:
            x = self.model(MODEL, update)
        objective = self._objective
        vector = objective.vector(x)
        return self._held_out.scored(lambda rows, labels: objective.evaluate(vector, rows, labels))

    @cached_property
    def _objective(self) -> Any:
        return self.prepared.objective()

    @cached_property
    def _held_out(self) -> Any:
        return self.prepared.held_out()

    def _count_clipped(self) -> np.ndarray:
        clip = getattr(getattr(self.spec, "privacy", None), "clip", None)
        if clip is None:
            raise self._no_clip()
        raise NotRecomputable(
            f"{self.folder.path}: privacy.clip cuts each user's part inside the silos, and only "
            "their noised sum is on record: nobody can tell at which update it bound"
        )


class VerticalHistory(RunHistory):
    """A bottom model of each client, and the server's head, which serving the recorded order once
    more gives.
    """

    prepared: PreparedVertical

    def names(self) -> Sequence[str]:
        return [f"client {m}" for m in range(self.spec.split.clients)]

    def replica(self, name: str) -> Replica:
        return cast(BottomPlan, self.plan).replica(int(name.removeprefix("client ")))

    def evaluate(self, update: int, instead: Mapping[str, np.ndarray] | None = None) -> Metrics:
        given = instead or {}
        embeddings = [
            role.bottom.embed_held_out(given[name] if name in given else self.model(name, update))
            for name, role in zip(self.names(), self._roles, strict=True)
        ]
        return cast(Metrics, self._top.evaluate(embeddings, self._heads[self.rounds[update]]))

    @cached_property
    def _heads(self) -> np.ndarray:
        """The head's parameters after each round, float32 [rounds + 1, d_0]."""
        again, last = self._again, int(self.rounds[-1])
        first = self._server.top.parameters()
        if (last + 1) * first.nbytes > _MOST_BYTES:
            raise NotRecomputable(
                f"{self.folder.path}: the heads of {last} rounds need "
                f"{(last + 1) * first.nbytes / 2**30:.1f} GiB; look at the run without accuracies"
            )
        heads = np.zeros((last + 1, first.size), np.float32)
        heads[0] = first

        def keep(server: Any) -> None:
            heads[server.updates] = server.top.parameters()

        serve_again(
            again,
            self.rows,
            last,
            Recorder(frozenset(SCHEMAS)),
            tap=partial(WatchedServer, served=keep),
        )
        return heads

    def _count_clipped(self) -> np.ndarray:
        setting = self.prepared.privacy
        if setting.clip is None:
            raise self._no_clip()
        cut, counts, tops = (
            cut_by(setting.clip, setting.integers),
            np.zeros(self.rounds[-1] + 1, np.int64),
            [],
        )

        def watched(server: Any) -> WatchedServer:
            server.top = CountedTop(server.top, cut)
            tops.append(server.top)
            return WatchedServer(server, served=count)

        def count(server: Any) -> None:
            counts[server.updates] = tops[0].taken()

        serve_again(
            self._again, self.rows, len(counts) - 1, Recorder(frozenset(SCHEMAS)), tap=watched
        )
        return np.concatenate(([0], np.diff(np.cumsum(counts)[self.rounds])))

    @cached_property
    def _again(self) -> PreparedVertical:
        return self.prepared.with_record(released(self.rows, None), continues=False)

    @cached_property
    def _server(self) -> Any:
        return self._again.server.make(self._again.local_device)

    @property
    def _top(self) -> Any:
        return self._server.top

    @cached_property
    def _roles(self) -> list[Any]:
        return [factory.make(self._again.local_device) for factory in self._again.clients]


_KINDS: dict[str, type[RunHistory]] = {"horizontal": HorizontalHistory, "vertical": VerticalHistory}


def open_history(path: Path, moved: Sequence[str] = ()) -> RunHistory:
    """Open a run's ledger and rows; moved: see `RunFolder.open`. Raises InputError for a run
    without a ledger.
    """
    folder = RunFolder.open(path, moved)
    spec = folder.spec()
    if spec.descriptor.rule is None or not folder.ledger.exists():
        raise InputError(
            f"{path}: a run of {spec.method.name} has no ledger of seeds and scalars to step "
            f"through; {command('report', path)} shows what is on record"
        )
    folder.require_own_record()
    return _KINDS[spec.kind](folder, recorded_plan(folder))
