"""A seed file's bytes: round trips, every flipped bit, every cut, and headers that another program
might write.
"""

import hashlib
import zlib
from dataclasses import replace

import numpy as np
import pytest

from raydpzv.errors import DataError, InputError
from raydpzv.keys import Key, direction_seed, step_seed, step_words
from raydpzv.seed_file.seed_format import (
    SeedFile,
    SeedRoot,
    StepPhase,
    decode_seed_file,
    encode_seed_file,
    seeds_of_root,
    smallest_form,
)
from tests.helpers.loading import refusal
from tests.helpers.seed_samples import ONE_STEP, grouped, header, sample, summed, with_header

FILES = {
    "groups": sample("rank_one", given=grouped()),
    "steps": sample(),
    "directions": sample("sphere", of_steps=False, momentum=0.9, damped=1.0),
    "stored": sample("rademacher", derived=False, form="sign"),
    "half": sample(derived=False, of_steps=False, form="float16", average=3, phases=ONE_STEP),
}


def fields(file: SeedFile) -> list[object]:
    """Everything that a file holds, in a form that == compares."""
    found: list[object] = [
        file.law,
        file.step_seeds,
        file.optimizer,
        dict(file.options),
        file.frozen,
    ]
    for model in file.models:
        seeds = model.seeds if isinstance(model.seeds, SeedRoot) else model.seeds.tobytes()
        found += [
            model.name,
            model.initial,
            model.result,
            model.phases,
            seeds,
            model.form,
            model.average,
        ]
        found += [model.scalars.tobytes()]
        for tensor in model.tensors:
            values = None if tensor.values is None else tensor.values.tobytes()
            found += [
                tensor.name,
                tensor.shape,
                tensor.start,
                np.float32(tensor.number),
                tensor.key,
                values,
            ]
            found += [tensor.lr, tensor.smoothing]
    return found


@pytest.mark.parametrize("kind", FILES)
def test_a_file_says_what_was_written(kind):
    file = replace(FILES[kind], frozen=hashlib.sha256(b"base").digest())
    assert fields(decode_seed_file(encode_seed_file(file))) == fields(file)


@pytest.mark.parametrize("kind", FILES)
def test_every_flipped_bit_is_found(kind):
    data = encode_seed_file(FILES[kind])
    for place in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[place // 8] ^= 1 << place % 8
        with pytest.raises(DataError):
            decode_seed_file(bytes(wrong))


def test_every_cut_is_found():
    data = encode_seed_file(FILES["stored"])
    for length in range(len(data)):
        with pytest.raises(
            DataError, match="not a seed file" if length < 5 else "is cut or damaged"
        ):
            decode_seed_file(data[:length], "run.seeds")


def test_bytes_behind_the_end_are_found():
    data = encode_seed_file(FILES["steps"])
    with pytest.raises(DataError, match="is cut or damaged"):
        decode_seed_file(data + b"\0")
    with pytest.raises(DataError, match="1 bytes too many"):
        decode_seed_file(summed(data[:-32] + b"\0"))


def test_another_version_is_named():
    body = bytearray(encode_seed_file(FILES["steps"])[:-32])
    body[5] = 2
    with pytest.raises(
        DataError, match=r"run\.seeds: is a seed file of version 2, wanted 1; use a newer"
    ):
        decode_seed_file(summed(bytes(body)), "run.seeds")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"law": "gausian"},
            r'of the law "gausian", which this version does not know. Did you mean "gaussian"',
        ),
        ({"rule": {"name": "adagrad"}}, 'has the rule "adagrad", which'),
        ({"rule": {"name": "sgd", "warmth": 1}}, 'has the rule "sgd, warmth", which'),
        ({"groups": []}, "groups: Extra inputs"),
        ({"seeds": "rows"}, "seeds: Input should be 'steps'"),
        ({"models": []}, "models: List should have at least 1 item"),
        ({"rule": {"name": "sgd", "damped": 0.5}}, "rule.damped: .* wanted 0 or 1"),
        ({"rule": {"name": "svrg", "epoch": 1.5}}, "rule.epoch: "),
        ({"rule": {"name": "sgd", "momentum": float("nan")}}, "NaN is no number"),
        ({"rule": {"name": "svrg"}}, "rule: .* svrg needs epoch"),
        ({"rule": {"name": "adam"}}, "rule: .* adam needs v0"),
        ({"law": "\x1b[2J"}, r'law "\\x1b\[2J"'),
        ({"frozen": ""}, "frozen: String should match"),
        ({"models": [{}]}, "content does not"),
        ({"models": 3}, "content does not"),
        ({"law": None}, 'law "None"'),
    ],
)
def test_a_header_of_another_program_is_refused_in_one_line(change, says):
    data = encode_seed_file(FILES["steps"])
    with refusal(DataError, says):
        decode_seed_file(with_header(data, header(data) | change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tensors": []}, "tensors: List should have at least 1 item"),
        ({"tensors": [["w", [10**12], "constant", 0.0]]}, "less than or equal to"),
        ({"tensors": [["w", [10**6, 10**6], "constant", 0.0]]}, "at most 268,435,456 may"),
        ({"tensors": [["w", [0], "constant", 0.0]]}, "wants 1 to"),
        ({"tensors": [["w", [-1, -3], "constant", 0.0]]}, "greater than or equal to 0"),
        ({"tensors": [["w", [3], "constant", 0.0]] * 2}, "two tensors of one name"),
        ({"tensors": [["a\x1b[2J", [3], "constant", 0.0]]}, "without control characters"),
        ({"name": "client 0\x9b2J"}, "without control characters"),
        ({"tensors": [["w", [10**10], "stored"]]}, "bytes are wanted"),
        ({"tensors": [["w", [True], "constant", 0.0]]}, "valid integer"),
        ({"tensors": [["w", [3], "guessed"]]}, "content does not"),
        ({"phases": [[1, 0, 1, 0.1]]}, "greater than or equal to 1"),
        ({"phases": [[1, 1, 1, float("nan")]]}, "NaN is no number"),
        ({"phases": [[10**9, 10**9, 1, 0.1]]}, "bytes are wanted"),
        ({"phases": [[1, 1, 1025, 0.1]]}, "1,025 directions of a step"),
        ({"scalars": "float8"}, "content does not"),
        ({"initial": "zz"}, "content does not"),
        ({"root": ["1"]}, "content does not"),
        ({"root": ["-1", "1", "1"]}, "root.0: String should match"),
        ({"root": ["1", "1" * 17, "1"]}, "root.1: String should match"),
        ({"root": ["1" + "0" * 14, "1", "1"]}, "two words of 54 bits"),
        ({"root": ["1", "1", "400000"]}, "a party of 22"),
        ({"average": "3"}, "average: Input should be a valid integer"),
        ({"average": None}, "average: Input should be a valid integer"),
        ({"size": 0.5}, "a size goes with"),
        ({"warmth": [2.0]}, "models.0.warmth: Extra inputs"),
        ({"factors": [[2.0, 1.0]]}, "content does not"),
        ({"factors": [[2.0, 0.0]] * 3}, "greater than 0"),
    ],
)
def test_a_model_of_another_program_is_refused_in_one_line(change, says):
    data = encode_seed_file(FILES["steps"])
    about = header(data)
    about["models"][0] |= change
    with pytest.raises(DataError, match=says):
        decode_seed_file(with_header(data, about))


def test_a_header_that_would_fill_the_memory_is_refused():
    packed = zlib.compress(b" " * (1 << 27), 9)
    body = encode_seed_file(FILES["steps"])[:6] + len(packed).to_bytes(4, "little") + packed
    with pytest.raises(DataError, match="no whole zlib stream, or too long"):
        decode_seed_file(summed(body))


def test_scalars_that_are_not_finite_are_refused():
    model = FILES["steps"].models[0]
    scalars = model.scalars.copy()
    scalars[3] = np.nan
    data = encode_seed_file(replace(FILES["steps"], models=(replace(model, scalars=scalars),)))
    with pytest.raises(DataError, match="not finite"):
        decode_seed_file(data)


@pytest.mark.parametrize(
    ("scalars", "form"),
    [
        ([0.25, -0.25, 0.25], "sign"),
        ([1, -1, 0], "float16"),
        ([0, 0], "float16"),
        ([0.5, 3], "float16"),
        ([0.1, 0.2], "float32"),
        ([70000, 1], "float32"),
        ([1e-30, 1], "float32"),
    ],
)
def test_the_smallest_form_keeps_every_bit(scalars, form):
    scalars = np.array(scalars, np.float32)
    assert smallest_form(scalars) == form
    widths = StepPhase(1, 1, len(scalars), 0.1)
    model = replace(FILES["steps"].models[0], scalars=scalars, form=form, phases=(widths,))
    (again,) = decode_seed_file(encode_seed_file(replace(FILES["steps"], models=(model,)))).models
    assert again.scalars.tobytes() == scalars.tobytes()


def test_forms_that_cannot_hold_the_scalars_are_refused():
    model = replace(FILES["steps"].models[0], form="sign")
    with pytest.raises(InputError, match="wants scalars of one size"):
        encode_seed_file(replace(FILES["steps"], models=(model,)))
    far = replace(model, form="float16", scalars=model.scalars * np.float32(1e6))
    with pytest.raises(InputError, match="float16 reaches 65504"):
        encode_seed_file(replace(FILES["steps"], models=(far,)))


def test_a_scalar_takes_four_bytes_or_one_bit():
    def bytes_a_scalar(form: str) -> float:
        sizes = [
            len(encode_seed_file(sample(form=form, phases=(StepPhase(n, 1, 5, 0.1),))))
            for n in (200, 400)
        ]
        return (sizes[1] - sizes[0]) / 1000

    assert bytes_a_scalar("float32") == pytest.approx(4, abs=0.01)
    assert bytes_a_scalar("float16") == pytest.approx(2, abs=0.01)
    assert bytes_a_scalar("sign") == pytest.approx(1 / 8, abs=0.01)


def test_seeds_of_a_root_are_those_that_a_run_draws():
    key, phases = Key(5), (StepPhase(3, 2, 4, 0.1), StepPhase(2, 1, 3, 0.1))
    steps = seeds_of_root(SeedRoot(step_words(key), 77), phases, True)
    assert steps.tolist() == [step_seed(key, 77, n) for n in range(8)]
    directions = seeds_of_root(SeedRoot(key.direction_words, 3), phases, False)
    wide = [(n, p) for n in range(8) for p in range(4 if n < 6 else 3)]
    assert directions.tolist() == [direction_seed(key, 3, n, p) for n, p in wide]
