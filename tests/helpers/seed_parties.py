"""A small problem for methods of seeds and scalars, and a slow second opinion on how pairs move a
model.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from raydpzv.data.horizontal import Parts, split_rows
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.keys import Key, shifted
from raydpzv.ledger.entries import COLUMNS, Slice
from raydpzv.ledger.header import Header, Model
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.decomfl import DecomflServer, LocalSteps, Revert, SeparateClients
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.methods.horizontal.seeded import SeededPullServer, SeededSettings, Updates
from raydpzv.methods.horizontal.seeded_clients import SharedClients
from raydpzv.methods.replica import Replica, UpdateSource
from raydpzv.methods.roles import ClientGroup, Order, Upload
from raydpzv.methods.schedule import Schedule
from raydpzv.models.whole import whole
from raydpzv.settings.sections_horizontal import HorizontalSplitSection
from raydpzv.zo import philox
from raydpzv.zo.update import Rule

KEY = Key(31)
SECRET = Key(97) / "secret"
CLIENTS, ROWS, FEATURES, CLASSES = 6, 60, 5, 3


def two_layers() -> nn.Module:
    return whole("mlp", (FEATURES,), (4,), CLASSES)


def softmax_regression() -> nn.Module:
    return whole("logistic", (FEATURES,), (), CLASSES)


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = (KEY / "data").generator()
    y = np.arange(ROWS) % CLASSES
    x = 2 * generator.standard_normal((CLASSES, FEATURES))[y] + generator.standard_normal(
        (ROWS, FEATURES)
    )
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


X, Y = _data()


def objective(make: Callable[[], nn.Module] = two_layers) -> TorchObjective:
    return TorchObjective(make, KeptRows(X, Y))


def initial(make: Callable[[], nn.Module] = two_layers) -> torch.Tensor:
    return objective(make).initial(KEY / "initial")


D = initial().numel()


def parts(clients: int = CLIENTS) -> Parts:
    """Clients of different sizes, so that weights by rows are not uniform."""
    return split_rows(
        Y.numpy(), HorizontalSplitSection(clients=clients, sizes="drawn", least=2), KEY / "parts"
    )


def settings(**changes: Any) -> SeededSettings:
    rule = changes.pop("rule", None) or Rule(
        changes.pop("law", "gaussian"), changes.pop("momentum", 0.0), damped=True
    )
    widths = changes.pop("perturbations", Schedule(2))
    lr = changes.pop("lr", Schedule(0.05))
    return SeededSettings(KEY, rule, changes.pop("batch", 4), lr, widths, **changes)


def replica(
    given: SeededSettings, secret: Key | None = None, threads: int = 1, *, step_seeds: bool = True
) -> Replica:
    return Replica(initial(), given.rule, secret=secret, step_seeds=step_seeds, threads=threads)


def directions(seed: int, width: int) -> np.ndarray:
    """The seeds of a step's directions, uint64 [P], by splitmix64's definition with Python's whole
    numbers.
    """
    found, ones = [], (1 << 64) - 1
    for p in range(width):
        x = (int(seed) + p + 0x9E3779B97F4A7C15) & ones
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ones
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ones
        found.append(x ^ (x >> 31))
    return np.array(found, np.uint64)


def ledger(given: SeededSettings, folder: Path | None = None, **options: Any) -> Ledger:
    return Ledger.create(folder, header(given), **options)


def header(given: SeededSettings) -> Header:
    rule = given.rule
    model = Model(D, "layout", "initial")
    return Header(
        {"shared": model},
        rule.law,
        rule.momentum,
        rule.damped,
        step_seeds=True,
        optimizer=rule.optimizer,
        beta2=rule.beta2,
        v0=rule.v0,
        epoch=rule.epoch,
    )


def server(
    ledger: Ledger,
    given: SeededSettings,
    *,
    clients: int = CLIENTS,
    cohort: int = 3,
    model: bool = False,
    pull_after: int | None = None,
    weights: np.ndarray | None = None,
    agent: bool = False,
) -> DecomflServer:
    return DecomflServer(
        Cohorts(clients, cohort, KEY, given.rule.epoch or None),
        Updates(
            ledger, given, clients, model=replica(given) if model else None, pull_after=pull_after
        ),
        weights=weights,
        agent=agent,
    )


def pull_server(
    ledger: Ledger, given: SeededSettings, *, clients: int = CLIENTS, pull_after: int | None = None
) -> SeededPullServer:
    model = replica(given) if pull_after is not None else None
    return SeededPullServer(Updates(ledger, given, clients, model=model, pull_after=pull_after))


def with_ledger(
    make: Callable[..., Any], given: SeededSettings, folder: Path | None = None, **options: Any
) -> tuple[Ledger, Any]:
    """Return a new ledger and the server that writes it."""
    own = ledger(given, folder)
    return own, make(own, given, **options)


def shared(
    updates: UpdateSource,
    given: SeededSettings,
    *,
    clients: int = CLIENTS,
    secret: Key | None = None,
    threads: int = 1,
) -> SharedClients:
    first = replica(given, secret, threads)
    objectives = [objective() for _ in range(threads)]
    return SharedClients(first, updates, LocalSteps(objectives, parts(clients), given))


def separate(
    updates: UpdateSource,
    given: SeededSettings,
    *,
    clients: int = CLIENTS,
    secret: Key | None = None,
    revert: Revert = "restore",
) -> SeparateClients:
    return SeparateClients(
        [objective()], replica(given, secret), updates, parts(clients), given, revert=revert
    )


class Silence:
    """An update source that tells nothing: who agrees with others nevertheless has all it knows
    from messages.
    """

    def since(self, version: int, until: int | None = None) -> Slice:
        assert until is not None
        return Slice(version, until, *(np.zeros(0, dtype) for dtype in COLUMNS.values()))


def rounds(
    party: DecomflServer, client_group: ClientGroup, count: int
) -> Iterator[tuple[Sequence[Order], list[Upload]]]:
    """Play rounds; yield each with its orders and uploads, after it has closed."""
    orders: Sequence[Order] = party.first_orders()
    for _ in range(count):
        uploads = client_group.process(orders)
        assert [u.client for u in uploads] == [o.client for o in orders]
        given, orders = orders, [o for u in uploads for o in party.receive(u)]
        yield given, uploads


class SlowModel:
    """Pairs applied to float32 parameters in numpy, one product and one sum per element: no code of
    the library but the generator's definition.
    """

    def __init__(self, given: SeededSettings, secret: Key | None = None) -> None:
        self._given, self._secret = given, secret
        self.x = initial().numpy().copy()
        vectors = {"sgd": 1, "signsgd": 0, "adam": 3, "svrg": 2}[given.rule.optimizer]
        self.kept = np.zeros((vectors, D), np.float32)
        if given.rule.optimizer == "adam":
            self.kept[1:] = given.rule.v0
        self.version = 0

    def direction(self, seed: int) -> tuple[np.ndarray, float]:
        """Return the base direction, float32 [d], and the factor that its law puts before it."""
        law = self._given.rule.law
        if law == "rademacher":
            return philox.signs(seed, 0, D), 1.0
        z = philox.normals(seed, 0, D)
        factor = 1.0
        if law == "sphere":
            total = 0.0
            for value in z.tolist():
                total += value * value
            factor = float(np.sqrt(D / total))
        return z, factor

    def update(self, seeds_K: np.ndarray, scalars_KP: np.ndarray) -> None:
        """Apply one update of the ledger, whose steps have these seeds."""
        self.version += 1
        if self._given.rule.epoch and self.version % self._given.rule.epoch == 1:
            all_seeds = np.concatenate(
                [directions(seed, scalars_KP.shape[1]) for seed in seeds_K.tolist()]
            )
            self.kept = np.stack([self.x, self._gradient(all_seeds, scalars_KP.ravel())])
            return
        for seed, scalars in zip(seeds_K.tolist(), scalars_KP, strict=True):
            self.step(directions(seed, len(scalars)), scalars)

    def step(self, seeds: np.ndarray, scalars: np.ndarray) -> None:
        """Apply one step along directions with these seeds, with the step size of update
        `version`.
        """
        rule = self._given.rule
        lr, beta = self._given.lr.at(max(1, self.version)), rule.momentum
        if rule.optimizer != "sgd":
            self._other_step(self._gradient(seeds, scalars), np.float32(lr))
            return
        used = seeds if self._secret is None else shifted(self._secret, seeds)
        x, v = self.x, self.kept[0] * np.float32(beta)
        for seed, scalar in zip(used.tolist(), scalars.astype(np.float64).tolist(), strict=True):
            z, factor = self.direction(seed)
            if beta:
                v = v + np.float32(scalar / len(used) * (1 - beta) * factor) * z
            else:
                x = x - np.float32(lr * scalar / len(used) * factor) * z
        self.x, self.kept = x - np.float32(lr) * v if beta else x, v[None]

    def _gradient(self, seeds: np.ndarray, scalars: np.ndarray) -> np.ndarray:
        """Return mean_p g_p z_p, float32 [d]."""
        used = seeds if self._secret is None else shifted(self._secret, seeds)
        g = np.zeros(D, np.float32)
        for seed, scalar in zip(used.tolist(), scalars.astype(np.float64).tolist(), strict=True):
            z, factor = self.direction(seed)
            g = g + np.float32(scalar / len(used) * factor) * z
        return g

    def _other_step(self, g: np.ndarray, lr: np.float32) -> None:
        """ZO-SignSGD, ZO-Adam or ZO-SVRG from their papers' formulas."""
        rule = self._given.rule
        if rule.optimizer == "signsgd":
            self.x = self.x - lr * np.sign(g)
        elif rule.optimizer == "adam":
            m, v, largest = self.kept
            m = np.float32(rule.momentum) * m + np.float32(1 - rule.momentum) * g
            v = np.float32(rule.beta2) * v + np.float32(1 - rule.beta2) * (g * g)
            largest = np.maximum(largest, v)
            self.x, self.kept = self.x - lr * (m / np.sqrt(largest)), np.stack([m, v, largest])
        else:
            self.x = self.x - lr * (g + self.kept[1])


def mean(uploads: Sequence[Upload], weights: np.ndarray | None = None) -> np.ndarray:
    """The cohort's average, float32 [K, P], summed in float64 in client order."""
    each = [1.0 if weights is None else float(weights[u.client]) for u in uploads]
    total = 0 * uploads[0].body.values.astype(np.float64)  # type: ignore[attr-defined]
    for weight, upload in zip(each, uploads, strict=True):
        total = total + weight * upload.body.values.astype(np.float64)  # type: ignore[attr-defined]
    return (total / sum(each)).astype(np.float32)


def bits(values: Any) -> bytes:
    """The bits of an array or tensor."""
    return np.ascontiguousarray(np.asarray(values)).tobytes()
