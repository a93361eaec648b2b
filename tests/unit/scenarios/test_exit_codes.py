import pytest

from raydpzv.errors import RunError
from scenarios.exit_codes import failures


def test_the_message_of_a_failed_run_names_the_party(tmp_path):
    said = r"^shop \(client 1\) got no order \(details in "
    with pytest.raises(RunError, match=said), failures(tmp_path, ("bank", "shop")):
        raise RunError("client 1 got no order")
    assert "client 1 got no order" in (tmp_path / "error.log").read_text()
