"""Seed files that a stranger changed and signed again, from a seeded generator."""

import copy
import json
import random
import zlib
from contextlib import suppress
from typing import Any

from tests.helpers.seed_samples import header, summed

ESCAPE = "\x1b[2J\x1b]0;owned\x07\x9b31m"
"""What a terminal would obey."""
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    1023,
    1025,
    2**22,
    2**31,
    2**32,
    2**53,
    2**63,
    2**64,
    10**9,
    10**12,
    10**30,
)
FLOATS = (0.0, -0.0, 0.5, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"))
TEXTS = (
    "",
    "0",
    "-1",
    "ff",
    "-ff",
    "0x1",
    "f" * 40,
    "0" * 64,
    "sgd",
    "stored",
    "weights",
    "a" * 5000,
)
NAMES = (ESCAPE, "a\nb", "\x00", "\udc80", "\u202e", "é", "..", "/", "name")
VALUES = (None, True, False, [], {}, [[]], {"a": 1}, [1], [1, 2, 3, 4], ["w", [2], "stored"])
KEYS = (
    "law",
    "seeds",
    "rule",
    "frozen",
    "models",
    "root",
    "size",
    "average",
    "factors",
    "name",
    "new",
    ESCAPE,
)


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a header, tables and lists included."""
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    found = [path] if path else []
    for key, value in inner:
        found += leaves(value, (*path, key))
    return found


def odd_value(draw: random.Random, old: Any) -> Any:
    """Return a value in place of an old one: near it, of another type, or absurd."""
    near: tuple[Any, ...] = ()
    if isinstance(old, str):
        near = (old + "0", old[:-1], "-" + old, old.upper(), old * 3)
    elif isinstance(old, list):
        near = (old * 2, old[:-1], old[::-1], [*old, None])
    elif isinstance(old, int | float):
        near = (old + 1, -old, old * 2, float(old), str(old), [old])
    kind = draw.choice((near or VALUES, NUMBERS, FLOATS, TEXTS, NAMES, VALUES))
    return copy.deepcopy(draw.choice(kind))


def other_value(draw: random.Random, about: dict[str, Any]) -> None:
    """Change one value somewhere, or take it out, or put a key beside it."""
    *path, last = draw.choice(leaves(about))
    place: Any = about
    for key in path:
        place = place[key]
    how = draw.random()
    if how < 0.12:
        del place[last]
    elif how < 0.2 and isinstance(place, dict):
        place[draw.choice(KEYS)] = odd_value(draw, "")
    elif how < 0.26 and isinstance(place, list):
        place.insert(last, copy.deepcopy(draw.choice(place)))
    else:
        place[last] = odd_value(draw, place[last])


def other_shape(draw: random.Random, about: dict[str, Any]) -> None:
    """Give a tensor another shape, of as many numbers, of billions, or of a negative axis."""
    tensor = draw.choice(draw.choice(about["models"])["tensors"])
    size = 1
    for axis in tensor[1]:
        size *= axis
    shapes = (
        [size],
        [-1, -size],
        [1] * 40 + [size],
        [10**5, 10**5],
        [2**14, 2**13],
        [2**31],
        [2**63, 2],
        [0],
        [],
    )
    tensor[1] = draw.choice(shapes)


def other_name(draw: random.Random, about: dict[str, Any]) -> None:
    """Put what a terminal obeys, or a line break, into a name."""
    model = draw.choice(about["models"])
    place = draw.choice((model, draw.choice(model["tensors"])))
    place["name" if place is model else 0] = draw.choice(NAMES)


def other_rule(draw: random.Random, about: dict[str, Any]) -> None:
    """Give another rule, whose options are missing or absurd."""
    about["rule"] = {"name": draw.choice(("sgd", "signsgd", "adam", "svrg", "lion"))}
    for option in draw.sample(("momentum", "damped", "beta2", "v0", "epoch"), draw.randint(0, 3)):
        about["rule"][option] = draw.choice((*NUMBERS, *FLOATS, *VALUES, 0.9))


def other_phases(draw: random.Random, about: dict[str, Any]) -> None:
    """Give other updates: as many scalars otherwise shared out, none, or absurdly many."""
    model = draw.choice(about["models"])
    count = sum(u * k * p for u, k, p, _ in model["phases"])
    lr = draw.choice((*FLOATS, 0.1))
    options = (
        [[count, 1, 1, lr]],
        [[1, 1, count, lr]],
        [[1, count, 1, lr]],
        [[1, 1, 1, 0.1]] * min(count, 1000),
        [],
        [[2**32, 2**32, 1024, lr]],
        [[8 * 10**6, 1, 1, lr]],
    )
    model["phases"] = copy.deepcopy(draw.choice(options))


def bomb(draw: random.Random) -> bytes:
    """Return the text of a header that is a few kilobytes packed, and gigabytes as objects."""
    unit = draw.choice(
        (
            b"[],",
            b"{},",
            b'{"":0},',
            b"[[0]],",
            b"1,",
            b'"",',
            b"[1,1,1,0.1],",
            b" ",
            b"[",
            b'{"a":',
        )
    )
    count = draw.choice((10**5, 10**6, 6 * 10**7 // len(unit)))
    begin = draw.choice((b'{"models":[', b'{"models":[{"phases":[', b"["))
    return begin + unit * count + b"0]"


def odd_text(draw: random.Random, about: dict[str, Any]) -> bytes:
    """Return a header that is no JSON, or JSON of another kind."""
    text = json.dumps(about).encode()
    place = draw.randrange(len(text))
    return draw.choice(
        (
            text[:place],
            text[:place] + bytes([draw.randrange(256)]) + text[place + 1 :],
            b"\xff" + text,
            text.replace(b'"law"', b'"law":1,"law"'),
            text.replace(b"[", b"[" * 10**5, 1),
            text.replace(b'"size"', b'"size":' + b"9" * 10**5 + b',"s"'),
            b"null",
            b"[]",
            b"",
            b"9" * 10**6,
        )
    )


CHANGES = (other_value, other_value, other_value, other_shape, other_name, other_rule, other_phases)


def mutant(draw: random.Random, data: bytes) -> bytes:
    """Return a seed file with one to three things wrong or unusual, and the SHA-256 that fits."""
    about, length = header(data), int.from_bytes(data[6:10], "little")
    behind = data[10 + length : -32]
    how = draw.random()
    if how < 0.1:
        text = bomb(draw)
    elif how < 0.2:
        text = odd_text(draw, about)
    else:
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            # an earlier change may have taken away what this one changes
            with suppress(TypeError, KeyError, IndexError, ValueError, AttributeError):
                draw.choice(CHANGES)(draw, about)
        text = json.dumps(about).encode()
    packed = zlib.compress(text)
    size = len(packed)
    if how > 0.9:  # bytes behind the header, or the length of the header
        place = draw.randrange(len(behind) + 1)
        behind = draw.choice((behind[:place], behind + behind, behind[:place] + b"\xff" * 8, b""))
        size = draw.choice((size, 0, size - 1, size + 1, 2**32 - 1))
    return summed(data[:6] + size.to_bytes(4, "little") + packed + behind)
