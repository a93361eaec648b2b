"""What makes a run a failure whatever its accuracy says: a model that predicts one class, or none at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow.compute as pc

from raydpzv.records.store import Rows

DIVERGED, CONSTANT, SHARE = "diverged", "constant prediction", "one class' share"


def failure(rows: Rows, shares: Sequence[float]) -> tuple[str, str]:
    """Return why a run's last evaluation is no result, in a word and in a sentence; two empty texts if it is one.

    shares: of the classes among the held-out rows. A loss has diverged where it is no number, or above three times the
    first one (or 1, if that was less).
    """
    evaluations = rows["evaluation"].filter(pc.equal(rows["evaluation"]["part"], "test")).to_pylist()
    if not evaluations:
        return "", ""
    first, last = evaluations[0], evaluations[-1]
    accuracy, loss = last["accuracy"], last["loss"]
    blown_up = loss > 3 * max(first["loss"], 1.0)
    if not (math.isfinite(loss) and math.isfinite(accuracy)):
        return DIVERGED, f"the test loss is {loss:g}; lower the step sizes"
    if last["top_share"] == 1.0:
        why = f"every held-out row is predicted as one class: accuracy {accuracy:.4g} is that class' share"
        return CONSTANT, f"{why}, and the test loss has grown to {loss:.3g}" if blown_up else why
    if blown_up:
        return (
            DIVERGED,
            f"the test loss went from {first['loss']:.3g} to {loss:.3g}; lower the step sizes",
        )
    if any(math.isclose(accuracy, share, rel_tol=1e-6) for share in shares):
        return (
            SHARE,
            f"accuracy {accuracy:.4g} is exactly the share of one class; look at it before you believe it",
        )
    return "", ""
