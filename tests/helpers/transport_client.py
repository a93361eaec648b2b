"""A server whose answers to vertical clients are those that a test wants, and a client's upload."""

import threading

import numpy as np

from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer
from raydpzv.wire.messages import Embeddings, Slopes, Start

HOW = Activation(1.0, 1.25, True, 1.5)


def upload(client=0, rows=3, step=0):
    body = Embeddings(np.arange(rows, dtype=np.int32), np.ones((rows, 4), np.float32))
    return Upload(client, step, body, 0.5)


class Service:
    """Answers clients; holds back exchanges while its gate is shut."""

    def __init__(self):
        self.calls, self.gate = [], threading.Event()
        self.error = self.promised = None
        self.gate.set()

    def connection(self, warm_up):
        return self

    def first(self, client):
        self.calls.append(("first", client))
        return Answer(Order(client, Start(), upload_bytes=self.promised), False)

    def exchange(self, upload, how, applied):
        self.gate.wait(5)
        if self.error:
            raise self.error
        self.calls.append(("exchange", upload, how, applied))
        slopes = Slopes(np.full(2, upload.step, np.float32))
        return Answer(Order(upload.client, slopes, upload.step + 1), False)

    def wait(self, client, seconds):
        self.calls.append(("wait", client, seconds))
        return Answer(None, False)

    def finish(self, client, applied):
        self.calls.append(("finish", client, applied))
