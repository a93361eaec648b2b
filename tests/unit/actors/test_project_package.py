"""What of a project's folder is packed for a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from dataclasses import replace

import pytest

from actors.project_package import PROGRAM, pack, program, project
from raydpzv.errors import InputError


def put(folder, **contents):
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def own(what):
    """Names of the project's own files, without the program's."""
    return [file.name for file in what.files if file.name.split("/")[0] not in PROGRAM]


def files(folder, contents):
    for name in contents:
        put(folder, **{name: name})


def test_without_an_ignore_file_the_usual_is_left_out(tmp_path):
    kept = ["own.toml", "data/train.csv", "deep/runs/kept.txt"]
    files(
        tmp_path,
        [*kept, ".git/HEAD", ".venv/lib/x.py", "a/__pycache__/a.pyc", "b.pyc", "runs/one/summary.json"],
    )
    assert own(project(tmp_path)) == sorted(kept)


def test_ignore_files_are_heeded_where_they_lie(tmp_path):
    put(tmp_path, **{".rayignore": "*.csv\n!small.csv\n/top/\n", ".gitignore": "secret*\n"})
    put(tmp_path, **{"data/.rayignore": "raw/\n"})
    kept = ["own.toml", "small.csv", "data/top/x", "raw/y"]
    files(tmp_path, [*kept, "large.csv", "top/x", "secret.key", "data/raw/y", "data/large.csv"])
    assert own(project(tmp_path)) == sorted([*kept, ".rayignore", ".gitignore", "data/.rayignore"])
    # with an ignore file it alone says what is left out
    put(tmp_path, **{"runs/one/x": ""})
    assert "runs/one/x" in own(project(tmp_path))


def test_links_to_files_are_followed_and_links_to_folders_named(tmp_path):
    folder = tmp_path / "project"
    files(tmp_path, ["elsewhere/data.csv", "project/own.toml"])
    (folder / "data.csv").symlink_to(tmp_path / "elsewhere" / "data.csv")
    for name in ("all", "skipped"):
        (folder / name).symlink_to(tmp_path / "elsewhere")
    put(folder, **{".gitignore": "skipped/"})
    os.mkfifo(folder / "pipe")
    what = project(folder)
    assert own(what) == [".gitignore", "data.csv", "own.toml"]
    assert what.links == ["all"]
    assert what.withheld == "not packed: 1 behind a link to a folder (all)"
    assert what.has(folder / "data.csv")
    assert not what.has(folder / "all" / "data.csv")
    pack(what, tmp_path / "x.zip", 10**8)
    assert zipfile.ZipFile(tmp_path / "x.zip").read("data.csv") == b"elsewhere/data.csv"


def test_the_program_goes_along_unless_the_folder_is_its_own(tmp_path):
    files(tmp_path, ["own.toml"])
    names = {file.name for file in project(tmp_path).files}
    assert {"raydpzv/__main__.py", "actors/__init__.py", "scenarios/digits_dpzv.toml"} <= names
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)
    assert {file.name for file in program().files} == names - {"own.toml"}
    files(tmp_path, [f"{name}/__main__.py" for name in PROGRAM])
    assert {file.name for file in project(tmp_path).files} == {
        "own.toml",
        *(f"{name}/__main__.py" for name in PROGRAM),
    }


@pytest.mark.parametrize("name", ["actors/mine.py", "scenarios.py"])
def test_a_name_of_the_program_is_refused(tmp_path, name):
    files(tmp_path, [name])
    with pytest.raises(InputError, match="bears the name of a package of raydpzv"):
        project(tmp_path)


def test_the_same_files_are_the_same_package(tmp_path):
    folder = tmp_path / "project"
    files(folder, ["own.toml", "run.sh"])
    (folder / "run.sh").chmod(0o755)
    archives = [tmp_path / name for name in ("one.zip", "two.zip")]
    for archive, seconds in zip(archives, (0, 10**9), strict=True):
        os.utime(folder / "own.toml", (seconds, seconds))
        pack(project(folder), archive, 10**8)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    assert zipfile.ZipFile(archives[0]).getinfo("run.sh").external_attr >> 16 == 0o755


def test_too_much_is_refused_with_the_five_largest(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    sizes = {f"{n}.bin": n * 300_000 for n in range(1, 8)}
    for name, size in sizes.items():
        (folder / name).write_bytes(os.urandom(size))
    with pytest.raises(InputError) as refused:
        pack(project(folder), tmp_path / "x.zip", 2**20)
    said = str(refused.value)
    assert "at most 1.0 MiB" in said
    assert (
        "the largest are 7.bin (2.0 MiB), 6.bin (1.7 MiB), 5.bin (1.4 MiB), 4.bin (1.1 MiB), 3.bin (0.9 MiB);"
        in said
    )
    assert "2.bin" not in said
    # of small files leaving out would not help
    for n in range(2, 7):
        (folder / f"{n}.bin").write_bytes(b"x" * 10_000)
    with pytest.raises(InputError, match=r"the largest are 7\.bin \(2\.0 MiB\), 1\.bin \(0\.3 MiB\);"):
        pack(project(folder), tmp_path / "x.zip", 2**20)
    # what compresses well is measured as it is sent
    for name in sizes:
        (folder / name).write_bytes(bytes(10**6))
    pack(project(folder), tmp_path / "x.zip", 2 * 2**20)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="--project: wanted a folder"):
        project(tmp_path / "none")


SECRET = [
    ".env",
    "deep/.env.local",
    "results/one/operator.json",
    "keys/server.pem",
    ".ssh/config",
    "id_ed25519",
]


def test_what_bears_a_secrets_name_is_left_out_and_named(tmp_path):
    """A run folder outside runs/ has its operator's file; with a .rayignore, too."""
    kept = ["own.toml", ".env.example", "results/one/summary.json"]
    files(tmp_path, [*kept, *SECRET])
    what = project(tmp_path)
    assert own(what) == sorted(kept)
    assert sorted(what.secrets) == sorted([".ssh", *(name for name in SECRET if "ssh" not in name)])
    counted = f"not packed: {len(what.secrets)} with the name of a secret ({', '.join(what.secrets[:3])}, "
    assert what.withheld.startswith(f"{counted}{len(what.secrets) - 3} more); !/NAME in .rayignore")
    put(tmp_path, **{".rayignore": "*.csv\n!/keys/server.pem\n"})
    what = project(tmp_path)
    assert own(what) == sorted([*kept, ".rayignore", "keys/server.pem"])
    # what is left out on purpose needs no word
    put(tmp_path, **{".rayignore": ".env*\nresults/\nkeys\n.ssh\nid_*\n"})
    assert project(tmp_path).withheld == ""


def test_ignore_files_and_names_that_are_no_text_are_said(tmp_path):
    (tmp_path / ".gitignore").write_bytes(b"\xff*\n")
    with pytest.raises(InputError, match=r"\.gitignore: wanted patterns in UTF-8"):
        project(tmp_path)
    (tmp_path / ".gitignore").unlink()
    (tmp_path / os.fsdecode(b"caf\xe9.csv")).write_text("1")
    with pytest.raises(InputError, match="wanted a name in UTF-8"):
        project(tmp_path)


def test_a_large_file_that_little_is_left_of_is_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 5000)
    put(tmp_path / "project", **{"zeros.csv": "0" * 20000})
    what = project(tmp_path / "project")
    found = replace(what, files=[file for file in what.files if file.name == "zeros.csv"])
    pack(found, tmp_path / "a.zip", 2**20)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("zeros.csv") == b"0" * 20000


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    "ignored",
    [
        {".gitignore": "*.pt\n/all/here/raw/\nother/\n"},
        {".gitignore": "*.pt\n", "all/.gitignore": "!kept.pt\n*.log\n"},
        {
            ".gitignore": "*.pt\n",
            "all/here/.gitignore": "!kept.pt\n",
            "all/here/deep/.gitignore": "*.csv\n!x.log\n",
        },
        {"all/here/.gitignore": "deep/*\n!deep/x.csv\n", "all/here/deep/.gitignore": "!lost.pt\n"},
        {},
    ],
)
def test_ignore_files_above_the_folder_are_heeded_as_git_does(tmp_path, ignored):
    """Git itself is the second opinion."""
    folder = tmp_path / "top" / "all" / "here"
    made = ["own.toml", "kept.pt", "lost.pt", "x.log", "raw/a.csv", "other/b.csv", "deep/x.csv", "deep/x.log"]
    files(folder, [*made, "deep/lost.pt", ".rayignore"])
    put(folder, **{".rayignore": "\n"})
    put(tmp_path / "top", **ignored)
    put(tmp_path, **{".gitignore": "*\n"})  # of no repository
    assert "x.log" in own(project(folder)), "without a repository what lies above is nobody's"
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "top")], check=True)
    words = ["git", "-c", "core.excludesFile=", "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert own(project(folder)) == sorted(listed)


def test_a_folder_that_was_asked_for_by_name_is_packed_though_it_is_ignored(tmp_path):
    files(tmp_path, [".git/HEAD", "scratch/one/own.toml", "scratch/one/x.pt"])
    put(tmp_path, **{".gitignore": "scratch/\n*.pt\n"})
    assert own(project(tmp_path / "scratch" / "one")) == ["own.toml", "x.pt"]
