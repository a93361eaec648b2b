"""Orders dealt out to hosts, and done again where one is lost. The way to the hosts is a stand-in
here.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from actors.horizontal.client_group_pool import ClientGroupPool, PoolExecutor
from actors.shares import Place
from actors.transport.peers import Task
from actors.transport.work import HostTask, read_task
from raydpzv.errors import RunError, Stalled
from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.messages import Start


class Hosts:
    """Peers that do their tasks when a result is wanted; lost: the hosts that fail, and how
    often.
    """

    def __init__(
        self, lost: dict[int, int], error: type[BaseException] = ray.exceptions.ActorDiedError
    ) -> None:
        self.lost, self.error = lost, error
        self.sent: list[tuple[int, list[int]]] = []
        self.replaced: list[tuple[int, Any]] = []
        self.finished = 0

    def send(self, host: int, task: Task) -> Task:
        if orders := asked(task).orders:
            self.sent.append((host, [order.client for order in orders]))
        return task

    def result(self, host: int, task: Task) -> Any:
        if self.lost.get(host, 0):
            self.lost[host] -= 1
            raise self.error
        todo = asked(task)
        if todo.probe:
            return host, todo.probe, todo.version
        return [Upload(order.client, order.round, Start()) for order in todo.orders]

    def replace(self, host: int, new: Any) -> None:
        self.replaced.append((host, new))

    def finish(self) -> None:
        self.finished += 1


def asked(task: Task) -> HostTask:
    found = read_task(memoryview(b"".join(task.frame)))
    assert found is not None
    return found


class Pool(ClientGroupPool):
    """Hosts that are made of words."""

    def replace(self, host: int, error: BaseException) -> str:
        self.actors[host] = f"new host {host}"
        return "replaced"


def executor(
    hosts: Hosts, *, pinned: bool = False, drifts: bool = False, goes_back: bool = False
) -> tuple[PoolExecutor, list[tuple[int, str]]]:
    place: Place = SimpleNamespace()  # type: ignore[assignment]
    pool, noted = Pool([], None, place, 3, 5.0, ["host 0", "host 1"]), list[tuple[int, str]]()
    pool.goes_back = goes_back
    found = PoolExecutor(
        pool,
        hosts,
        lean=False,
        pinned=pinned,
        noted=lambda host, done: noted.append((host, done)),
        drifts=drifts,
    )
    return found, noted


def submitted(found: PoolExecutor, *clients: int) -> list[int]:
    return [found.submit(Order(client, Start(), 1)) for client in clients]


@pytest.mark.parametrize(
    ("pinned", "dealt"),
    [(False, [(0, [4, 2]), (1, [0])]), (True, [(0, [4, 0, 2])])],
    ids=["in turn", "pinned"],
)
def test_orders_are_sent_together_when_an_upload_is_wanted(pinned: bool, dealt: Any) -> None:
    hosts = Hosts({})
    found, _ = executor(hosts, pinned=pinned)
    handles = submitted(found, 4, 0, 2)
    assert not hosts.sent
    assert [found.result(handle).client for handle in reversed(handles)] == [2, 0, 4]
    assert hosts.sent == dealt
    assert found.calls == len(dealt)
    submitted(found, 1, 3)
    assert found.evaluate(7) == (0, "evaluate", 7)
    assert found.state(8) == (0, "state", 8)
    assert [client for _, clients in hosts.sent[len(dealt) :] for client in clients] == [1, 3], (
        "before it looks"
    )
    assert [found.result(client).client for client in (3, 1)] == [3, 1]
    found.finish()
    assert hosts.finished == 1


def test_what_a_lost_host_had_not_handed_over_is_done_again() -> None:
    hosts = Hosts({1: 2})
    found, noted = executor(hosts)
    submitted(found, 0, 1, 2, 3)
    assert [found.result(client).client for client in (1, 0, 3, 2)] == [1, 0, 3, 2]
    assert hosts.sent == [(0, [0, 2]), (1, [1, 3]), (1, [1, 3]), (1, [1, 3])]
    assert hosts.replaced == [(1, "new host 1")] * 2
    assert noted == [(1, "replaced; 2 orders are performed again")] * 2
    hosts.lost[0] = 1
    assert found.evaluate(3) == (0, "evaluate", 3)
    assert noted[-1] == (0, "replaced; 0 orders are performed again")


def test_an_error_of_a_hosts_own_is_no_loss() -> None:
    hosts = Hosts({0: 1}, Stalled)
    found, noted = executor(hosts)
    submitted(found, 0)
    with pytest.raises(Stalled):
        found.result(0)
    assert not noted
    assert not hosts.replaced


@pytest.mark.parametrize("goes_back", [True, False])
def test_who_had_models_that_nobody_can_rebuild_is_not_replaced(*, goes_back: bool) -> None:
    """The run goes back to its checkpoint, by itself or by `resume`."""
    hosts = Hosts({0: 1})
    found, noted = executor(hosts, pinned=True, drifts=True, goes_back=goes_back)
    submitted(found, 0)
    with pytest.raises((RunError, ray.exceptions.ActorDiedError)) as caught:
        found.result(0)
    if goes_back:
        assert isinstance(caught.value, ray.exceptions.ActorDiedError)
    else:
        assert "only the run's last checkpoint has: continue from there with raydpzv resume" in str(
            caught.value
        )
    assert not noted
    assert not hosts.replaced
