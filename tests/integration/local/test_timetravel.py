import shutil

import numpy as np
import pytest

import scenarios
from benchmarks.poisoner import ranked
from raydpzv.errors import InputError, NotRecomputable
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.rebuild import rebuild
from raydpzv.ledger.ledger import Ledger
from raydpzv.report.text import percent
from raydpzv.timetravel import history as of_history
from raydpzv.timetravel.history import open_history
from raydpzv.timetravel.what_if import what_if
from tests.helpers import small_horizontal
from tests.helpers.commands import call, complaint

EVERY = "evaluate.every=1"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A horizontal run in rounds of two local steps, with momentum and one client in three."""
    folder = tmp_path_factory.mktemp("shared") / "run"
    scenarios.run(
        small_horizontal.small(
            "decomfl", EVERY, "method.weights=rows", "split.sizes=drawn", "method.lr=0.5"
        ),
        folder,
    )
    return folder


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """A vertical run whose answers arrive at once, so that its evaluations see all of them."""
    folder = tmp_path_factory.mktemp("split") / "run"
    sizes = ("budget.updates=60", "data.train_rows=150", "data.test_rows=40")
    scenarios.run(scenarios.load("digits_dpzv", [*sizes, EVERY]), folder)
    return folder


def served(history, update):
    return [row["client"] for row in history.rows["service"].to_pylist() if row["round"] == update]


def recorded(history):
    return {row["round"]: row for row in history.rows["evaluation"].to_pylist()}


@pytest.mark.parametrize(
    "kind", ["decomfl", "asynchronous", "secret", "adam", "per_client", "fzoo", "fedkseed"]
)
def test_scores_of_every_horizontal_moment_are_those_on_record(kind, tmp_path):
    scenarios.run(small_horizontal.small(kind, EVERY), tmp_path / "run")
    with open_history(tmp_path / "run") as history:
        for update, row in recorded(history).items():
            found = history.evaluate(update)
            assert (found.accuracy, found.loss) == (row["accuracy"], row["loss"]), update


def test_scores_of_every_vertical_moment_are_those_on_record(split):
    with open_history(split) as history:
        assert len(recorded(history)) == 61
        for update, row in recorded(history).items():
            # the run scores before the answer arrives: the client that was served is still where it
            # was
            before = {
                f"client {m}": history.model(f"client {m}", update - 1)
                for m in served(history, update)
            }
            found = history.evaluate(update, before if update < 60 else {})
            assert (found.accuracy, found.loss) == (row["accuracy"], row["loss"]), update


def test_a_walk_in_any_order_gives_the_bits_of_a_rebuild(shared, split, monkeypatch):
    monkeypatch.setattr(of_history, "_EVERY", 5)
    with open_history(shared) as history:
        for update in (24, 3, 17, 16, 5, 0, 24):
            np.testing.assert_array_equal(
                history.model(MODEL, update), rebuild(shared, update).models[MODEL]
            )
    with open_history(split) as history:
        for update in (60, 7, 31, 30):
            wanted = rebuild(split, update, 2).models["client 2"]
            np.testing.assert_array_equal(history.model("client 2", update), wanted)


def test_kept_states_stay_within_their_memory():
    assert of_history.spacing(20_000, 4 * 2410, 2**29) == 256
    for updates, nbytes in ((20_000, 90_000_000), (500, 2**29)):
        assert updates // of_history.spacing(updates, nbytes, 2**29) * nbytes <= 2**29


def test_a_moment_says_what_the_rows_and_the_ledger_have(split):
    with open_history(split) as history:
        moment = history.moment(40)
        (service,) = [row for row in history.rows["service"].to_pylist() if row["round"] == 40]
        (release,) = [row for row in history.rows["release"].to_pylist() if row["round"] == 40]
        client = service["client"]
        assert moment.clients == (client,)
        assert moment.released == ((client, (np.float32(release["value"]).item(),)),)
        before, after = (
            history.model(f"client {client}", update).astype(float) for update in (39, 40)
        )
        assert moment.moved == {f"client {client}": pytest.approx(np.linalg.norm(after - before))}
        ages = [
            row["age_max"] for row in history.rows["staleness"].to_pylist() if row["round"] == 40
        ]
        assert moment.staleness == max(ages)
        assert moment.evaluated == (40, recorded(history)[40]["accuracy"])
        spent, terms = moment.epsilon
        assert spent == release["epsilon_client"] < history.moment(60).epsilon[0]
        assert "adversary client: mechanism floating-point Gaussian" in terms
        assert terms != history.moment(60).epsilon[1]  # the terms say what was spent until then


def test_the_next_fall_is_the_first_on_record(shared):
    with open_history(shared) as history:
        scores = [recorded(history)[update]["accuracy"] for update in range(25)]
        falls = [update for update in range(1, 25) if scores[update] < scores[update - 1]]
        assert falls
        for after in range(25):
            assert history.next_fall(after) == next((f for f in falls if f > after), None)


def test_the_next_stale_update_is_the_first_on_record(split):
    with open_history(split) as history:
        ages = [row for row in history.rows["staleness"].to_pylist() if row["age_max"] >= 10]
        wanted = sorted({row["round"] for row in ages})
        assert history.next_stale(0, 10) == wanted[0]
        assert history.next_stale(wanted[0], 10) == wanted[1]
        assert history.next_stale(0, 1000) is None


def test_the_clip_binds_first_where_a_wider_one_releases_something_else(tmp_path):
    released = {}
    for clip in (1.5, 1e9):
        settings = [
            "privacy.mode=none",
            f"privacy.clip={clip}",
            "privacy.epsilon=none",
            "privacy.delta=none",
        ]
        settings += [
            "budget.updates=200",
            "data.train_rows=150",
            "data.test_rows=40",
            "method.lr=0.02",
        ]
        scenarios.run(scenarios.load("digits_dpzv", settings), tmp_path / f"{clip}")
        with open_history(tmp_path / f"{clip}") as history:
            released[clip] = [row["value"] for row in history.rows["release"].to_pylist()]
            found = history.next_clip(0)
            if clip == 1.5:
                first, count = found, int(history.clipped[found])
            else:
                assert found is None  # control
    differ = [
        k for k, (one, other) in enumerate(zip(*released.values(), strict=True), 1) if one != other
    ]
    assert first == differ[0] > 1
    page = call("step", tmp_path / "1.5", "--clip").stdout
    assert page.startswith(f"update {first} of 200")
    assert f"clipped    {count} record" in page
    assert "one search at a time" in complaint(call("step", tmp_path / "1.5", "--clip", "--fall"))


def replayed_without(history, client, since, answers):
    """The last model of a ledger whose rounds after `since` are means without the client: an
    independent way.
    """
    ledger = Ledger.create(None, history.plan.header())
    for update in history.ledger.since(0, history.updates).each():
        scalar = update.scalar.astype(float)
        if int(update.round[0]) > since:
            if int(update.party[0]) == client:
                scalar = 0 * scalar
            everyone = sorted(answers.get(int(update.round[0]), {}).items())
            others = {c: kept for c, kept in everyone if c != client}
            if others:
                total = sum(weight for weight, _ in others.values())
                scalar = sum(weight * values for weight, values in others.values()) / total
                # the clients' pairs are joined: the client's own have a weight of 0
                if len(scalar) < len(update):
                    scalar = np.concatenate(
                        [(w if c in others else 0) / total * v for c, (w, v) in everyone]
                    )
        ledger.append(
            party=int(update.party[0]), read=int(update.read[0]), lr=float(update.lr[0]), step=update.step,
            perturbation=update.perturbation, seed=update.seed, scalar=scalar.astype(np.float32),
        )  # fmt: skip
    replica = history.replica(MODEL)
    replica.go_to(history.updates, ledger)
    return replica.state()[0]


GROUPS = 'method.groups={"1.*" = {lr = 0.3, smoothing = 2.0}}'
SHAPED = ("method.direction=rank_one", GROUPS)


@pytest.mark.parametrize(
    ("kind", "since", "changes"),
    [
        ("decomfl", 0, ()), ("decomfl", 11, ("method.weights=rows", "split.sizes=drawn")), ("decomfl", 5, SHAPED),
        ("decomfl", 5, (GROUPS,)),
        ("fedkseed", 0, ("method.weights=rows", "split.sizes=drawn")), ("fedkseed", 11, ()),
        ("schedules", 11, ()), ("secret", 0, ()), ("asynchronous", 11, ()),
    ],
)  # fmt: skip
def test_a_run_without_a_client_is_the_replay_of_the_ledger_without_it(
    kind, since, changes, tmp_path
):
    scenarios.run(small_horizontal.small(kind, *changes), tmp_path / "run")
    with open_history(tmp_path / "run") as history:
        found, whole = what_if(history, since), history.model(MODEL, 24).astype(float)
        answers = {} if kind == "asynchronous" else found._answers
        changed = 0
        for client in range(12):
            wanted = replayed_without(history, client, since, answers) - whole
            got = found.without(client).get(MODEL, whole) - whole
            np.testing.assert_allclose(got, wanted, atol=2e-6)
            changed += bool(np.abs(wanted).max() > 1e-4)
        assert changed >= 6


def test_a_vertical_run_without_a_client_keeps_its_model_of_then(split):
    with open_history(split) as history:
        found = what_if(history, 20).leave_out(1)
        then = rebuild(split, 20, 1).models["client 1"]
        assert found.metrics == history.evaluate(60, {"client 1": then})
        assert found.change == found.metrics.loss - history.evaluate(60).loss != 0


def test_the_clients_of_a_round_push_by_their_shares(tmp_path):
    scenarios.run(
        small_horizontal.small("decomfl", "method.cohort=1", "method.momentum=0"), tmp_path / "run"
    )
    with open_history(tmp_path / "run") as history:
        (pushed,) = what_if(history).pushes(7).values()
        assert pushed == pytest.approx(history.moment(7).moved[MODEL], rel=1e-4)


def test_a_push_leaves_out_the_momentum_of_earlier_updates(tmp_path):
    spec = small_horizontal.small("asynchronous", "method.momentum=0.5", "budget.updates=9")
    scenarios.run(spec, tmp_path / "run")
    with open_history(tmp_path / "run") as history:
        x = [history.model(MODEL, update).astype(float) for update in range(10)]
        for update in range(2, 10):
            (pushed,) = what_if(history).pushes(update).values()
            carried = 0.5 * (
                x[update - 1] - x[update - 2]
            )  # v <- βv + (1-β)g of one step an update
            assert pushed == pytest.approx(
                np.linalg.norm(x[update] - x[update - 1] - carried), rel=1e-4
            )
            assert pushed != pytest.approx(history.moment(update).moved[MODEL], rel=1e-2)  # control


def test_a_poisoner_among_a_hundred_clients_is_ranked_first(tmp_path):
    for seed in range(4):
        assert ranked(seed, tmp_path / f"{seed}", poisoned=True)[0] == 0
    # control: the same clients with right labels are not
    assert (
        sum(ranked(seed, tmp_path / f"right {seed}", poisoned=False)[0] == 0 for seed in range(3))
        <= 1
    )


def test_what_cannot_be_told_is_refused(shared, tmp_path):
    scenarios.run(small_horizontal.small("adam"), tmp_path / "adam")
    with open_history(tmp_path / "adam") as history, pytest.raises(InputError, match="not linear"):
        what_if(history)
    scenarios.run(small_horizontal.small("feedsign"), tmp_path / "votes")
    with (
        open_history(tmp_path / "votes") as history,
        pytest.raises(NotRecomputable, match="not linear in its clients"),
    ):
        what_if(history).leave_out(3)
    with open_history(shared) as history:
        for update in (25, 99):
            with pytest.raises(InputError, match=rf"update {update}: wanted 0\.\.24, the updates"):
                history.moment(update)
        with pytest.raises(InputError, match=r"--without: wanted 0\.\.11, got 12"):
            what_if(history).leave_out(12)
        with pytest.raises(InputError, match=r"--since: wanted 0\.\.23, got 24"):
            what_if(history, 24)
    scenarios.run(small_horizontal.small("fedavg"), tmp_path / "weights")
    assert "clips nothing" in complaint(call("step", shared, "--clip"))
    assert "--stale: wanted a number from 1 on" in complaint(call("step", shared, "--stale", -1))
    assert "has no ledger" in complaint(call("step", tmp_path / "weights"))
    assert "not a run folder (it does not exist)" in complaint(call("step", tmp_path / "nothing"))


def test_a_round_in_which_each_silo_releases_a_sum_is_one_update(tmp_path):
    spec = scenarios.load(
        "digits_users_zo", ["budget.updates=4", EVERY, 'method.groups={"1.bias" = {lr = 2.0}}']
    )
    scenarios.run(spec, tmp_path / "run")
    with open_history(tmp_path / "run") as history:
        spent = history.rows["user_epsilon"].to_pylist()
        for update in range(1, 5):
            moment = history.moment(update)
            assert moment.clients == (0, 1, 2, 3, 4)
            assert moment.evaluated[0] == update
            assert moment.epsilon[0] == max(
                row["external"] for row in spent if row["round"] <= update
            )
    assert (
        f"accuracy {percent(moment.evaluated[1])} after update 4"
        in call("step", tmp_path / "run").stdout
    )
    assert "not linear in its clients' scalars (noise" in complaint(
        call("step", tmp_path / "run", "--rank")
    )


def test_a_run_without_an_end_says_that_rows_may_be_missing(shared, tmp_path):
    shutil.copytree(shared, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    assert (
        "unfinished: rows of the last updates may be missing"
        in call("step", tmp_path / "run", "--at", 3).stdout
    )
    assert "unfinished" not in call("step", shared, "--at", 3).stdout


def test_the_command_shows_a_moment_a_search_and_absences(shared):
    shown = call("step", shared, "--at", 12).stdout
    with open_history(shared) as history:
        assert shown.startswith("update 12 of 24")
        assert f"accuracy {percent(history.evaluate(12).accuracy)}" in shown
        fall = history.next_fall(4)
        before = history.evaluate(fall - 1).accuracy
    fell = call("step", shared, "--fall", "--at", 4).stdout
    assert fell.startswith(f"update {fall} of 24")
    assert fell.endswith(f"  fell       from {percent(before)} after update {fall - 1}\n")
    assert "nothing was 99 updates old" in call("step", shared, "--stale", 99).stdout
    ranked = call("step", shared, "--rank").stdout
    assert ranked.startswith("First order: from update 0 on")
    assert ranked.count("without client") == 12
    table = call("step", shared, "--rank", "--csv").stdout.splitlines()
    assert [line.split(",")[1] for line in table[1:]] == [
        line.split(":")[0].split()[-1] for line in ranked.splitlines()[1:]
    ]
    assert call("step", shared, "--without", 3, "--since", 9).stdout.count("without client 3") == 1
