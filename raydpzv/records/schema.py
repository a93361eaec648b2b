"""The row types: one pyarrow schema each.

Times are seconds of the run's own clock (virtual or wall) since its start. Under the wall clock
they vary from run to run; under the virtual clock every column is reproducible bit for bit. The
digest covers them all but faults and what follows from others (`raydpzv.records.store.DIGESTED`).

M clients, counted from 0; `round` counts the updates from 1: in vertical methods every upload
served is one, in horizontal methods the uploads of a cohort are one together (or each is, if
asynchronous).
"""

from __future__ import annotations

import pyarrow as pa

from raydpzv.engine.split_model import AGE_BINS

MESSAGE = pa.schema(
    [
        ("round", pa.int64()),  # the server's round when the message was served (up) or sent (down)
        ("client", pa.int32()),
        ("direction", pa.string()),  # "up" or "down"
        ("kind", pa.string()),  # the body's class name
        ("sent", pa.float64()),
        ("arrived", pa.float64()),
        ("bytes", pa.int64()),  # tensor bytes on the wire (DPZV journal Eq. 23)
    ]
)

SERVICE = pa.schema(
    [
        ("round", pa.int64()),
        ("client", pa.int32()),
        ("step", pa.int64()),  # the client's own counter of uploads, from 0
        ("due", pa.float64()),  # the epoch of the client's activation clock
        (
            "woke",
            pa.float64(),
        ),  # when it started its work (later than `due` if a round trip was running)
        ("late", pa.bool_()),  # the epoch fell into a running round trip
        ("served", pa.float64()),  # when the server had finished with the upload
        (
            "applied",
            pa.float64(),
        ),  # when the client had applied the reply; NaN if the run ended before
        (
            "loss",
            pa.float64(),
        ),  # the server's training loss on this upload's batch; NaN if not computed
    ]
)

STALENESS = pa.schema(
    [
        ("round", pa.int64()),
        ("client", pa.int32()),  # whose cached embeddings were used
        ("rows", pa.int64()),  # cached rows used
        ("missing", pa.int64()),  # rows never uploaded yet (zeros in the table); they have no age
        ("age_sum", pa.int64()),  # server rounds since each used row was refreshed, summed
        ("age_max", pa.int64()),
        ("age_bins", pa.list_(pa.int32(), AGE_BINS)),
    ]
)

SYNC = pa.schema(
    [
        ("round", pa.int64()),  # the update that the client's upload became part of
        ("client", pa.int32()),
        ("read", pa.int64()),  # updates in the model it worked at
        (
            "lag",
            pa.int64(),
        ),  # updates made between its reading and its update; 0 in synchronous rounds
        ("missed", pa.int64()),  # updates it replayed first
        ("pairs", pa.int64()),  # (seed, scalar) pairs it got for that
        ("pulled", pa.bool_()),  # it took the whole model instead
    ]
)

RELEASE = pa.schema(
    [
        ("round", pa.int64()),
        ("client", pa.int32()),  # who receives the released value
        ("step", pa.int64()),  # of the upload that it answers
        ("perturbation", pa.int32()),
        ("value", pa.float64()),  # the released number: after the noise, never before
        # "gaussian", "rounded gaussian" (whole numbers, in units of a grid) or "none"
        ("mechanism", pa.string()),
        ("source", pa.string()),  # "system", "seeded", "recorded" or "none"
        (
            "sigma",
            pa.float64(),
        ),  # standard deviation of the noise on the released mean, or on whole numbers
        (
            "sensitivity_replace",
            pa.float64(),
        ),  # change of the mean when one record's term is replaced
        ("sensitivity_add_remove", pa.float64()),
        ("batch", pa.int64()),  # records in the batch
        (
            "nonfinite",
            pa.int64(),
        ),  # slopes that were NaN or infinite and were mapped to 0 before the clip
        (
            "epsilon_paper",
            pa.float64(),
        ),  # what the paper claims is spent so far; NaN without calibration
        (
            "epsilon_client",
            pa.float64(),
        ),  # what is proved so far against the clients; infinity if nothing is
    ]
)

MU_COLUMNS = ("epsilon_paper", "epsilon_client")
"""Columns of release rows for which a recorder is given μ: ε is worked out for all rows of a drain
at once.
"""

USER_EPSILON = pa.schema(
    [
        ("round", pa.int64()),  # after which ε of one user (add or remove) is this, or less
        ("external", pa.float64()),  # against anyone who sees the released models
        ("client", pa.float64()),  # against one silo
        ("server", pa.float64()),
    ]
)

ATTEMPT = pa.schema(
    [
        (
            "round",
            pa.int64(),
        ),  # that silos try together; an attempt starts again with a number one higher
        ("number", pa.int32()),
        ("silos", pa.int32()),  # that take part
    ]
)

WORK = pa.schema(
    [
        ("round", pa.int64()),
        ("client", pa.int32()),  # -1: the server
        ("kind", pa.string()),  # of the upload that was made, or served: the body's class name
        ("cpu", pa.float64()),  # CPU seconds of the process; of silos that work in one, alike
    ]
)

PAIR = pa.schema(
    [
        ("user", pa.int64()),
        ("silo", pa.int32()),
        ("records", pa.int64()),  # of the user in the silo
    ]
)

EVALUATION = pa.schema(
    [
        ("round", pa.int64()),
        ("time", pa.float64()),
        ("part", pa.string()),  # "test", or "validation" after it
        ("accuracy", pa.float64()),
        ("loss", pa.float64()),
        (
            "top_share",
            pa.float64(),
        ),  # share of the most predicted class: 1.0 is a constant prediction
    ]
)

AUC = pa.schema(
    [
        ("round", pa.int64()),
        ("time", pa.float64()),
        ("part", pa.string()),  # as in the evaluation's row
        (
            "roc_auc",
            pa.float64(),
        ),  # area under the ROC curve of class 1; NaN where a score is not finite
        ("pr_auc", pa.float64()),  # average precision
    ]
)

BALANCED_ACCURACY = pa.schema(
    [
        ("round", pa.int64()),
        ("time", pa.float64()),
        ("part", pa.string()),  # as in the evaluation's row
        # of two classes: mean of the shares predicted right; NaN as an area
        ("balanced_accuracy", pa.float64()),
    ]
)

CONCORDANCE = pa.schema(
    [
        ("round", pa.int64()),
        ("time", pa.float64()),
        (
            "part",
            pa.string(),
        ),  # as in the evaluation's row, whose accuracy and top_share are NaN then
        ("concordance", pa.float64()),  # of survival times; NaN where a score is not finite
    ]
)

MEASURE = pa.schema(
    [
        ("round", pa.int64()),
        ("time", pa.float64()),
        ("part", pa.string()),  # as in the evaluation's row
        ("name", pa.string()),  # "rmse" and "r2" of numbers, or what the user's metrics name
        ("value", pa.float64()),  # NaN where it is not defined
    ]
)

NUMBERS = pa.schema(
    [
        ("round", pa.int64()),  # an evaluation's: all messages up to and with this update
        ("up", pa.int64()),  # numbers sent by the clients so far, whatever their width
        ("down", pa.int64()),
    ]
)

FAULT = pa.schema(
    [
        ("time", pa.float64()),
        ("party", pa.string()),
        ("kind", pa.string()),
        ("message", pa.string()),
    ]
)

CLOCK = pa.schema(
    [
        (
            "time",
            pa.float64(),
        ),  # when it was measured, before the first work and after the last (wall clock)
        ("party", pa.string()),  # "client 0", ... or "host 0", ...
        ("node", pa.string()),  # Ray's number of the machine it is on
        (
            "offset",
            pa.float64(),
        ),  # seconds that the machine's clock is ahead of that of the server's machine
        (
            "error",
            pa.float64(),
        ),  # by which the offset may be off: half of what question and answer took
    ]
)

LEG = pa.schema(
    [
        ("leg", pa.int32()),  # of a continued run under the wall clock: 2, 3, ...
        ("round", pa.int64()),  # the updates made before it
        (
            "time",
            pa.float64(),
        ),  # of the run's clock, which stands still between two legs, when it began
        (
            "gap",
            pa.float64(),
        ),  # real seconds from the last thing on record until then; NaN if nobody knows
        (
            "recovered",
            pa.int64(),
        ),  # updates before it that only the ledger had, which were served again
    ]
)

MODEL = pa.schema(
    [
        ("party", pa.string()),  # "server" or "client 0", "client 1", ...
        ("round", pa.int64()),
        ("parameters", pa.int64()),
        ("sha256", pa.string()),  # of the parameters' bytes
    ]
)

SCHEMAS: dict[str, pa.Schema] = {
    "message": MESSAGE,
    "service": SERVICE,
    "staleness": STALENESS,
    "sync": SYNC,
    "release": RELEASE,
    "user_epsilon": USER_EPSILON,
    "attempt": ATTEMPT,
    "work": WORK,
    "pair": PAIR,
    "evaluation": EVALUATION,
    "auc": AUC,
    "balanced_accuracy": BALANCED_ACCURACY,
    "concordance": CONCORDANCE,
    "measure": MEASURE,
    "numbers": NUMBERS,
    "fault": FAULT,
    "clock": CLOCK,
    "leg": LEG,
    "model": MODEL,
}

EMPTY = {name: pa.Table.from_batches([], schema) for name, schema in SCHEMAS.items()}
"""Tables without rows; `Schema.empty_table` would import pandas."""
