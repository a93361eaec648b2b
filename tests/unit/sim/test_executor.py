import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import raydpzv
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim import executor
from raydpzv.sim.executor import LocalExecutor
from raydpzv.wire.messages import Start
from tests.helpers.toy_parties import ToyClient

START = Start()


class Watched(ToyClient):
    """Says which thread did its work, and does it through `act`."""

    def __init__(self, client, act=lambda step: None):
        super().__init__(client)
        self.act, self.threads, self.steps = act, [], []

    def work(self) -> Upload:
        self.act(self.step)
        self.threads.append(threading.get_ident())
        self.steps.append(self.step)
        return super().work()


def warmed(monkeypatch, clients, worth=0.0, threads=2):
    """Return an executor whose first works, which decide, are done."""
    monkeypatch.setattr(executor, "_WORTH_A_THREAD", worth)
    host = LocalExecutor(clients, threads)
    for _ in range(executor._TRIALS):
        host.result(host.submit(Order(0, START)))
    return host


def test_long_works_of_two_clients_run_side_by_side(monkeypatch):
    together = threading.Barrier(2, timeout=30)
    clients = [
        Watched(0),
        Watched(1, lambda step: together.wait()),
        Watched(2, lambda step: together.wait()),
    ]
    host = warmed(monkeypatch, clients)
    handles = [host.submit(Order(m, START)) for m in (1, 2)]  # each waits for the other
    assert [host.result(handle).client for handle in handles] == [1, 2]


def test_works_of_one_client_keep_their_order(monkeypatch):
    gate = threading.Event()
    client = Watched(0, lambda step: step < executor._TRIALS or gate.wait(30))
    host = warmed(monkeypatch, [client])
    handles = [host.submit(Order(0, START)) for _ in range(5)]
    gate.set()
    expected = list(range(executor._TRIALS, executor._TRIALS + 5))
    assert [host.result(handle).step for handle in handles] == expected
    assert client.steps[-5:] == expected


@pytest.mark.parametrize(("worth", "threads"), [(1e9, 2), (0.0, 1)])
def test_short_works_and_one_thread_stay_with_the_caller(monkeypatch, worth, threads):
    client = Watched(0)
    host = warmed(monkeypatch, [client], worth, threads)
    assert isinstance(host.submit(Order(0, START)), Upload)
    assert set(client.threads) == {threading.get_ident()}


def test_a_works_error_is_raised_for_it_and_for_what_follows(monkeypatch):
    def fail(step):
        if step == executor._TRIALS:
            raise ValueError("no such row")

    host = warmed(monkeypatch, [Watched(0, fail)])
    first, second = host.submit(Order(0, START)), host.submit(Order(0, START))
    for handle in (first, second):
        with pytest.raises(ValueError, match="no such row"):
            host.result(handle)


@pytest.mark.parametrize("engine", ["compiled", "torch"])
@pytest.mark.parametrize("method", ["dpzv", "vafl"])
def test_threads_move_no_bits(monkeypatch, method, engine):
    noise = "privacy.noise=seeded" if method == "dpzv" else "privacy.mode=none"
    spec = raydpzv.load(
        "digits_dpzv",
        [
            f"method.name={method}",
            f"model.engine={engine}",
            noise,
            "budget.updates=60",
            "evaluate.every=7",
        ],
    )
    workers, do = set(), LocalExecutor._process

    def process(self, order, before=None):
        workers.add(threading.get_ident())
        return do(self, order, before)

    monkeypatch.setattr(LocalExecutor, "_process", process)
    monkeypatch.setattr(executor, "_WORTH_A_THREAD", 0.0)
    found = {}
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr("raydpzv.limits.cores", lambda: 2)
        found[threads] = raydpzv.run(spec)
        assert (len(workers) > 1) == (threads == "2")
    one, two = (found[threads] for threads in ("1", "2"))
    assert one.summary["digest"] == two.summary["digest"]
    assert all(np.array_equal(one.models[name], two.models[name]) for name in one.models)


@pytest.mark.parametrize("fails", [False, True])
def test_no_thread_outlives_a_run(monkeypatch, fails):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("raydpzv.limits.cores", lambda: 2)
    monkeypatch.setattr(executor, "_WORTH_A_THREAD", 0.0)
    pool, do = set(), LocalExecutor._process

    def process(self, order, before=None):
        pool.update(of_clients())  # also those that have no work
        if fails and threading.current_thread() in pool:
            raise ValueError("no such row")
        return do(self, order, before)

    monkeypatch.setattr(LocalExecutor, "_process", process)
    spec = raydpzv.load("digits_dpzv", ["privacy.mode=none", "budget.updates=30"])
    with pytest.raises(ValueError, match="no such row") if fails else nullcontext():
        raydpzv.run(spec)
    assert pool
    assert of_clients() == set()


def of_clients():
    """The threads of clients' works."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("client")}


def test_works_that_wait_are_dropped_at_the_end(monkeypatch):
    gate, begun = threading.Event(), threading.Semaphore(0)

    def wait(step):
        if step >= executor._TRIALS:
            begun.release()
            gate.wait(30)

    client = Watched(0, wait)
    host = warmed(monkeypatch, [client, Watched(1)], threads=1 + 1)
    handles = [host.submit(Order(0, START)) for _ in range(5)]
    begun.acquire(timeout=30)
    threading.Timer(0.05, gate.set).start()
    host.close()
    assert not handles[0].cancelled()
    assert handles[-1].cancelled()


def test_torch_has_one_thread_at_work_and_as_many_as_before_after_it(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("raydpzv.limits.cores", lambda: 2)
    monkeypatch.setattr(executor, "_WORTH_A_THREAD", 0.0)
    found, do = {"torch": set(), "compiled": set()}, LocalExecutor._process

    def process(self, order, before=None):
        if threading.current_thread() is not threading.main_thread():
            found[engine].add(torch.get_num_threads())
        return do(self, order, before)

    monkeypatch.setattr(LocalExecutor, "_process", process)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for engine in found:
            raydpzv.run(
                raydpzv.load(
                    "digits_dpzv",
                    ["privacy.mode=none", "budget.updates=20", f"model.engine={engine}"],
                )
            )
            with ThreadPoolExecutor(1) as later:
                assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)
    assert found["torch"] == {1}
