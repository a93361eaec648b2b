from __future__ import annotations

import dataclasses
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest

import scenarios
from actors.transport.frames import dump_upload
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.methods.roles import Upload
from raydpzv.wire.weights import Update
from tests.helpers.changed_settings import scenario
from tests.helpers.runs import run_prepared
from tests.helpers.small_users import SEEDED, small

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
MASKED = ("method.aggregation=masked", "resources.hosts=2")


@dataclasses.dataclass(frozen=True)
class Watched(PreparedHorizontal):
    """A prepared one that writes down what its server is made of and sent, and of whose hosts one
    may be killed.

    dies: the call to its silos before which the first host to come there is killed; 0: none is.
    """

    folder: str = ""
    dies: int = 0

    def server(self, ledger=None, device="cpu"):
        self._write("server", pickle.dumps(fields_of(self)))
        return PreparedHorizontal.server(self, ledger, device)

    def for_host(self, host, hosts):
        found = PreparedHorizontal.for_host(self, host, hosts)
        self._write(f"host {host}", pickle.dumps(fields_of(found)))
        return found

    def client_group(self, updates=None, device="cpu"):
        group = PreparedHorizontal.client_group(self, updates, device)
        process, calls = group.process, []

        def watched(orders):
            calls.append(orders)
            if len(calls) == self.dies and self._first():
                os.kill(os.getpid(), signal.SIGKILL)
            uploads = process(orders)
            self._write(
                f"{os.getpid()} {len(calls)}", pickle.dumps([dump_upload(u) for u in uploads])
            )
            return uploads

        group.process = watched
        return group

    def _write(self, name, data):
        (Path(self.folder) / name).write_bytes(data)

    def _first(self):
        try:
            (Path(self.folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def fields_of(prepared):
    return {field.name: getattr(prepared, field.name) for field in dataclasses.fields(prepared)}


def watched(spec, folder, **how):
    return Watched(**fields_of(prepare_horizontal(spec)), folder=str(folder), **how)


def scopes(summary):
    """The scopes of the claims, in words: releases, and silos at the least."""
    return {claim["scope"] for claim in summary["epsilon"]}


def rows_found(prepared, data):
    """Return how many training rows' features are in these bytes."""
    return sum(row.tobytes() in data for row in np.unique(prepared.split.train.x, axis=0))


def test_masked_training_for_users_has_the_bits_of_one_process_and_the_server_sees_no_row(tmp_path):
    given = (
        "budget.updates=3",
        "method.dropout=0.3",
        "method.late_uploads=0.5",
        "split.clients=4",
        *MASKED,
    )
    prepared = watched(scenario("horizontal", "uldp_avg", given), tmp_path)
    local, found = (
        scenarios.run(prepared.spec).summary,
        run_prepared(prepared, runner="ray").summary,
    )
    for name in ("digest", "model_digest", "bytes_up", "bytes_down", "user_level"):
        assert found[name] == local[name], name
    assert scopes(found) == scopes(local)
    sent = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(sent) > 8
    assert "server" in sent
    hosts = [sent.pop(f"host {host}") for host in (0, 1)]
    assert not any(rows_found(prepared, data) for data in sent.values())
    whose = [
        set(np.concatenate([prepared.parts.rows(silo) for silo in (host, host + 2)]))
        for host in (0, 1)
    ]
    train, other = prepared.split.train.x, (1, 0)
    for host, data in enumerate(hosts):
        own = {train[row].tobytes() for row in whose[host]}
        foreign = {train[row].tobytes() for row in whose[other[host]]} - own
        assert (all(row in data for row in own), any(row in data for row in foreign)) == (
            True,
            False,
        )
        assert all(row in hosts[other[host]] for row in foreign), "control: the other host has them"
    # controls: all that there is, and an update that is a row
    assert rows_found(prepared, pickle.dumps(fields_of(prepared))) == len(
        np.unique(prepared.split.train.x, axis=0)
    )
    planted = Upload(0, 0, Update(prepared.split.train.x[7].ravel()))
    assert rows_found(prepared, pickle.dumps(dump_upload(planted))) == 1


def test_a_killed_silo_gets_new_keys_and_model_ledger_and_account_are_those_of_a_whole_run(
    tmp_path,
):
    prepared = watched(small("rounds", SEEDED, *MASKED), tmp_path, dies=4)
    whole, found = scenarios.run(prepared.spec), run_prepared(prepared, runner="ray")
    assert (tmp_path / "killed").exists()
    assert len(found.rows("fault").to_pylist()) == 1
    kinds = [[row["kind"] for row in run.rows("message").to_pylist()] for run in (whole, found)]
    assert [kind.count("KeysLost") > 0 for kind in kinds] == [False, True]
    assert kinds[1].count("AgreementKey") == 2 * kinds[0].count("AgreementKey")
    assert found.summary["model_digest"] == whole.summary["model_digest"]
    assert scopes(found.summary) == scopes(whole.summary)
    assert found.summary["ledger"]["digest"] == whole.summary["ledger"]["digest"]
    assert found.rows("user_epsilon") == whole.rows("user_epsilon")
