"""A small horizontal problem, and its losses written out in float64 as a second opinion."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from raydpzv.data.horizontal import Parts, split_rows
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.keys import Key
from raydpzv.methods.horizontal.compression import Codec, Quantised, TopK, Whole
from raydpzv.methods.horizontal.fedavg import FedAvgServer
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.methods.roles import ClientGroup, Order, Upload
from raydpzv.models.whole import whole
from raydpzv.settings.sections_horizontal import HorizontalSplitSection

KEY = Key(23)
CLIENTS, ROWS, FEATURES, CLASSES = 5, 60, 6, 3
CODECS: list[Codec] = [Whole(), Quantised(KEY), TopK(0.2)]


def _make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Features [N, F] around one centre per class, and the classes [N]."""
    generator = (KEY / "data").generator()
    y = np.arange(ROWS) % CLASSES
    centres = generator.standard_normal((CLASSES, FEATURES)) * 2
    x = (centres[y] + generator.standard_normal((ROWS, FEATURES))).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


X, Y = _make_data()


def two_layers() -> nn.Module:
    return whole("mlp", (FEATURES,), (7,), CLASSES)


def softmax_regression() -> nn.Module:
    return whole("logistic", (FEATURES,), (), CLASSES)


def objective(make: Callable[[], nn.Module] = two_layers) -> TorchObjective:
    return TorchObjective(make, KeptRows(X, Y))


def initial(make: Callable[[], nn.Module] = two_layers) -> torch.Tensor:
    return objective(make).initial(KEY / "initial")


def parts(clients: int = CLIENTS) -> Parts:
    """Clients of different sizes, so that a mean by rows is not the plain one."""
    return split_rows(
        Y.numpy(), HorizontalSplitSection(clients=clients, sizes="drawn", least=2), KEY / "parts"
    )


def server(
    *,
    clients: int = CLIENTS,
    cohort: int | None = None,
    codec: Codec | None = None,
    make: Callable[[], nn.Module] = two_layers,
    lr: float = 1.0,
    weights: np.ndarray | None = None,
) -> FedAvgServer:
    cohorts = Cohorts(clients, cohort or clients, KEY / "server")
    return FedAvgServer(cohorts, initial(make).numpy(), codec or Whole(), lr=lr, weights=weights)


def run(
    party: FedAvgServer, client_group: ClientGroup, rounds: int
) -> tuple[np.ndarray, list[Upload]]:
    """Return the model after some rounds and all uploads; every answer is as long as its order
    promised.
    """
    uploads: list[Upload] = []
    orders: Sequence[Order] = party.first_orders()
    for _ in range(rounds):
        answers = client_group.process(orders)
        assert [a.client for a in answers] == [o.client for o in orders]
        for order, answer in zip(orders, answers, strict=True):
            assert order.upload_bytes == answer.body.wire_bytes == len(answer.body.encode())
            assert order.body.wire_bytes == 4 * party.parameters().size
        uploads += answers
        replies = [party.receive(answer) for answer in answers]
        assert all(len(reply) == 0 for reply in replies[:-1])
        orders = replies[-1]
    assert party.updates == rounds
    return party.parameters(), uploads


def batch_of(parts: Parts, client: int, round: int, step: int, batch: int) -> np.ndarray:
    """The rows of one local step, by the address as it is laid down."""
    own = parts.rows(client).copy()  # torch warns of read-only arrays
    if len(own) <= batch:
        return own
    address = Key(KEY.seed, (*KEY.path, "rows", client, round, step))
    return own[address.generator().choice(len(own), batch, replace=False)]


def double_loss_and_gradient(
    make: Callable[[], nn.Module],
    at: np.ndarray,
    rows: np.ndarray,
    data: tuple[torch.Tensor, torch.Tensor] = (X, Y),
) -> tuple[float, np.ndarray]:
    """Loss and gradient by autograd in float64."""
    x, y = data
    module = make().double()
    nn.utils.vector_to_parameters(torch.from_numpy(at.astype(np.float64)), module.parameters())
    loss = functional.cross_entropy(module(x[rows].double()), y[rows])
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return float(loss.detach()), torch.cat([g.flatten() for g in gradients]).numpy()


def regression_loss(at: np.ndarray, rows: np.ndarray) -> float:
    """Mean cross-entropy of softmax regression by numpy alone; at: weights [K, F], then biases
    [K].
    """
    at = at.astype(np.float64)
    weights, biases = at[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), at[CLASSES * FEATURES :]
    scores = X.numpy()[rows].astype(np.float64) @ weights.T + biases
    log_sums = np.log(np.exp(scores).sum(1))
    return float(np.mean(log_sums - scores[np.arange(len(rows)), Y.numpy()[rows]]))
