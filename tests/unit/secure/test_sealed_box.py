from __future__ import annotations

import pickle

import pytest

from raydpzv.errors import RunError
from raydpzv.secure.sealed_box import Receiver, sealed_for


def test_the_receiver_alone_reads_it():
    receiver, message = Receiver(), b"the operator's secrets" * 100
    box = sealed_for(receiver.public, message)
    assert receiver.read(box) == message
    assert len(box) == len(message) + 60
    assert b"operator" not in box
    with pytest.raises(RunError, match="sealed for this receiver"):
        Receiver().read(box)


def test_two_boxes_of_a_message_have_nothing_in_common():
    receiver = Receiver()
    one, two = (sealed_for(receiver.public, bytes(64)) for _ in range(2))
    assert one[:32] != two[:32]
    assert one[44:] != two[44:]


@pytest.mark.parametrize("at", [0, 31, 32, 44, -1])
def test_a_changed_byte_is_noticed(at):
    receiver = Receiver()
    box = bytearray(sealed_for(receiver.public, b"as it was"))
    box[at] ^= 1
    with pytest.raises(RunError, match="changed on its way"):
        receiver.read(bytes(box))


@pytest.mark.parametrize("size", [0, 20, 40])
def test_what_is_too_short_to_be_one_is_refused(size):
    with pytest.raises(RunError, match="sealed for this receiver"):
        Receiver().read(bytes(size))


def test_a_receiver_stays_in_its_process():
    with pytest.raises(RunError, match="stay in its process"):
        pickle.dumps(Receiver())
