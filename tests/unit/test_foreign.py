import pickle
import sys
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from reprlib import recursive_repr
from types import FunctionType

import numpy as np
import pytest
import torch

from raydpzv import foreign
from raydpzv.errors import SpecError
from raydpzv.foreign import (
    call,
    handle,
    is_foreign,
    own_digests,
    own_files,
    resolve,
    source_digest,
    unpack,
)
from raydpzv.models.bottoms import mlp
from raydpzv.registry import WHOLE_MODELS
from tests.helpers.programs import Forked, python_said, said


class Plain:
    """An object of this module."""

    def __init__(self, width: int, rate: float = 0.5, *, name: str = "a") -> None:
        self.width, self.rate, self.name = width, rate, name


@pytest.mark.parametrize(
    ("word", "foreign"),
    [
        ("films:Reviewer", True),
        ("a.b_c:D.e", True),
        ("here:Net-1f3a9c02", True),
        ("mlp", False),
        ("a:", False),
        (":b", False),
        ("a b:c", False),
        ("http://x", False),
        (None, False),
    ],
)
def test_a_word_with_a_colon_names_a_users_object(word, foreign):
    assert is_foreign(word) is foreign


def test_an_importable_object_is_named_by_its_path():
    text = handle(Plain)
    assert text == f"{__name__}:Plain"
    assert resolve(text, "model.kind") is Plain
    assert resolve(handle(mlp), "model.kind") is mlp


def test_an_object_of_this_process_has_a_handle_by_its_source():
    def make(scale):
        def local(x):
            return x * scale

        return local

    one, again, other = handle(make(1)), handle(make(1)), handle(make(2))
    assert one == again != other
    assert one.startswith("here:")
    assert resolve(one, "model.kind")(3) == 3


def _net(width):
    class Net:
        def __init__(self, classes):
            self.shape = width, classes

        def make(self, classes):
            return width, classes

    return Net


def _by_default(width):
    def net(classes, width=width):
        return width, classes

    return net


def _lambdas():
    return lambda classes: (1, classes), lambda classes: (2, classes)


@pytest.mark.parametrize(
    "pair",
    [
        (_net(1), _net(2)),
        (_net(1)(1).make, _net(1)(2).make),
        (_by_default(1), _by_default(2)),
        (partial(_by_default(1), width=3), partial(_by_default(1), width=4)),
        _lambdas(),
    ],
)
def test_different_objects_of_one_source_have_different_handles(pair):
    assert handle(pair[0]) == handle(pair[0]) != handle(pair[1])


class Level(Enum):
    low = 1.0
    high = 5.0


@dataclass(frozen=True)
class Weight:
    value: float


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Looped:
    def __init__(self, value):
        self.value, self.me = value, self


class Word(str):
    __slots__ = ()


class Reached:
    """A descriptor, which the inspect module takes for a routine."""

    def __init__(self, value):
        self.value = value

    def __get__(self, found, kind):
        return self.value


def _cached(w):
    @lru_cache
    def scaled(x):
        return x * w

    return scaled


_VALUES = {
    "dict": lambda w: {"w": w},
    "nested": lambda w: {"w": [({w},)]},
    "set": lambda w: {w, "other"},
    "frozenset": lambda w: frozenset([w]),
    "array": lambda w: np.array([w, 2.0]),
    "array of objects": lambda w: np.array([w, None], object),
    "array of a type": lambda w: np.zeros(2, np.float32 if w == 1 else np.int32),
    "array of a shape": lambda w: np.zeros((1, 4) if w == 1 else (2, 2)),
    "number of numpy": lambda w: np.float32(w),
    "tensor": lambda w: torch.tensor(w),
    "half tensor": lambda w: torch.tensor([w], dtype=torch.bfloat16),
    "tensor of a type": lambda w: torch.zeros(2, dtype=torch.float32 if w == 1 else torch.int32),
    "type of tensors": lambda w: torch.float32 if w == 1 else torch.float64,
    "module": lambda w: torch.nn.Sequential(torch.nn.Dropout(w / 10)),
    "bytes": lambda w: str(w).encode(),
    "complex": lambda w: complex(0, w),
    "none": lambda w: None if w == 1 else w,
    "enum": Level,
    "dataclass": Weight,
    "slots": Slotted,
    "cycle": Looped,
    "text of a class": lambda w: Word(w),
    "descriptor": Reached,
    "partial": lambda w: partial(max, w),
    "method": lambda w: Weight(w).__eq__,
    "method of C": lambda w: np.array([w]).dot,
    "cached function": _cached,
    "function that a library made": lambda w: recursive_repr(str(w)),
    "imported module": lambda w: np if w == 1 else torch,
}


def _in_class(value):
    class Loss:
        table = value

        def __call__(self, scores, y):
            return self.table

    return Loss


def _in_instance(value):
    return _in_class(value)()


def _in_closure(value):
    def loss(scores, y):
        return value

    return loss


def _in_default(value):
    def loss(scores, y, *, value=value):
        return value

    return loss


def _in_attribute(value):
    def loss(scores, y):
        return loss.value

    loss.value = value
    return loss


def _in_global(value):
    def loss(scores, y):
        return TABLE  # noqa: F821

    return FunctionType(loss.__code__, {"__name__": __name__, "TABLE": value}, "loss")


_PLACES = [_in_class, _in_instance, _in_closure, _in_default, _in_attribute, _in_global]


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("kind", _VALUES)
def test_a_value_that_an_object_refers_to_changes_its_handle(kind, place):
    make = _VALUES[kind]
    one, again, other = (handle(place(make(w))) for w in (1.0, 1.0, 5.0))
    assert one == again != other


def test_values_that_the_code_does_not_read_leave_the_handle():
    def loss(scores, y):
        return scores.TABLE

    tables = [{"__name__": __name__, "TABLE": torch.tensor(w)} for w in (1.0, 5.0)]
    one, other = (handle(FunctionType(loss.__code__, table, "loss")) for table in tables)
    assert one == other


def test_shared_values_are_told_apart():
    a, b = Weight(1.0), Weight(2.0)
    assert source_digest([a, b, a]) != source_digest([a, b, b])


def test_a_second_object_with_the_handle_of_another_is_refused(monkeypatch):
    monkeypatch.setattr(foreign, "source_digest", lambda found: "0" * 8 + str(found(1)))
    first = _by_default(1)
    text = handle(first)
    assert handle(_by_default(1)) == text
    with pytest.raises(
        SpecError, match=f"another object of this process has the handle {text}; rename"
    ):
        handle(_by_default(2))
    assert resolve(text, "model.loss")(1) == (1, 1)


def test_values_that_are_nested_too_deeply_are_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SpecError, match="list: the values that it refers to are nested too deeply"):
        source_digest(deep)


_SETS = """
from abc import ABC
from dataclasses import dataclass, field
from raydpzv.foreign import handle

@dataclass(frozen=True)
class Words:
    words: frozenset = frozenset({"a", "b", "c", "d"})
    seen: set = field(default_factory=lambda: {("e", 1), ("f", 2), "g"})

TABLE = {"words": {"x", "y", "z"}, "own": Words(), "members": {Words, len, "w"}}

class Loss(ABC):
    names = {"p", "q", "r"}

    def __call__(self, scores, y):
        return TABLE if y in {"one", "two", "three"} else self.names

print(handle(Loss), handle(Loss()), handle(lambda y: y in {"one", "two", "three"}))
"""


def test_handles_do_not_depend_on_the_hash_seed(tmp_path):
    (tmp_path / "program.py").write_text(_SETS)
    runs = [
        python_said("program.py", cwd=tmp_path, PYTHONHASHSEED=seed).split() for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


_PROGRAM = """
from torch import nn, full
from raydpzv.foreign import handle

class Net(nn.Linear):
    def __init__(self, fill):
        super().__init__(2, 2, bias=False)
        self.weight.data.fill_(fill)

print(handle(Net(1.0)), handle(nn.Sequential(Net(1.0))), handle(Net(2.0)))
"""


def test_a_module_of_a_script_has_the_same_handle_in_every_process(tmp_path):
    (tmp_path / "program.py").write_text(_PROGRAM)
    one, two = (said(Forked([str(tmp_path / "program.py")])).split() for _ in range(2))
    assert one == two
    assert len(set(one)) == 3


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("raydpzv.models.bottoms:mlq", r'has no mlq. Did you mean "mlp"\?'),
        (
            "no_such_module:x",
            "cannot be imported .ModuleNotFoundError: No module named 'no_such_module'.",
        ),
        ("here:Elsewhere-00000000", "wanted the object Elsewhere, which another process has"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(word, complaint):
    with pytest.raises(SpecError, match=f"model.kind: .*{complaint}"):
        resolve(word, "model.kind")


def test_a_module_that_raises_at_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_at_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        SpecError, match=r"cannot be imported \(ZeroDivisionError: division by zero\)"
    ):
        resolve("broken_at_import:x", "model.kind")


def test_options_and_offered_values_become_arguments():
    found = call(Plain, {"rate": 1}, {"width": 3, "unused": 4}, "model.options")
    assert (found.width, found.rate, found.name) == (3, 1, "a")
    assert call(Plain, {"width": 5}, {"width": 3}, "model.options").width == 5


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"widht": 3}, r'model.options.widht: Plain has no such parameter. Did you mean "width"\?'),
        ({"width": "3"}, "model.options.width: Plain wants int, got '3'"),
        ({"width": True}, "model.options.width: Plain wants int, got True"),
        ({"width": 1, "rate": "x"}, "model.options.rate: Plain wants float, got 'x'"),
        ({}, r"model.options.width: Plain needs it; give it in \[model.options\]"),
    ],
)
def test_options_are_checked_against_the_signature(options, complaint):
    with pytest.raises(SpecError, match=complaint):
        call(Plain, options, {}, "model.options")


def test_objects_travel_by_value_where_they_cannot_be_imported(tmp_path):
    (tmp_path / "only_here.py").write_text("def double(x):\n    return 2 * x\n")
    program = (
        f"import pickle, sys; sys.path.insert(0, {str(tmp_path)!r}); import only_here; "
        "from raydpzv.foreign import handle, packed; text = handle(only_here.double); "
        "print(pickle.dumps(packed([text])).hex())"
    )
    unpack(pickle.loads(bytes.fromhex(said(Forked(["-c", program])))))
    assert resolve("only_here:double", "model.kind")(4) == 8


def test_a_helper_of_a_second_module_is_named_where_it_is_missing(tmp_path):
    (tmp_path / "only_there.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "user_file.py").write_text(
        "from only_there import double\ndef four(x):\n    return double(double(x))\n"
    )
    program = (
        f"import pickle, sys; sys.path.insert(0, {str(tmp_path)!r}); import user_file; "
        "from raydpzv.foreign import handle, packed; text = handle(user_file.four); "
        "print(pickle.dumps(packed([text])).hex())"
    )
    sent = pickle.loads(bytes.fromhex(said(Forked(["-c", program]))))
    with pytest.raises(
        SpecError, match=r"cannot import \(No module named 'only_there'\); install that module"
    ):
        unpack(sent)


def test_an_object_that_changed_since_it_was_recorded_is_named():
    def changed_net():
        return 1

    there = handle(changed_net)
    recorded = f"{there.rpartition('-')[0]}-00000000"
    word = there.partition(":")[2]
    with pytest.raises(
        SpecError, match=rf"another than on record \(.*-00000000, here {word}\): its source"
    ):
        resolve(recorded, "model")


def test_an_object_that_cannot_travel_is_refused(tmp_path):
    with (tmp_path / "open").open("w") as file:

        def local():
            return file

        with pytest.raises(SpecError, match="cannot be sent to another process"):
            handle(local)


def test_code_that_fails_when_called_is_refused_in_one_line():
    def broken():
        sys.exit("not\nhere")

    with pytest.raises(
        SpecError, match=r"model.options: .*broken fails when called .SystemExit: not here."
    ):
        call(broken, {}, {}, "model.options")


def test_a_module_that_was_loaded_again_gives_its_new_object(tmp_path, monkeypatch):
    (tmp_path / "loaded_again.py").write_text("def net(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = WHOLE_MODELS["loaded_again:net"]
    sys.modules["loaded_again"].net = lambda: 2
    assert WHOLE_MODELS["loaded_again:net"] is not first


def test_the_file_of_an_imported_module_is_part_of_an_objects_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_user.py").write_text(
        "import own_helper\n\n\ndef made():\n    return own_helper.act(1)\n"
    )
    (tmp_path / "own_helper.py").write_text("def act(x):\n    return x\n")
    before = own_digests(["own_user:made"], b"key")
    assert own_digests(["own_user:made"], b"key") == before
    assert own_digests(["own_user:made"], b"other") != before
    (tmp_path / "own_helper.py").write_text("def act(x):\n    return -x\n")
    assert own_digests(["own_user:made"], b"key") != before


def test_code_that_cannot_travel_has_the_digest_of_its_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "import threading\n\nLOCK = threading.Lock()\n\n\ndef locked():\n    return LOCK\n"
    (tmp_path / "own_locked.py").write_text(text)
    with pytest.raises(SpecError, match="cannot be sent"):
        source_digest(resolve("own_locked:locked", ""))
    before = own_digests(["own_locked:locked"], b"key")
    (tmp_path / "own_locked.py").write_text(text.replace("LOCK\n", "LOCK.locked()\n"))
    assert own_digests(["own_locked:locked"], b"key") != before


PACKAGE = {
    "__init__": "",
    "nets": "from own_pack import parts\n\n\ndef made():\n    return parts.act(1)\n",
    "parts": "import own_pack.deep.layers as layers\n\n\ndef act(x):\n    return layers.scale(x)\n",
    "deep/layers": "def scale(x):\n    from ..late import LATE\n    return x * LATE\n",
    "late": "import sys\nimport no_such_module_there\nLATE = 2\n",
    "unused": "LATE = 3\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the user's; `deep` has no __init__, and `late` is imported inside a function and
    never loads.
    """
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in PACKAGE.items():
        file = tmp_path / "own_pack" / f"{name}.py"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    yield tmp_path / "own_pack"
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_pack"]:
        del sys.modules[name]


@pytest.mark.parametrize("loaded", [False, True])
def test_files_of_a_module_are_those_that_it_imports_in_any_depth(package, loaded):
    if loaded:
        resolve("own_pack.nets:made", "")
    found = own_files("own_pack.nets")
    deep = {f"own_pack.{name.replace('/', '.')}": package / f"{name}.py" for name in PACKAGE}
    assert {name: file.resolve() for name, file in found.items()} == {
        "own_pack": package / "__init__.py",
        **{
            name: deep[name]
            for name in deep
            if name.rpartition(".")[2] not in ("__init__", "unused")
        },
    }


def test_no_module_that_the_code_never_imports_is_imported(package):
    (package / "deep" / "more").mkdir(parents=True, exist_ok=True)
    (package / "parts.py").write_text("def never():\n    import own_pack.deep.more.last\n")
    (package / "deep" / "more" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "deep" / "more" / "last.py").touch()
    assert {"own_pack.deep.more", "own_pack.deep.more.last"} <= set(own_files("own_pack.nets"))


def test_a_module_that_cannot_be_parsed_counts_by_its_bytes(package):
    (package / "parts.py").write_text("def (:\n")
    assert set(own_files("own_pack.nets")) == {"own_pack", "own_pack.nets", "own_pack.parts"}


@pytest.mark.parametrize("name", PACKAGE)
def test_a_change_in_any_module_that_an_object_imports_is_named(package, name):
    before = own_digests(["own_pack.nets:made"], b"key")
    file = package / f"{name}.py"
    file.write_text(f"{file.read_text()}OTHER = 1\n")
    now = own_digests(["own_pack.nets:made"], b"key")
    changed = [each for each in now if before[each] != now[each]]
    module = f"own_pack.{name.replace('/', '.')}".removesuffix(".__init__")
    assert changed[:1] == ([] if name == "unused" else [module])


def test_a_module_that_an_object_names_counts_with_what_it_imports(package):
    before = source_digest(resolve("own_pack.nets:made", ""))
    (package / "late.py").write_text("LATE = 5\n")
    assert source_digest(resolve("own_pack.nets:made", "")) != before
