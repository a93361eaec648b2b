"""The server's model and the ways to train it."""

# M clients, B batch, E embedding width, K classes

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raydpzv.engine.scores import measured, with_own
from raydpzv.engine.split_model import HeadSettings, Metrics
from raydpzv.errors import InputError
from raydpzv.keys import SERVER_PARTY, Key, direction_seed
from raydpzv.models.flat import FlatModel
from raydpzv.models.losses import Loss
from raydpzv.models.momentum import MomentumDescent
from raydpzv.registry import LOSSES
from raydpzv.zo.perturbation import perturbation, slope
from raydpzv.zo.update import Descent, Rule, Step


class Head:
    """w_0 and its update: `sgd` backpropagates the batch, `zo` takes its own zeroth-order step,
    `frozen` stays.
    """

    def __init__(
        self, model: FlatModel, settings: HeadSettings, key: Key, loss: str = "cross_entropy"
    ) -> None:
        self.model, self._settings, self._key = model, settings, key
        self._loss: Loss = LOSSES[loss]
        self._training = settings.training
        self._steps = 0
        if self._training in ("sgd", "dp_sgd"):
            self._gradient_descent = MomentumDescent(model.flat, settings.lr, settings.momentum)
        if self._training in ("zo", "joint"):
            self._perturb = perturbation(model.module, model.flat, model.offsets)
            self._descent = Descent(
                model.flat, Rule(settings.law, settings.momentum).on(model.shapes)
            )

    def state(self) -> dict[str, Any]:
        """Return copies of the parameters and of what their training keeps, float32 [1 + V, d_0],
        and its steps.
        """
        return {"head": torch.stack(self._vectors()).detach().cpu().numpy(), "steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over another head's state."""
        copied(state["head"], self._vectors())
        self._steps = state["steps"]

    def _vectors(self) -> list[torch.Tensor]:
        flat = self.model.flat
        if self._training in ("sgd", "dp_sgd"):
            return [flat, *self._gradient_descent.kept]
        return [flat, *self._descent.kept] if self._training in ("zo", "joint") else [flat]

    def step_size(self, lr: float) -> None:
        """Take steps of this size from now on, but for those of `descend`, which say their own."""
        self._settings = replace(self._settings, lr=lr)
        if self._training in ("sgd", "dp_sgd"):
            self._gradient_descent.lr = lr

    def losses(
        self, embeddings_RME: torch.Tensor, labels_B: torch.Tensor, batches: int = 1
    ) -> torch.Tensor:
        """Return the loss of every row, [R], without a gradient; R rows: those of B labels, in so
        many batches.

        Batches stay apart: a loss that compares the records of a batch (Cox) sees one at a time.
        """
        with torch.no_grad():
            scores_RK = self.model.module(embeddings_RME.flatten(1))
            if self._loss.by_record:
                return self._loss.rows(
                    scores_RK, labels_B.repeat(batches, *[1] * (labels_B.dim() - 1))
                )
            return self._loss.rows(
                scores_RK.unflatten(0, (batches, len(labels_B))), labels_B
            ).flatten()

    def losses_along(
        self, embeddings_BME: torch.Tensor, labels_B: torch.Tensor, seed: int, amount: float
    ) -> torch.Tensor:
        """Return the loss of every row at w_0 + amount · v, v made from its seed, [B]."""
        with self._perturb.at(self._descent.direction(seed), amount):
            return self.losses(embeddings_BME, labels_B)

    def row_gradients(self, embeddings_BME: torch.Tensor, labels_B: torch.Tensor) -> np.ndarray:
        """Return every row's own gradient of the loss by the parameters, float32 [B, d_0].

        Raises InputError for a module or a loss of the user's that torch cannot map over rows.
        """
        module, names = self.model.module, list(self.model.offsets)

        def loss(
            parameters: tuple[torch.Tensor, ...], row_F: torch.Tensor, label: torch.Tensor
        ) -> torch.Tensor:
            given = dict(zip(names, parameters, strict=True))
            scores_1K = torch.func.functional_call(module, given, (row_F[None],))
            return self._loss.mean(scores_1K, label[None])

        held = tuple(p.detach() for p in module.parameters())
        try:
            gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(
                held, embeddings_BME.flatten(1), labels_B
            )
        except (
            RuntimeError,
            NotImplementedError,
            InputError,
        ) as error:  # the last of the user's loss
            raise _unmapped(error, module) from error
        return torch.cat([g.flatten(1) for g in gradients], 1).cpu().numpy()

    def descend(self, step: Step) -> None:
        """Take a zeroth-order step by given scalars."""
        self._descent.apply([step])

    def descend_by(self, gradient: torch.Tensor) -> None:
        """Take a first-order step along a given gradient, float32 [d_0]."""
        self._gradient_descent.step([gradient])

    def train(self, embeddings_BME: torch.Tensor, labels_B: torch.Tensor) -> float:
        """Take one step on a batch and return the batch's mean loss before it (NaN for an empty
        batch).
        """
        if len(labels_B) == 0:
            return math.nan
        if self._training == "sgd":
            loss, _ = self.backward(embeddings_BME, labels_B)
            return loss
        losses_B = self.losses(embeddings_BME, labels_B)
        if self._training == "zo":
            self._zeroth_order_step(embeddings_BME, labels_B, losses_B)
        return float(losses_B.mean())

    def backward(
        self,
        embeddings_BME: torch.Tensor,
        labels_B: torch.Tensor,
        *,
        for_embeddings: bool = False,
        scale: float = 1.0,
    ) -> tuple[float, torch.Tensor | None]:
        """Take one SGD step; return the mean loss and, if asked, its gradient by the embeddings [B,
        M, E].

        scale: of the step size.
        """
        parameters = self.model.parameters
        with torch.enable_grad():
            inputs_BME = embeddings_BME.detach().requires_grad_(for_embeddings)
            loss = self._loss.mean(self.model.module(inputs_BME.flatten(1)), labels_B)
            wanted = [*parameters, inputs_BME] if for_embeddings else parameters
            gradients = torch.autograd.grad(loss, wanted)
        self._gradient_descent.step(gradients[: len(parameters)], scale)
        return float(loss.detach()), gradients[-1] if for_embeddings else None

    def embedding_gradient(
        self, embeddings_BME: torch.Tensor, labels_B: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean loss's gradient by the embeddings [B, M, E]; take no step."""
        with torch.enable_grad():
            inputs_BME = embeddings_BME.detach().requires_grad_()
            loss = self._loss.mean(self.model.module(inputs_BME.flatten(1)), labels_B)
            return torch.autograd.grad(loss, inputs_BME)[0]

    def evaluate(
        self, embeddings_MNE: Sequence[np.ndarray], labels_N: torch.Tensor, metrics: str = ""
    ) -> Metrics:
        """Score rows; metrics: the name of the user's."""
        device = self.model.flat.device
        joined = np.concatenate([np.asarray(e, np.float32) for e in embeddings_MNE], axis=1)
        with torch.no_grad():
            scores_NK = self.model.module(torch.from_numpy(joined).to(device))
            mean = float(self._loss.mean(scores_NK, labels_N))
        scores_NK, labels_N = scores_NK.cpu(), labels_N.cpu()
        return with_own(
            measured(scores_NK, labels_N, self._loss, mean), metrics, scores_NK, labels_N
        )

    def _zeroth_order_step(
        self, embeddings_BME: torch.Tensor, labels_B: torch.Tensor, losses_B: torch.Tensor
    ) -> None:
        """w_0 <- w_0 - η_0 mean_i(slope_i) u_0. DPZV (journal) Section IV-B, operation i; losses_B:
        those at w_0.
        """
        seed = direction_seed(self._key, SERVER_PARTY, self._steps)
        settings = self._settings
        direction = self._descent.direction(seed)
        self._steps += 1
        with self._perturb.at(direction, settings.smoothing):
            plus_B = self.losses(embeddings_BME, labels_B)
        if settings.one_sided:
            slopes_B = (plus_B - losses_B) / settings.smoothing
        else:
            with self._perturb.at(direction, -settings.smoothing):
                minus_B = self.losses(embeddings_BME, labels_B)
            slopes_B = slope(plus_B, minus_B, settings.smoothing)
        self._descent.apply([Step([seed], [float(slopes_B.mean())], settings.lr)])


def _unmapped(error: Exception, module: torch.nn.Module) -> InputError:
    """Return what to say of a head or a loss that torch cannot map over rows: where it fails, and
    the way out.
    """
    names, cause = (
        {id(layer): name for name, layer in module.named_modules()},
        error.__cause__ or error,
    )
    place = (
        "model.loss: your loss" if isinstance(error, InputError) else "model.head: its forward call"
    )
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        layer = frame.f_locals.get(code.co_varnames[0]) if code.co_name == "forward" else None
        if layer is not None and id(layer) in names:
            name = names[id(layer)]
            of = f'layer "{name}"' if name else "forward call"
            file = Path(code.co_filename).name
            place = f"model.head: its {of} ({type(layer).__name__}), line {line} of {file},"
    text = " ".join(str(cause).split()).partition(". ")[0]
    # of branches the cure says enough
    why = "" if text.startswith("vmap") else f" ({type(cause).__name__}: {text})"
    return InputError(
        f'{place} cannot be mapped over records, whose own gradients method.server = "dp_sgd" '
        f"clips{why}; compute "
        "without branches on values, item() and random numbers, such as with torch.where in place "
        "of if, or use another method.server"
    )


def copied(state: np.ndarray, vectors: Sequence[torch.Tensor]) -> None:
    """Copy float32 [V, d] into V vectors."""
    with torch.no_grad():
        for vector, values in zip(vectors, state, strict=True):
            vector.copy_(torch.tensor(values))
