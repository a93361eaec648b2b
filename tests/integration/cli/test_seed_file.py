import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import scenarios
from raydpzv.experiment.rebuild import from_ledger
from raydpzv.files import sha256
from raydpzv.records.run_folder import RunFolder
from raydpzv.seed_file.seed_format import SeedRoot
from raydpzv.seed_file.seed_replay import read_seed_file
from tests.helpers.commands import call, complaint, stdout_of
from tests.helpers.public_data import PUBLIC
from tests.helpers.seed_samples import header, with_header
from tests.helpers.small_horizontal import small as small_horizontal
from tests.helpers.small_horizontal import stop_after

PRIVATE = (
    "method.server=frozen",
    *PUBLIC,
    "privacy.noise=system",
    "budget.updates=40",
    "evaluate.every=20",
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A horizontal run whose step size and number of directions change, and its seed file."""
    folder = tmp_path_factory.mktemp("horizontal")
    scenarios.run(small_horizontal("schedules"), folder / "run")
    stdout = stdout_of(call("publish", folder / "run", "--compact", "--out", folder / "run.seeds"))
    return folder / "run", folder / "run.seeds", stdout


@pytest.fixture(scope="module")
def parties(small, tmp_path_factory):
    """A private vertical run and its seed file."""
    folder = tmp_path_factory.mktemp("vertical")
    scenarios.run(small(*PRIVATE), folder / "run")
    stdout = stdout_of(call("publish", folder / "run", "--compact", "--out", folder / "run.seeds"))
    return folder / "run", folder / "run.seeds", stdout


def test_a_file_rebuilds_the_model_bit_for_bit(shared, tmp_path):
    run, file, said = shared
    assert said.startswith("NOT PRIVATE: no noise is added")
    assert "rebuilt from the file, bit for bit" in said
    assert "larger than the model" not in said
    stdout_of(call("replay", file, "--out", tmp_path / "model.npz"))
    x = np.load(tmp_path / "model.npz")["shared"]
    assert sha256(x) == sha256(RunFolder.open(run).models()["shared"])
    assert call("replay", file, "--out", tmp_path / "model.safetensors").exit_code == 0
    named = load_file(tmp_path / "model.safetensors")
    assert list(named) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert torch.cat([value.flatten() for value in named.values()]).numpy().tobytes() == x.tobytes()


def test_the_file_of_parties_rebuilds_each_of_them(parties, tmp_path):
    run, file, said = parties
    assert said.startswith("PRIVATE")
    assert call("replay", file, "--out", tmp_path / "models.npz").exit_code == 0
    found, wanted = np.load(tmp_path / "models.npz"), RunFolder.open(run).models()
    assert {name.replace("_", " ") for name in found.files} == wanted.keys() - {"server"}
    for name in found.files:
        assert found[name].tobytes() == wanted[name.replace("_", " ")].tobytes()
    one = tmp_path / "one.seeds"
    assert call("publish", run, "--compact", "--client", "1", "--out", one).exit_code == 0
    assert [model.name for model in read_seed_file(one).models] == ["client 1"]
    assert (
        f"client 1: 610 parameters, sha256 {sha256(wanted['client 1'])}"
        in call("replay", one).stdout
    )
    result = call("replay", file, "--client", "1", "--out", tmp_path / "1.safetensors")
    assert f"sha256 {sha256(wanted['client 1'])}" in result.stdout
    assert list(load_file(tmp_path / "1.safetensors")) == [
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
    ]
    call("replay", file, "--out", tmp_path / "all.safetensors")
    assert "client_3.3.bias" in load_file(tmp_path / "all.safetensors")


KINDS = (
    "decomfl",
    "asynchronous",
    "adam",
    "svrg",
    "mezo",
    "add_back",
    "feedsign",
    "fzoo",
    "fedkseed",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_with_a_ledger_has_a_file(kind, tmp_path):
    scenarios.run(small_horizontal(kind), tmp_path / "run")
    stdout_of(call("publish", tmp_path / "run", "--compact", "--out", tmp_path / "run.seeds"))
    (model,) = read_seed_file(tmp_path / "run.seeds").models
    wanted = from_ledger(tmp_path / "run")
    assert model.result.hex() == sha256(wanted.models["shared"])
    # a client that chooses its seeds by what it read has no schedule, and sums have none
    assert isinstance(model.seeds, SeedRoot) == (kind not in ("asynchronous", "fedkseed"))
    assert (model.form == "sign") == (kind == "feedsign")
    assert kind != "fedkseed" or len(model.scalars) <= 16, (
        "one scalar for each seed of the pool, not each entry"
    )


def test_groups_and_rank_one_directions_are_on_file(tmp_path):
    groups = 'method.groups={"3.*" = {lr = 2.0, smoothing = 0.5}}'
    many = ("method.perturbations=20", "method.direction=rank_one", groups)
    scenarios.run(small_horizontal("decomfl", *many), tmp_path / "run")
    result = call("publish", tmp_path / "run", "--compact", "--out", tmp_path / "run.seeds")
    size = (tmp_path / "run.seeds").stat().st_size
    assert (
        f"larger than the model itself: {size:,} bytes for 1,840 bytes of weights" in result.stdout
    )
    assert "rebuilt from the file, bit for bit" in result.stdout, result.output
    file = read_seed_file(tmp_path / "run.seeds")
    assert file.law == "rank_one"
    factors = {tensor.name: (tensor.lr, tensor.smoothing) for tensor in file.models[0].tensors}
    assert factors == {
        "1.weight": (1, 1),
        "1.bias": (1, 1),
        "3.weight": (2, 0.5),
        "3.bias": (2, 0.5),
    }


def test_what_is_published_of_a_private_run_can_be_made_compact(parties, tmp_path):
    run, file, said = parties
    assert call("publish", run, "--out", tmp_path / "public", "--quiet").exit_code == 0
    result = call("publish", tmp_path / "public", "--compact", "--out", tmp_path / "run.seeds")
    assert result.stdout.splitlines()[0] == said.splitlines()[0]
    assert (tmp_path / "run.seeds").read_bytes() == file.read_bytes()


def test_a_private_runs_file_holds_releases_and_nothing_else_of_its_rows(parties):
    run, file, _ = parties
    about, rows = header(file.read_bytes()), RunFolder.open(run).rows()
    assert about.keys() == {"law", "seeds", "rule", "models"}
    for m, model in enumerate(about["models"]):
        assert model.keys() == {"name", "tensors", "initial", "result", "phases", "root", "scalars"}
        mine = rows["release"].filter(rows["release"]["client"].to_numpy() == m)
        (there,) = [one for one in read_seed_file(file).models if one.name == model["name"]]
        assert there.scalars.tobytes() == mine["value"].to_numpy().astype(np.float32).tobytes()
    losses = rows["service"]["loss"].to_numpy().astype(np.float64)
    assert not any(loss.tobytes() in file.read_bytes() for loss in losses)


def test_what_may_not_leave_is_refused_with_the_reason(small, tmp_path):
    out = ("--compact", "--out", tmp_path / "run.seeds")
    scenarios.run(small(*PRIVATE, "method.server=sgd"), tmp_path / "hidden")
    assert (
        "is not private, so nothing of it may leave: the server trains its head on labels"
        in complaint(call("publish", tmp_path / "hidden", *out))
    )
    scenarios.run(small(*PRIVATE, "privacy.noise=seeded"), tmp_path / "seeded")
    assert "is not private, so nothing of it may leave" in complaint(
        call("publish", tmp_path / "seeded", *out)
    )
    scenarios.run(small_horizontal("secret"), tmp_path / "secret")
    assert "shift seeds by a secret" in complaint(call("publish", tmp_path / "secret", *out))
    scenarios.run(small_horizontal("mezo"), tmp_path / "stopped", **stop_after(5))
    assert "has not finished" in complaint(call("publish", tmp_path / "stopped", *out))
    scenarios.run(small_horizontal("fedavg"), tmp_path / "weights")
    assert "keeps no ledger of seeds and scalars" in complaint(
        call("publish", tmp_path / "weights", *out)
    )
    assert not (tmp_path / "run.seeds").exists()


def test_scalars_are_rounded_only_where_asked_and_said_so(shared, tmp_path):
    run, file, _ = shared
    half = tmp_path / "half.seeds"
    result = call("publish", run, "--compact", "--scalars", "float16", "--out", half)
    assert "the scalars are rounded: the rebuilt models are near those of the run" in result.stdout
    assert half.stat().st_size < file.stat().st_size
    assert call("replay", half, "--out", tmp_path / "half.npz").exit_code == 0
    x, there = np.load(tmp_path / "half.npz")["shared"], RunFolder.open(run).models()["shared"]
    assert 0 < np.abs(x - there).max() < 0.01 * np.abs(there).max()
    assert f"sha256 {sha256(x)}" in result.stdout
    out = ("--out", tmp_path / "sign.seeds")
    assert "wants scalars of one size" in complaint(
        call("publish", run, "--compact", "--scalars", "sign", *out)
    )
    assert 'wanted float32, float16, sign, got "float8". Did you mean' in complaint(
        call("publish", run, "--compact", "--scalars", "float8", *out)
    )


def test_options_that_do_not_fit_are_refused(shared, parties, tmp_path):
    run, file, _ = shared
    assert "--scalars: has no meaning without --compact" in complaint(
        call("publish", run, "--out", tmp_path, "--scalars", "sign")
    )
    assert "--out: wanted the folder to write; or --compact" in complaint(call("publish", run))
    assert "all clients train one model" in complaint(
        call("publish", run, "--compact", "--client", "0")
    )
    assert "--client: wanted 0..3, got 9" in complaint(
        call("publish", parties[0], "--compact", "--client", "9")
    )
    (tmp_path / "notes").write_text("mine")
    assert "holds something else than a seed file" in complaint(
        call("publish", run, "--compact", "--out", tmp_path / "notes")
    )
    assert "a seed file gives its final models alone" in complaint(
        call("replay", file, "--at", "3")
    )
    assert "--weights: " in complaint(call("replay", run, "--weights", tmp_path / "w.pt"))
    assert "holds no model of client 5; it has shared" in complaint(
        call("replay", file, "--client", "5")
    )
    assert "--out: wanted a file .safetensors or .npz" in complaint(
        call("replay", file, "--out", tmp_path / "m.bin")
    )


def test_files_that_are_wrong_are_refused_in_one_line(shared, tmp_path):
    _, file, _ = shared
    data, wrong = file.read_bytes(), tmp_path / "wrong.seeds"

    def said(content):
        wrong.write_bytes(content)
        return complaint(call("replay", wrong))

    assert "is cut or damaged: its SHA-256 does not fit" in said(data[:-1])
    assert "not a seed file" in said(b"PK" + data)
    assert 'of the law "cauchy", which this version does not know' in said(
        with_header(data, header(data) | {"law": "cauchy"})
    )
    assert "cannot be read (No such file or directory)" in complaint(
        call("replay", tmp_path / "none.seeds")
    )
    about = header(data)
    about["models"][0]["result"] = "00" * 32
    wrong.write_bytes(with_header(data, about))
    result = call("replay", wrong)
    assert result.exit_code == 1
    assert f"the file says {'00' * 32}" in result.stderr


@pytest.fixture(scope="module")
def from_weights(tmp_path_factory):
    """A run that started from a file of weights, and its seed file."""
    folder = tmp_path_factory.mktemp("weights")
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(1)
        layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.ReLU(), torch.nn.Linear(6, 10)
        )
    save_file(layers.state_dict(), folder / "base.safetensors")
    scenarios.run(
        small_horizontal("decomfl", f"model.weights={folder / 'base.safetensors'}"), folder / "run"
    )
    stdout_of(call("publish", folder / "run", "--compact", "--out", folder / "run.seeds"))
    return folder, layers.state_dict()


def test_weights_that_readers_have_stay_out_of_the_file(from_weights, tmp_path):
    folder, base = from_weights
    file = folder / "run.seeds"
    assert {tensor.start for tensor in read_seed_file(file).models[0].tensors} == {"weights"}
    assert file.stat().st_size < 2000
    out = tmp_path / "model.safetensors"
    stdout_of(call("replay", file, "--weights", folder / "base.safetensors", "--out", out))
    found = load_file(out)
    x = torch.cat([found[name].flatten() for name in base]).numpy()
    assert sha256(x) == sha256(RunFolder.open(folder / "run").models()["shared"])
    torch.save(base, tmp_path / "base.pt")
    assert call("replay", file, "--weights", tmp_path / "base.pt").exit_code == 0


def test_weights_of_a_module_are_named_as_scenarios_name_them(from_weights, tmp_path, monkeypatch):
    folder, _ = from_weights
    path = str(folder / "base.safetensors")
    code = f"from safetensors.torch import load_file\n\nfirst = load_file({path!r})\n"
    (tmp_path / "seed_weights_here.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    file, word = tmp_path / "run.seeds", ("--weights", "seed_weights_here:first")
    assert call("publish", folder / "run", "--compact", "--out", file, *word).exit_code == 0
    assert file.read_bytes() == (folder / "run.seeds").read_bytes()
    assert call("replay", file, *word).exit_code == 0
    assert "seed_weights_nowhere" in complaint(
        call("replay", file, "--weights", "seed_weights_nowhere:first")
    )


def test_other_base_weights_are_refused_with_both_digests(from_weights, tmp_path):
    folder, base = from_weights
    file, other = folder / "run.seeds", tmp_path / "other.safetensors"
    initial = read_seed_file(file).models[0].initial.hex()
    save_file({**base, "3.bias": base["3.bias"] + 1e-3}, other)
    said = complaint(call("replay", file, "--weights", other))
    assert "other first weights: sha256 " in said
    assert f"the seed file wants {initial}" in said
    save_file({name: value for name, value in base.items() if name != "3.bias"}, other)
    assert "lack 3.bias" in complaint(call("replay", file, "--weights", other))
    save_file({**base, "3.bias": base["3.bias"][:5].clone()}, other)
    assert (
        f"3.bias: wanted F32, F16 or BF16 of the shape [10], got F32 [5] in {other}"
        in complaint(call("replay", file, "--weights", other))
    )
    torch.save([1], tmp_path / "list.pt")
    said = complaint(call("replay", file, "--weights", tmp_path / "list.pt"))
    assert "--weights: wanted names and tensors" in said
    assert "model.weights" not in said
    said = complaint(call("replay", file))
    assert "give --weights with 1.weight, 1.bias, 3.weight, 3.bias" in said
    assert initial in said
    other.write_bytes((folder / "base.safetensors").read_bytes()[:300])
    assert "is no whole safetensors file" in complaint(call("replay", file, "--weights", other))


def test_weights_that_a_seed_file_does_not_use_are_refused_or_named(from_weights, shared, tmp_path):
    folder, base = from_weights
    said = complaint(call("replay", shared[1], "--weights", folder / "base.safetensors"))
    assert f"--weights: {shared[1]} has its first weights; leave it out" in said
    more = tmp_path / "more.safetensors"
    save_file({**base, "encoder.weight": torch.arange(6.0).view(2, 3)}, more)
    stdout = stdout_of(
        call(
            "replay", folder / "run.seeds", "--weights", more, "--out", tmp_path / "out.safetensors"
        )
    )
    assert f"not checked: 1 tensor of {more} that {folder / 'run.seeds'} does not name" in stdout
    plain = call(
        "replay",
        folder / "run.seeds",
        "--weights",
        folder / "base.safetensors",
        "--out",
        tmp_path / "x.safetensors",
    )
    assert "not checked" not in plain.stdout


def test_frozen_weights_beside_the_trained_are_checked_and_written(from_weights, tmp_path):
    folder, base = from_weights
    whole, file = tmp_path / "whole.safetensors", tmp_path / "run.seeds"
    save_file({**base, "encoder.weight": torch.arange(6.0).view(2, 3)}, whole)
    stdout_of(call("publish", folder / "run", "--compact", "--weights", whole, "--out", file))
    out = tmp_path / "model.safetensors"
    assert call("replay", file, "--weights", whole, "--out", out).exit_code == 0
    assert load_file(out)["encoder.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    frozen = b"encoder.weight [2, 3]\n" + np.arange(6, dtype="<f4").tobytes()
    assert read_seed_file(file).frozen == hashlib.sha256(frozen).digest()
    others = {"none": {}, "value": {"encoder.weight": torch.ones(2, 3)}}
    others["name"] = {"other.weight": torch.arange(6.0).view(2, 3)}
    others["shape"] = {"encoder.weight": torch.arange(6.0).view(3, 2)}
    for name, other in others.items():
        save_file({**base, **other}, whole)
        said = complaint(call("replay", file, "--weights", whole))
        assert "other weights beside the trained ones" in said, name
        assert read_seed_file(file).frozen.hex() in said
