"""Whole runs whose sums the server sees masked, or weighted by what nobody learns."""

from dataclasses import replace

import pytest

import scenarios
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import SpecError
from raydpzv.experiment.finalize import Run
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.resuming import continued
from raydpzv.privacy.release import verdict
from raydpzv.secure import agreement, paillier, private_silo
from tests.helpers.changed_settings import run_small, scenario
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

SMALL = ("budget.updates=3", "evaluate.every=3")
# 2048 bits is the shortest key a scenario may have
AWAY = ("method.availability=0.8", "method.dropout=0.3", "method.late_uploads=0.5")
PRIVATE = ("method.aggregation=private_weights", "method.count_cap=4", "method.key_bits=2048")


def small_zo(*overrides: str) -> AnyScenario:
    given = (
        "method.perturbations=16",
        "method.local_steps=1",
        "users.count=4",
        "data.train_rows=40",
        *SMALL,
    )
    return scenario("horizontal", "uldp_zo", (*given, *overrides))


def uploads(run: Run) -> list[tuple[int, str, int]]:
    """The messages that went up: round, name, bytes."""
    rows = run.rows("message").to_pylist()
    return [(row["round"], row["kind"], row["bytes"]) for row in rows if row["direction"] == "up"]


@pytest.mark.parametrize("method", ["uldp_sgd", "uldp_avg", "uldp_zo"])
def test_a_masked_run_ends_with_the_model_of_one_in_the_open(method):
    plain, masked = (
        run_small(method, (*SMALL, f"method.aggregation={how}")) for how in ("plain", "masked")
    )
    assert plain.summary["model_digest"] == masked.summary["model_digest"]
    assert plain.summary["updates"] == masked.summary["updates"] == 3


def test_whoever_stays_away_the_bits_are_those_of_a_run_in_the_open_and_the_summary_says_so():
    given = (*SMALL, "budget.updates=6", "split.clients=4", "method.availability=0.5")
    plain, masked = (
        run_small("uldp_zo", (*given, f"method.aggregation={how}")) for how in ("plain", "masked")
    )
    assert plain.summary["model_digest"] == masked.summary["model_digest"]
    sizes = [row["silos"] for row in masked.rows("attempt").to_pylist()]
    assert sizes == [row["silos"] for row in plain.rows("attempt").to_pylist()]
    assert len(set(sizes)) > 1
    found = masked.summary["user_level"]
    assert found["took_part"] == {"least": min(sizes), "mean": sum(sizes) / 6}
    assert (found["aggregation"], found["silos"], found["attempts"]) == ("masked", 4, 6)


def test_every_sum_that_is_open_is_in_the_final_account():
    given = (
        "budget.updates=5",
        "split.clients=5",
        "method.aggregation=masked",
        "method.dropout=0.4",
    )
    late, never = (
        run_small("uldp_sgd", (*given, f"method.late_uploads={share}")) for share in ("1.0", "0.0")
    )
    assert late.summary["model_digest"] == never.summary["model_digest"]
    scopes = [run.summary["epsilon"][0]["scope"] for run in (late, never)]
    assert "5 rounds" in scopes[1]
    assert int(scopes[0].split()[0]) > 5
    assert "at least 2 in a release" in scopes[0]
    words = "every sum that a late upload opens is a release more"
    public = (
        "data.scale=none",
        "data.split=plain",
        "privacy.noise=system",
        "method.late_uploads=1.0",
    )
    spec = scenario("horizontal", "uldp_sgd", (*given, *public))
    planned = prepare_horizontal(spec).setting
    assert planned is not None
    assert words in verdict(planned).text
    assert words not in verdict(replace(planned, late=False)).text


def test_the_final_account_counts_the_silos_that_took_part():
    given = (
        "budget.updates=5",
        "split.clients=5",
        "method.aggregation=masked",
        "method.least_silos=2",
    )
    scopes = [
        run_small("uldp_sgd", (*given, f"method.dropout={share}")).summary["epsilon"][0]["scope"]
        for share in ("0.05", "0.4")
    ]
    assert "at least 5 in a release" in scopes[0], "the plan has to allow for 2"
    assert "at least 2 in a release" in scopes[1], "control"


@pytest.mark.parametrize("hidden", [[], [320]])
def test_zeroth_order_sends_one_ciphertext_a_round_whatever_the_model(hidden):
    model = f"model.hidden={hidden}" if hidden else "model.kind=logistic"
    run = scenarios.run(small_zo(model, "method.sampling=0.7", *PRIVATE))
    assert run.models["shared"].size == (24_010 if hidden else 650)
    sums = [size for _, kind, size in uploads(run) if kind == "PackedSum"]
    assert sums == [2 * 2048 // 8] * 3 * 3
    assert {kind for round, kind, _ in uploads(run) if round > 1} == {"PackedSum"}


def test_a_run_with_private_weights_repeats_and_nothing_secret_is_in_its_folder(
    tmp_path, monkeypatch
):
    secrets: list[bytes | int] = []

    def kept(module, name):
        made = getattr(module, name)

        def recorded(*given):
            found = made(*given)
            secrets.extend(found if isinstance(found, list) else [found])
            return found

        monkeypatch.setattr(module, name, recorded)

    for module, name in (
        (agreement, "derived"),
        (private_silo, "derived"),
        (private_silo, "unseal"),
        (private_silo, "uniform"),
        (paillier, "prime"),
    ):
        kept(module, name)
    first = scenarios.run(small_zo(*PRIVATE), tmp_path / "run")
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert len(secrets) > 50
    assert len(written) > 10_000
    for secret in secrets:
        if isinstance(secret, bytes):
            assert secret not in written
            assert secret.hex().encode() not in written
        elif secret > 2**60:
            assert str(int(secret)).encode() not in written
            assert int(secret).to_bytes(400, "little").rstrip(b"\0") not in written
    again = scenarios.run(small_zo(*PRIVATE))
    assert first.summary["model_digest"] == again.summary["model_digest"]


@pytest.mark.parametrize(("method", "away"), [("uldp_sgd", ()), ("uldp_zo", ()), ("uldp_zo", AWAY)])
def test_a_stopped_run_continues_with_new_keys_to_the_same_model(method, away, tmp_path):
    spec = scenario("horizontal", method, ("budget.updates=4", "method.aggregation=masked", *away))
    whole = scenarios.run(spec)
    assert scenarios.run(spec, tmp_path / "run", **stop_after(2)).summary["updates"] == 2
    prepared, folder, _ = continued(tmp_path / "run")
    last = run_prepared(prepared, folder)
    assert (last.summary["updates"], last.summary["model_digest"]) == (
        4,
        whole.summary["model_digest"],
    )
    assert sum(kind == "AgreementKey" for _, kind, _ in uploads(last)) == 2 * 3


def test_what_does_not_go_together_is_refused_before_anything_runs():
    for given, words in (
        (("method.weights=uniform", *PRIVATE), 'method.weights: wanted "records"'),
        (("method.aggregation=masked", "split.clients=1"), "split.clients: wanted at least 2"),
        (
            ("method.aggregation=masked", "method.asynchronous=true", "method.weights=uniform"),
            'method.aggregation: wanted "plain" with method.asynchronous',
        ),
        (
            ('method.aggregation="privat_weights"',),
            "wanted 'plain', 'masked' or 'private_weights', got 'privat_weights'",
        ),
        (
            (*PRIVATE, "method.count_cap=900"),
            r"method\.count_cap = 900 does not fit a key of 2048 bits",
        ),
        (PRIVATE[:1], r"method\.count_cap: wanted .* the largest that fits is \d+"),
    ):
        with pytest.raises(SpecError, match=words):
            scenarios.run(small_zo(*given))
