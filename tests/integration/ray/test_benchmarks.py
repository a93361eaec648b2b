import pytest
import ray

from tests.helpers.benchmarks import figures, module

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.mark.slow
def test_a_lane_that_loses_an_end_keeps_its_digest_or_says_so(monkeypatch, tmp_path):
    """A blow to a client's actor; test_runner_contract.py and test_losses.py tell of the server and
    of hosts.
    """
    found = figures("lane_kills", monkeypatch, tmp_path, "--kills", "1")
    assert found["wrong"] == []
    assert [(o["end"], o["ended"]) for o in found["outcomes"]] == [("client", "same digest")]
    # the control: a blow that does not fall is found out
    kills = module("lane_kills", monkeypatch)
    ray.cloudpickle.register_pickle_by_value(kills)
    never = kills.Blow("kill", "client", 0, 10**9, 0.0, tmp_path / "mark")
    spec = kills.load(kills.SCENARIOS / "digits_dpzv.toml", kills.VERTICAL.settings)
    whole = kills.run_local(kills.prepare(spec), kills.RunOptions())
    struck = kills.strike(kills.VERTICAL, never, tmp_path / "run", whole)
    assert struck.ended == "same digest"
    assert struck.wrong == ["0 rows of faults", "the blow did not fall"]
