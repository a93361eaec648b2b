"""What makes a run a failure whatever its accuracy says: a model that predicts one class, or none at all.

And what is suspicious in a run that is none: a model that all but predicts one class, one far below what it was, one
that has not passed its control.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow.compute as pc

from raydpzv.records.store import Rows

DIVERGED, CONSTANT, SHARE = "diverged", "constant prediction", "one class' share"
COLLAPSED_TOP = 0.9
"""Share of the rows predicted as one class from which a model is suspect; a sound one of two equal classes has 0.5."""
COLLAPSED_EXCESS = 0.8
"""... and how much of what is not the largest class must be predicted as it too. Where 95 % of the rows are one class,
a sound model predicts it about as often, so that 90 % alone would say nothing."""
FALLEN = 0.2
"""Share of its best accuracy that a run must have lost. Of the best of many evaluations on a few dozen rows, a tenth is
luck (two standard errors at 90 % of 36 rows); a fifth is not."""


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


def collapsed(top_share: float, largest_class_share: float) -> bool:
    """Tell whether a model all but predicts one class, which the data do not explain. Shares of the held-out rows.

    NaN, which stands for what is not known, is no collapse.
    """
    excess = top_share - largest_class_share
    return top_share >= COLLAPSED_TOP and excess >= COLLAPSED_EXCESS * (1 - largest_class_share) > 0


def fallen(best: float, accuracy: float) -> bool:
    """Tell whether a final accuracy is far below the best of the same run; NaN is not."""
    return best - accuracy >= FALLEN * best > 0


def not_above(accuracy: float, control: float) -> bool:
    """Tell whether a run has not passed its control, whose clients are never trained; NaN on either side is not."""
    return accuracy <= control
