"""Seed files that a stranger changed and signed again: each ends with one line, in little memory.

More of them, or others:

RAYDPZV_ODD_INPUT_SEED=7 RAYDPZV_ODD_INPUT_COUNT=600 python -m pytest
tests/integration/cli/test_odd_seed_files.py
"""

import os
import random
import tracemalloc

from tests.golden.test_golden_seed_files import FOLDER
from tests.helpers.commands import call, complaint
from tests.helpers.faults import fault
from tests.helpers.odd_seed_files import ESCAPE, mutant
from tests.helpers.seed_samples import header, vectors, with_header

SEED = int(os.environ.get("RAYDPZV_ODD_INPUT_SEED", "1"))
COUNT = int(os.environ.get("RAYDPZV_ODD_INPUT_COUNT", "60"))
MOST = 300 * 10**6
"""Bytes that a file may take, whatever its header asks for."""


def test_odd_seed_files_end_with_one_line_in_little_memory(tmp_path):
    found = []
    tracemalloc.start()
    try:
        for number in range(COUNT):
            draw = random.Random(f"{SEED}/{number}")
            data = (FOLDER / f"{draw.choice(sorted(vectors()))}.seeds").read_bytes()
            path = tmp_path / f"{number}.seeds"
            path.write_bytes(mutant(draw, data))
            tracemalloc.reset_peak()
            wrong = fault(["replay", str(path), *draw.choice(([], ["--out", f"{path}.npz"]))])
            if (most := tracemalloc.get_traced_memory()[1]) > MOST:
                wrong = f"{most / 1e6:.0f} MB: {wrong}"
            if wrong:
                found.append(f"{number}: {wrong}")
    finally:
        tracemalloc.stop()
    assert not found, f"{len(found)} of {COUNT}:\n" + "\n\n".join(found)


def test_a_name_with_control_characters_never_reaches_the_screen(tmp_path):
    data = (FOLDER / "gaussian.seeds").read_bytes()
    for word in ("name", "tensors", "law", "rule", "key"):
        about = header(data)
        model = about["models"][0]
        if word == "tensors":
            model["tensors"][0][0] = ESCAPE
        elif word == "rule":
            about["rule"][ESCAPE] = 1
        elif word == "law":
            about["law"] = ESCAPE
        else:
            model[ESCAPE if word == "key" else word] = ESCAPE
        (tmp_path / "odd.seeds").write_bytes(with_header(data, about))
        assert complaint(call("replay", tmp_path / "odd.seeds")).isprintable(), word
