"""A writer killed by the operating system at random moments: nothing acknowledged is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from tests.helpers.ledger_samples import HEADER, assert_holds, fill

WRITER = """
import sys
from pathlib import Path
from tests.helpers.ledger_samples import update
from raydpzv.ledger.ledger import Ledger
ledger = Ledger.open(Path(sys.argv[1]), write=True)
while True:
    print(ledger.append(**update(ledger.version + 1)), flush=True)
"""
ROOT = Path(__file__).parents[3]


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path):
    Ledger.create(tmp_path, HEADER, segment=16).close()
    draw = (Key(0) / "kill").generator()
    acknowledged = 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert child.stdout is not None
        with child, child.stdout:
            rounds = [int(child.stdout.readline()) for _ in range(int(draw.integers(1, 200)))]
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split(b"\n")[:-1]  # the last line may be cut off
        assert child.returncode == -signal.SIGKILL
        rounds += map(int, rest)
        assert rounds == list(range(rounds[0], rounds[-1] + 1))
        ledger = Ledger.open(tmp_path, expect=HEADER)
        assert rounds[0] in (
            acknowledged + 1,
            acknowledged + 2,
        )  # one may be written and not acknowledged
        assert ledger.version in (rounds[-1], rounds[-1] + 1)
        acknowledged = rounds[-1]
    assert_holds(ledger.since(0), 0, ledger.version)
    assert ledger.verify() == fill(Ledger.create(None, HEADER), ledger.version).digest
    with Ledger.open(tmp_path, write=True) as again:
        assert fill(again, again.version + 20).verify() == again.digest
