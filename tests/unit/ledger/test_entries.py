"""Appends that are refused, slices, the digest chain re-derived by hand, and the header."""

import hashlib
import json
import re
import struct
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest

from raydpzv.errors import DataError, InputError
from raydpzv.ledger.entries import SHARED, checked, link, links
from raydpzv.ledger.header import Header, Model
from raydpzv.ledger.ledger import Ledger
from raydpzv.ledger.memory import WorkingSet
from tests.helpers.ledger_samples import HEADER, assert_holds, expected, fill, update
from tests.helpers.loading import refusal

GOOD = {
    "party": 0,
    "read": 0,
    "lr": 0.1,
    "step": [0, 0],
    "perturbation": [0, 1],
    "seed": [1, 2],
    "scalar": [1.0, 2.0],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"party": -2}, "party"),
        ({"party": 2**31}, "party"),
        ({"read": 1}, "read: wanted a version from 0 to 0"),
        ({"read": -1}, "read"),
        ({"lr": 0.0}, "lr"),
        ({"lr": -1.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"lr": float("inf")}, "lr"),
        ({"scalar": [1.0, float("nan")]}, "scalar: wanted finite"),
        ({"scalar": [1.0, float("inf")]}, "scalar: wanted finite"),
        ({"scalar": [1.0, 0.1]}, "scalar: wanted float32"),
        ({"scalar": [1.0, 1e300]}, "scalar: wanted float32"),
        ({"scalar": ["a", "b"]}, "scalar: wanted numbers"),
        ({"scalar": [[1.0, 2.0]]}, "scalar: wanted one value per entry"),
        ({"scalar": [1.0]}, "one length"),
        ({"step": [], "perturbation": [], "seed": [], "scalar": []}, "at least 1"),
        ({"seed": [1, -2]}, "seed: wanted whole numbers from 0"),
        ({"seed": [1, 2**64]}, "seed: wanted whole numbers"),
        ({"seed": np.array([1.0, 2.0])}, "seed: wanted whole numbers"),
        ({"perturbation": [0, 2**31]}, "perturbation: wanted whole numbers"),
        ({"perturbation": [1, 0]}, "ascending"),
        ({"perturbation": [0, 0]}, "ascending"),
        ({"step": [1, 0]}, "ascending"),
        ({"step": [-1, 0]}, "ascending"),
    ],
)
def test_an_append_that_does_not_fit_is_refused_and_leaves_the_ledger_as_it_was(
    tmp_path, change, says
):
    for folder in (None, tmp_path / "ledger"):
        with Ledger.create(folder, HEADER) as ledger:
            before = ledger.digest
            with refusal(InputError, says):
                ledger.append(**GOOD | change)
            assert (ledger.version, ledger.entries, ledger.digest) == (0, 0, before)
            assert ledger.append(**GOOD) == 1


def test_large_seeds_keep_every_bit_from_lists_and_arrays():
    seeds = [2**64 - 1, 1, 2**53 + 1, 2**63]
    rest = {
        "party": SHARED,
        "read": 0,
        "lr": 1.0,
        "step": [0] * 4,
        "perturbation": range(4),
        "scalar": [0.5] * 4,
    }
    ledger = Ledger.create(None, HEADER)
    for given in (seeds, tuple(seeds), np.array(seeds, np.uint64), np.array(seeds, object)):
        ledger.append(**rest, seed=given)
    assert ledger.since(0).seed.tolist() == seeds * 4


def test_a_slice_is_the_columns_in_order_without_a_copy():
    ledger = fill(Ledger.create(None, HEADER), 30)
    whole = ledger.since(0)
    assert_holds(whole, 0, 30)
    assert_holds(ledger.since(11, 23), 11, 23)
    assert_holds(ledger.since(30), 30, 30)
    assert np.shares_memory(ledger.since(3).seed, whole.seed)
    with pytest.raises(ValueError, match="read-only"):
        whole.scalar[0] = 1.0


@pytest.mark.parametrize(("version", "until"), [(31, None), (31, 31), (0, 31), (5, 4), (-1, 3)])
def test_a_range_that_is_not_there_is_refused_at_once(version, until):
    ledger = fill(Ledger.create(None, HEADER), 30)
    for ask in (ledger.since, ledger.pairs):
        with refusal(InputError, "30"):
            ask(version, until)


def test_pairs_counts_what_the_slice_has_also_where_it_is_trimmed():
    ledger = fill(Ledger.create(None, HEADER), 30)
    counts = {(a, b): len(ledger.since(a, b)) for a in range(31) for b in range(a, 31)}
    ledger.trim(20)
    assert {(a, b): ledger.pairs(a, b) for a, b in counts} == counts
    assert ledger.pairs(0) == ledger.entries


def test_one_party_and_the_steps_of_a_slice():
    entries = fill(Ledger.create(None, HEADER), 40).since(4, 36)
    rows = list(zip(*expected(4, 36).values(), strict=True))
    mine = entries.of(1)
    assert mine.seed.tolist() == [row[5] for row in rows if row[1] == 1]
    assert (mine.first, mine.last, len(entries.of(99))) == (4, 36, 0)
    groups = [list(group) for _, group in groupby(rows, key=lambda row: (row[0], row[3]))]
    steps = [(seeds.tolist(), scalars.tolist(), lr) for seeds, scalars, lr in entries.steps()]
    assert steps == [([r[5] for r in g], [r[6] for r in g], g[0][7]) for g in groups]
    assert list(entries.of(99).steps()) == []


def by_hand(header: Header, updates: list[dict]) -> str:
    """The digest by the format's description alone."""
    models = {
        name: {field: value for field, value in vars(model).items() if field != "tensors" or value}
        for name, model in header.models.items()
    }
    fields = vars(header) | {"models": models}
    if header.optimizer == "sgd":
        fields = {k: v for k, v in fields.items() if k not in ("optimizer", "beta2", "v0", "epoch")}
    if not header.pool:
        fields = {k: v for k, v in fields.items() if k != "pool"}
    content = {"format": 2 if fields.pop("step_seeds") else 1, "header": fields}
    chain = hashlib.sha256(json.dumps(content, sort_keys=True, indent=1).encode()).digest()
    for round, u in enumerate(updates, 1):
        data = struct.pack("<qiqdq", round, u["party"], u["read"], u["lr"], len(u["seed"]))
        for name, code in (("step", "q"), ("perturbation", "i"), ("seed", "Q"), ("scalar", "f")):
            data += struct.pack(f"<{len(u[name])}{code}", *u[name].tolist())
        chain = hashlib.sha256(chain + data).digest()
    return chain.hex()


def test_the_digest_is_the_chain_of_the_format_and_depends_on_every_value_and_the_order(tmp_path):
    updates = [update(1), update(2), update(3) | {"read": 0}, update(4) | {"read": 0}]
    digest = by_hand(HEADER, updates)

    def of(updates, header=HEADER, folder=None, segment=1024):
        with Ledger.create(folder, header, segment=segment) as ledger:
            for one in updates:
                ledger.append(**one)
            return ledger.digest

    assert of(updates) == digest
    by_step, pooled = replace(HEADER, step_seeds=True), replace(HEADER, pool=8)
    for changed in (by_step, pooled):
        assert of(updates, changed) == by_hand(changed, updates) != digest
    assert (
        of(updates, folder=tmp_path / "a", segment=1)
        == of(updates, folder=tmp_path / "b")
        == digest
    )
    swapped = [*updates[:2], updates[3], updates[2]]
    other = {"party": 7, "read": 1, "lr": 0.25}
    changes = [[*updates[:3], updates[3] | {name: value}] for name, value in other.items()]
    changes += [
        [*updates[:3], updates[3] | {name: updates[3][name] + 1}]
        for name in ("step", "seed", "scalar")
    ]
    headers = [replace(HEADER, damped=True), replace(HEADER, momentum=0.25), by_step, pooled]
    adam = replace(HEADER, optimizer="adam", beta2=0.5, v0=1e-7)
    assert of(updates, adam) == by_hand(adam, updates)
    headers += [
        adam,
        replace(adam, beta2=0.25),
        replace(adam, v0=1e-6),
        replace(HEADER, optimizer="svrg", epoch=3),
    ]
    digests = [of(c) for c in (swapped, updates[:3], *changes)] + [of(updates, h) for h in headers]
    assert len({digest, *digests}) == 1 + len(digests)


def test_any_arrow_reader_opens_the_segments(tmp_path):
    with fill(Ledger.create(tmp_path, HEADER, segment=8), 20) as ledger:
        tables = [
            pa.ipc.open_stream(path.read_bytes()).read_all()
            for path in sorted(tmp_path.glob("segment-*"))
        ]
        assert len(tables) == 3
        for name, column in expected(0, 20).items():
            assert pa.concat_tables(t.select([name]) for t in tables)[name].to_pylist() == column
        assert ledger.disk_bytes == sum(p.stat().st_size for p in tmp_path.iterdir() if p.suffix)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (
            replace(HEADER, models={"shared": Model(5, "layout", "initial")}),
            "models['shared'].parameters",
        ),
        (
            replace(HEADER, models={"shared": Model(28938, "x", "initial")}),
            "models['shared'].layout",
        ),
        (
            replace(HEADER, models={"shared": Model(28938, "layout", "x")}),
            "models['shared'].initial",
        ),
        (
            replace(HEADER, models={"client 0": Model(28938, "layout", "initial")}),
            "models['client 0']",
        ),
        (
            replace(HEADER, models={**HEADER.models, "client 1": Model(1, "", "")}),
            "models['client 1']",
        ),
        (replace(HEADER, law="rademacher"), "law"),
        (replace(HEADER, momentum=0.0), "momentum"),
        (replace(HEADER, damped=True), "damped"),
        (replace(HEADER, optimizer="signsgd"), "optimizer"),
        (replace(HEADER, shifted=True), "shifted"),
    ],
)
def test_the_ledger_of_another_model_is_refused_by_field(tmp_path, other, field):
    fill(Ledger.create(tmp_path, HEADER), 3).close()
    with refusal(InputError, "ledger of another model", re.escape(field), "wanted"):
        Ledger.open(tmp_path, expect=other)
    assert Ledger.open(tmp_path, expect=HEADER).header == HEADER


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(HEADER, law="gausian"),
        lambda: replace(HEADER, optimizer="adm"),
        lambda: replace(HEADER, momentum=1.0),
        lambda: replace(HEADER, models={}),
        lambda: Model(0, "", ""),
        lambda: Ledger.create(None, HEADER, segment=0),
    ],
)
def test_a_header_out_of_range_is_refused(make):
    with refusal(InputError):
        make()


def test_a_later_format_is_told_from_damage(tmp_path):
    fill(Ledger.create(tmp_path, HEADER), 3).close()
    path = tmp_path / "header.json"
    content = json.loads(path.read_text())
    content["format"] = 3
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"header\.json"):
        Ledger.open(tmp_path)
    del content["sha256"]
    text = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False)
    path.write_text(json.dumps(content | {"sha256": hashlib.sha256(text.encode()).hexdigest()}))
    with pytest.raises(InputError, match="format 3, wanted 1 or 2") as error:
        Ledger.open(tmp_path)
    assert not isinstance(error.value, DataError)


@pytest.mark.parametrize("step_seeds", [False, True])
def test_a_ledger_says_what_its_seeds_stand_for_and_the_other_kind_is_refused(tmp_path, step_seeds):
    mine, other = (replace(HEADER, step_seeds=kind) for kind in (step_seeds, not step_seeds))
    fill(Ledger.create(tmp_path, mine), 3).close()
    assert json.loads((tmp_path / "header.json").read_text())["format"] == 1 + step_seeds
    with Ledger.open(tmp_path, expect=mine) as ledger:
        assert ledger.header == mine
    with refusal(InputError, f"a ledger of format {1 + step_seeds} .*, wanted"):
        Ledger.open(tmp_path, expect=other)


@pytest.mark.parametrize("counts", [[3, 3, 3], [1, 1], [2, 1, 4], []])
def test_a_slices_chain_is_that_of_its_updates_one_after_the_other(counts):
    updates = [
        checked(
            number + 1,
            {
                "party": number - 1,
                "read": 0,
                "lr": 0.5 + number,
                "step": np.arange(count) // 2,
                "perturbation": np.arange(count) % 2,
                "seed": np.arange(count, dtype=np.uint64) + np.uint64(2**63),
                "scalar": np.arange(count, dtype=np.float32) / 3,
            },
        )
        for number, count in enumerate(counts)
    ]
    memory = WorkingSet()
    one_by_one = [b"\x07" * 32]
    for made in updates:
        memory.add(made)
        one_by_one.append(link(one_by_one[-1], made))
    found = links(one_by_one[0], memory.slice(0, len(updates)))
    assert found == one_by_one
