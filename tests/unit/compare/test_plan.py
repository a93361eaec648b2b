import pytest

from raydpzv.compare.file import (
    CONTROLS,
    ComparisonFile,
    MethodEntry,
    read_comparison_file,
    resolved,
)
from raydpzv.compare.plan import Comparison, PlannedLine, read_comparison
from raydpzv.config import catalog
from raydpzv.config.scenario import VerticalScenario
from raydpzv.errors import DataError, SpecError
from tests.helpers.loading import refusal

FIELD = catalog.COMPARISONS / "digits_field.toml"


def comparison(*overrides, **changes):
    given = {"scenario": "digits_dpzv", "methods": (MethodEntry(scenario="vafl"),), **changes}
    return resolved(ComparisonFile(**given), overrides)


def lines(found):
    return [(line.label, line.epsilon) for line in found.lines]


def test_every_method_runs_at_every_epsilon_and_the_controls_are_always_there():
    found = comparison(
        epsilons=("none", 1.0),
        methods=(
            MethodEntry(scenario="digits_dpzv"),
            MethodEntry(scenario="vafl", private=("privacy.clip=0.1",)),
        ),
    )
    assert lines(found) == [
        ("digits_dpzv", None), ("digits_dpzv", 1.0), ("vafl", None), ("vafl", 1.0),
        (CONTROLS["frozen"], None), (CONTROLS["sgd"], None),
    ]  # fmt: skip
    assert [line.control for line in found.lines] == [False] * 4 + [True] * 2
    alone = comparison(methods=(MethodEntry(scenario="digits_dpzv"), MethodEntry(scenario="vafl")))
    assert lines(alone)[:2] == [("digits_dpzv, without noise", None), ("vafl", None)]
    assert [line.spec.method.name for line in found.lines[-2:]] == ["frozen", "sgd"]


def test_lines_share_everything_but_method_and_privacy():
    found = comparison("budget.updates=77", "data.test_fraction=0.3", epsilons=("none", 2.0), methods=(
        MethodEntry(scenario="digits_dpzv"), MethodEntry(scenario="zoo_vfl", private=("privacy.clip=0.1",)),
    ))  # fmt: skip
    for line in found.lines:
        assert line.spec.budget.updates == 77
        assert line.spec.data.test_fraction == 0.3
        assert line.spec.split == found.lines[0].spec.split
        assert line.spec.model == found.lines[0].spec.model
    base = catalog.load("digits_dpzv")
    assert found.lines[1].spec.privacy == base.privacy.model_copy(update={"epsilon": 2.0})
    assert found.lines[3].spec.privacy.clip == 0.1
    assert found.lines[3].spec.privacy.delta == base.privacy.delta


def test_settings_reach_their_method_with_noise_or_without():
    found = comparison(
        epsilons=("none", 1.0),
        methods=(
            MethodEntry(
                label="x",
                scenario="vafl",
                set=("method.lr=0.5",),
                private=("privacy.clip=0.2", "method.lr=0.25"),
            ),
        ),
    )
    assert [line.spec.method.lr for line in found.lines[:2]] == [0.5, 0.25]
    assert [line.spec.privacy.clip for line in found.lines[:2]] == [None, 0.2]
    assert [line.spec.privacy.mode for line in found.lines] == ["none", "paper", "none", "none"]


def test_a_fixed_deviation_is_noise_that_aims_at_no_epsilon():
    noisy = MethodEntry(label="noisy", scenario="vafl", set=("privacy.sigma=0.1",))
    found = comparison("privacy.noise=seeded", methods=(MethodEntry(scenario="vafl"), noisy))
    assert lines(found)[:2] == [("vafl", None), ("noisy", None)]
    plain, own = (line.spec.privacy for line in found.lines[:2])
    assert (plain.mode, plain.sigma) == ("none", None)
    assert (own.mode, own.sigma, own.epsilon, own.noise) == ("paper", 0.1, None, "seeded")


def test_what_is_set_for_all_comes_last_and_controls_take_what_they_have():
    found = comparison("method.batch=32", "method.lr=0.7", "privacy.noise=seeded", epsilons=("none", 1.0), methods=(
        MethodEntry(scenario="vafl", set=("method.lr=0.5",), private=("privacy.clip=0.2",)),
    ))  # fmt: skip
    assert {line.spec.method.batch for line in found.lines} == {32}
    assert [line.spec.method.lr for line in found.lines if line.spec.method.name != "frozen"] == [
        0.7
    ] * 3
    assert [line.spec.privacy.noise for line in found.lines][:2] == ["system", "seeded"]


def test_a_method_by_name_has_its_own_defaults_but_shares_batches_and_head():
    found = comparison(
        "method.batch=16", methods=(MethodEntry(label="czofo", set=("method.name=czofo",)),)
    )
    method = found.lines[0].spec.method
    assert (method.lr, method.batch, method.server_lr) == (
        0.02,
        16,
        0.02,
    )  # digits_dpzv's lr is 3e-3
    assert (
        found.lines[0].spec.privacy.clip is None
    )  # digits_dpzv's clips slopes, this one would clip rows


def test_a_control_among_the_methods_is_not_there_twice():
    found = comparison(epsilons=(1.0,), methods=(MethodEntry(scenario="frozen"),))
    assert lines(found) == [("frozen", None), (CONTROLS["sgd"], None)]
    assert found.lines[0].control


def test_horizontal_methods_are_compared_without_controls_and_without_epsilon():
    file = {
        "scenario": "digits_decomfl",
        "methods": (MethodEntry(), MethodEntry(label="fedavg", set=("method.name=fedavg",))),
    }
    assert lines(comparison(**file)) == [("decomfl", None), ("fedavg", None)]
    heavy = file | {"scenario": "mnist_decomfl", "set": ("method.batch=9",)}
    first, second = (line.spec.method for line in comparison(**heavy).lines)
    assert (first.lr, first.momentum, first.cohort, first.batch) == (1e-3, 0.5, 10, 9)
    # what both mean alike is shared, a step size and momentum are each method's own
    assert (second.lr, second.momentum, second.cohort, second.batch) == (0.1, 0.0, 10, 9)
    with pytest.raises(SpecError, match="adds no noise here"):
        comparison(**file, epsilons=(1.0,))


def test_runs_have_a_folder_each_and_begin_with_the_first_seed_of_all():
    found = comparison(seeds=(5, 2), epsilons=("none", 0.5), methods=(
        MethodEntry(label="VAFL: <b>gröss</b>", scenario="vafl", private=("privacy.clip=0.1",)),
    ))  # fmt: skip
    runs = list(found.runs())
    assert [run.spec.seed for run in runs] == [5] * 4 + [2] * 4
    assert len({run.folder for run in runs}) == 8
    assert runs[1].folder == "01-vafl-b-gr-ss-b-eps0.5-seed5"


def test_a_plan_comes_back_as_it_was_written(tmp_path):
    found = resolved(read_comparison_file(FIELD))
    (tmp_path / "plan.toml").write_text(found.as_toml())
    assert read_comparison(tmp_path / "plan.toml") == found
    (tmp_path / "plan.toml").write_text(found.as_toml().replace("seeds", "sedes"))
    with pytest.raises(DataError, match="no readable plan"):
        read_comparison(tmp_path / "plan.toml")


@pytest.mark.parametrize("name", catalog.names(catalog.COMPARISONS))
def test_every_comparison_of_the_program_can_be_resolved(name):
    found = resolved(read_comparison_file(catalog.COMPARISONS / f"{name}.toml"))
    assert found.title
    vertical = isinstance(found.lines[0].spec, VerticalScenario)
    assert sum(line.control for line in found.lines) == (2 if vertical else 0)
    heavy = [
        line.spec.method
        for line in found.lines
        if not vertical and getattr(line.spec.method, "momentum", 0)
    ]
    assert len({method.dampening for method in heavy}) <= 1, "momentum has one form in a comparison"


@pytest.mark.parametrize(
    ("changes", "overrides", "message"),
    [
        ({"seeds": (1, 1)}, (), "seeds: wanted different seeds"),
        ({"seeds": (-1,)}, (), "seeds: wanted numbers from 0"),
        ({"seeds": (2**63,)}, (), "seeds: wanted numbers from 0"),
        ({"targets": (90.0,)}, (), "targets: wanted test accuracies between 0 and 1"),
        ({"targets": (0.01, 0.0100000000001)}, (), "targets: wanted different ones"),
        (
            {"methods": (MethodEntry(scenario="vafl", label="a\nb"),)},
            (),
            "a label is a line of text",
        ),
        ({"methods": (MethodEntry(scenario="vafl"),) * 2}, (), "vafl is there twice"),
        ({"epsilons": (1.0,)}, (), r"privacy.clip: wanted.*\(from vafl at ε=1\)"),
        ({}, ("clock.kind=wall",), "comparison runs under the virtual clock"),
        ({}, ("privacy.epsilon=3",), "epsilons say where noise is added"),
        ({}, ("privacy.sigma=3",), "epsilons say where noise is added"),
        (
            {
                "epsilons": (1.0,),
                "methods": (MethodEntry(scenario="vafl", set=("privacy.sigma=1",)),),
            },
            (),
            r'put privacy.sigma in its `set`, with epsilons = \["none"\]',
        ),
        (
            {"methods": (MethodEntry(scenario="vafl", set=("budget.updates=9",)),)},
            (),
            "not a setting of",
        ),
        ({"methods": (MethodEntry(set=("method.name=vafll",)),)}, (), 'Did you mean "vafl"'),
        ({"methods": (MethodEntry(scenario="vaffl"),)}, (), 'Did you mean "vafl"'),
        (
            {"methods": (MethodEntry(scenario="vafl", set=("method.lrr=1",)),)},
            (),
            r"lrr: unknown setting \(from vafl\)",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_method_named(changes, overrides, message):
    with pytest.raises(SpecError, match=message):
        comparison(*overrides, **changes)


def test_lines_that_are_not_comparable_are_refused():
    line = comparison().lines[0]
    other = PlannedLine("other", None, False, catalog.load("vafl", ["split.clients=2"]))
    with pytest.raises(SpecError, match=r"other has another \[split\] than vafl"):
        Comparison("x", "", (0,), (), (line, other))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scenario = 'vafl'\nmethod = []", 'Did you mean "methods"'),
        ("scenario = 'vafl'\n[[methods]]\nlable = 'x'", 'Did you mean "label"'),
        ("seeds = 2", "scenario: wanted"),
        ("scenario = 'vafl'\nseeds = 0", "seeds"),
        ("scenario = ", "not a TOML file"),
    ],
)
def test_a_comparison_file_with_a_fault_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with refusal(SpecError, message):
        read_comparison_file(path)


def test_what_a_file_sets_for_all_reaches_every_method_before_its_own():
    found = comparison(
        set=("method.batch=32", "method.lr=0.5", "budget.updates=9"),
        methods=(
            MethodEntry(label="a", scenario="vafl"),
            MethodEntry(label="b", scenario="vafl", set=("method.lr=0.25",)),
            MethodEntry(label="c"),
        ),
    )
    assert [line.spec.method.batch for line in found.lines] == [32] * 5
    assert [line.spec.method.lr for line in found.lines if line.spec.method.name != "frozen"] == [
        0.5, 0.25, 0.5, 0.5,
    ]  # fmt: skip
    assert {line.spec.budget.updates for line in found.lines} == {9}


def test_values_of_epsilon_on_the_command_line_bind_methods_with_their_own():
    file = read_comparison_file(FIELD).model_copy(update={"epsilons": ("none", 1.0)})
    found = resolved(file)
    assert {line.epsilon for line in found.lines} == {None, 1.0}
    assert ("VAFL, gradient noise (sampled)", 1.0) in lines(found)


def test_a_clip_for_all_leaves_lines_without_noise_unclipped():
    found = comparison("privacy.clip=0.3", epsilons=("none", 1.0))
    assert [line.spec.privacy.clip for line in found.lines[:2]] == [None, 0.3]


def test_vertical_and_horizontal_methods_are_not_compared():
    with pytest.raises(SpecError, match="fedavg: fedavg and dpzv are not of one kind"):
        comparison(methods=(MethodEntry(label="fedavg", set=("method.name=fedavg",)),))
    with pytest.raises(SpecError, match="digits_dpzv: dpzv and decomfl are not of one kind"):
        comparison(scenario="digits_decomfl", methods=(MethodEntry(scenario="digits_dpzv"),))


def test_heads_that_learn_differently_are_refused_unless_it_is_said():
    entries = (
        MethodEntry(scenario="digits_dpzv"),
        MethodEntry(scenario="vafl", set=("method.server_lr=0.2",)),
    )
    with pytest.raises(
        SpecError, match=r"the head of vafl learns otherwise \(server=sgd, server_lr=0.2"
    ):
        comparison(methods=entries)
    zeroth = (MethodEntry(scenario="digits_dpzv", set=("method.server=zo",)),)
    with pytest.raises(SpecError, match="server=zo"):
        comparison(methods=zeroth)
    found = comparison(methods=entries, heads="each its own, tuned")
    assert found.heads == "each its own, tuned"


def test_a_control_has_the_methods_head():
    with pytest.raises(SpecError, match="frozen clients"):
        comparison(frozen=("method.server_lr=0.5",))
    comparison(central=("method.lr=0.5",))


def test_what_a_method_takes_over_for_all_lines_stays_in_the_plan(tmp_path):
    file = ComparisonFile(scenario="digits_decomfl", methods=(MethodEntry(),))
    own, other = resolved(file), resolved(file, ["method.name=fedavg"])
    (tmp_path / "plan.toml").write_text(other.as_toml())
    assert [line.spec.note for line in own.lines] == [""]
    assert "takes over" in other.lines[0].spec.note
    assert [line.spec.note for line in read_comparison(tmp_path / "plan.toml").lines] == [
        other.lines[0].spec.note
    ]


def test_a_head_that_nobody_trains_goes_beside_any_other():
    untrained = MethodEntry(scenario="digits_dpzv", set=("method.server=frozen",))
    (line,) = (line for line in comparison(methods=(untrained,)).lines if not line.control)
    assert line.spec.method.server == "frozen"
