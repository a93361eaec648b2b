from __future__ import annotations

from typing import Any

import pyarrow as pa

from raydpzv.records.protocol_costs import PHASES, Phase, phases
from raydpzv.records.schema import SCHEMAS
from raydpzv.wire import secure_sums
from raydpzv.wire.messages import Body


def table(name: str, *rows: tuple[Any, ...]) -> pa.Table:
    schema = SCHEMAS[name]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def test_bytes_and_seconds_are_summed_by_phase() -> None:
    message = table(
        "message",
        *[(1, silo, "down", "Modulus", 0.0, 0.0, 10) for silo in range(2)],
        *[(1, silo, "up", "AgreementKey", 0.0, 0.0, 3) for silo in range(2)],
        *[(round, 0, "down", "Weights", 0.0, 0.0, 100) for round in (1, 2)],
        *[(round, 0, "up", "MaskedSum", 0.0, 0.0, 40) for round in (1, 2)],
        (2, 1, "up", "DroppedOut", 0.0, 0.0, 0),
    )
    work = table(
        "work",
        *[(1, silo, "AgreementKey", 0.25) for silo in (0, 1, -1)],
        *[(round, 0, "MaskedSum", 2.0) for round in (1, 2)],
        *[(round, -1, "MaskedSum", 0.5) for round in (1, 2)],
    )
    assert phases(message, work) == [
        Phase("key agreement", 4, 6, 20, 0.5, 0.25),
        Phase("failed silos", 1, 0, 0, 0.0, 0.0),
        Phase("rounds", 4, 80, 200, 4.0, 1.0),
    ]
    assert phases(table("message"), table("work")) == []


def test_every_message_of_the_set_up_has_a_phase() -> None:
    named = {kind for kinds in PHASES.values() for kind in kinds}
    made = {
        name
        for name, found in vars(secure_sums).items()
        if isinstance(found, type) and issubclass(found, Body)
    }
    assert named - made == {"Acknowledged"}
    of_rounds = {name for name in made if name.endswith(("Sum", "Model", "CatchUp"))}
    assert made - named == of_rounds | {"Body", "CatchUp", "Weights", "SampledWeights"}
