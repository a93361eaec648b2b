"""Rank-one directions and groups of parameters: moments, slices, steps, and patterns that are
refused.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key, direction_seed
from raydpzv.models.flat import FlatModel
from raydpzv.zo import device
from raydpzv.zo.apply_seeds import drawn
from raydpzv.zo.directions import Direction, Law
from raydpzv.zo.perturbation import LayerwisePerturbation, WholePerturbation
from raydpzv.zo.philox import normals
from raydpzv.zo.spans import Group, Shapes, Span, check_groups, spans_of
from raydpzv.zo.update import Descent, Rule, Step

SHAPES: Shapes = (
    ("0.weight", (30, 50)),
    ("0.bias", (30,)),
    ("1.weight", (8, 3, 5)),
    ("2.weight", (1, 40)),
)
SIZE = 1500 + 30 + 120 + 40
GROUPS = (("0.*", Group(2.0, 0.5)), ("1.*", Group(lr=3.0)))
RULES = (
    Rule(),
    Rule(momentum=0.9),
    Rule(momentum=0.9, damped=True),
    Rule(optimizer="signsgd"),
    Rule(momentum=0.9, damped=True, optimizer="adam", beta2=0.3, v0=1e-3),
    Rule(optimizer="svrg", epoch=2),
)


def rank_one(seed: int, shapes: Shapes = SHAPES, size: int = SIZE) -> Direction:
    return Direction(seed, size, "rank_one", spans_of("rank_one", (), shapes))


def test_a_matrix_gets_a_product_and_other_parameters_get_normals():
    u, z = rank_one(5).values(), normals(5, 0, 80 + 30 + 23 + 40)
    assert np.array_equal(u[:1500].reshape(30, 50), np.outer(z[:30], z[30:80]))
    assert np.array_equal(u[1500:1530], z[80:110])
    assert np.array_equal(u[1530:1650].reshape(8, 15), np.outer(z[110:118], z[118:133]))
    assert np.array_equal(u[1650:], z[133:]), "a matrix of one row"
    assert not np.array_equal(rank_one(6).values(), u)


def misses_the_identity(u_ND: np.ndarray) -> bool:
    """Whether the mean of u uᵀ is more than 5 standard errors from I somewhere (a product's square
    has variance 8).
    """
    n, d = u_ND.shape
    return bool(np.abs(u_ND.T @ u_ND / n - np.eye(d)).max() > 5 * np.sqrt(8 / n))


def draws(count: int, shapes: Shapes, size: int) -> np.ndarray:
    seeds = [direction_seed(Key(2), 0, step) for step in range(count)]
    return np.stack([rank_one(seed, shapes, size).values() for seed in seeds]).astype(np.float64)


@pytest.mark.slow
def test_the_second_moment_of_rank_one_is_the_identity():
    shapes: Shapes = (("a", (2, 3)), ("b", (2,)), ("c", (2, 2)))
    u = draws(20_000, shapes, 12)
    assert not misses_the_identity(u)
    assert np.abs(u.mean(0)).max() < 5 / np.sqrt(len(u))
    # the controls: another scale, b that is a's square, and one b in two matrices
    assert misses_the_identity(u * 1.08)
    dependent = u.copy()
    dependent[:, 0:6] = dependent[:, [0, 0, 0, 3, 3, 3]] * dependent[:, [0, 1, 2, 0, 1, 2]]
    assert misses_the_identity(dependent)
    shared = u.copy()
    shared[:, 8:10] = u[:, 0:2]
    assert misses_the_identity(shared)


@pytest.mark.slow
def test_the_variance_of_an_estimate_is_that_of_the_closed_form():
    """E‖<G, u> u‖² = (m + 2)(n + 2) ‖G‖² of a product, (mn + 2) ‖G‖² of normals: m, n rows and
    columns.
    """
    m, n, count = 6, 9, 40_000
    g = Key(3).generator().standard_normal(m * n)
    g /= np.linalg.norm(g)

    def second_moment(law: Law) -> float:
        spans = spans_of(law, (), (("w", (m, n)),))
        seeds = [direction_seed(Key(4), 0, step) for step in range(count)]
        u = np.stack([Direction(seed, m * n, law, spans).values() for seed in seeds]).astype(
            np.float64
        )
        return float(np.mean((u @ g) ** 2 * np.sum(u**2, axis=1)))

    product, plain = (m + 2) * (n + 2), m * n + 2
    assert abs(second_moment("rank_one") / product - 1) < 0.1 < product / plain - 1
    assert abs(second_moment("gaussian") / plain - 1) < 0.1


@pytest.mark.parametrize("groups", [(), GROUPS])
@pytest.mark.parametrize("law", ["gaussian", "sphere", "rademacher", "rank_one"])
def test_any_slice_of_a_direction_has_the_same_bits(law: Law, groups):
    u = Direction(7, SIZE, law, spans_of(law, groups, SHAPES))
    whole, x = u.values(), torch.linspace(-1, 1, SIZE)
    for start, stop in ((0, SIZE), (3, 1499), (1490, 1600), (1531, 1532), (1600, SIZE)):
        assert np.array_equal(u.values(start, stop), whole[start:stop])
        moved, out = x[start:stop].clone(), torch.empty(stop - start)
        u.add_to(x[start:stop], 0.3, start=start, out=out)
        u.add_to(moved, 0.3, start=start)
        assert torch.equal(out, moved)
        assert torch.allclose(
            out, x[start:stop] + 0.3 * torch.from_numpy(whole[start:stop]), atol=1e-6
        )
    assert torch.equal(x, torch.linspace(-1, 1, SIZE))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("law", ["gaussian", "sphere", "rademacher", "rank_one"])
def test_steps_of_groups_follow_the_formula(law: Law, rule: Rule):
    """The gradient's estimate is Δ u / s with u as it is drawn, and the step size η r, in
    float64.
    """
    rule = replace(rule, law=law, groups=GROUPS).on(SHAPES)
    plain = spans_of(law, (), SHAPES)
    s, r = np.ones(SIZE), np.ones(SIZE)
    s[:1530], r[:1530], r[1530:1650] = 0.5, 2.0, 3.0
    whole = Descent(torch.linspace(-1, 1, SIZE), rule, threads=2)
    by_step = Descent(whole.x.numpy().copy(), rule)
    w = whole.x.double().numpy().copy()
    v, mean, seconds = np.zeros(SIZE), np.zeros(SIZE), np.full(SIZE, rule.v0)
    largest, steps = seconds, []
    for number in range(4):
        anchor = rule.anchors(number + 1)
        step = Step([3 * number, 3 * number + 1], [0.7 - number, 0.4], 0.02, anchor)
        by_step.apply([step])
        steps.append(step)
        u = [
            Direction(int(seed), SIZE, law, plain).values().astype(np.float64) / s
            for seed in step.seeds
        ]
        g = np.mean([scalar * u_d for scalar, u_d in zip(step.scalars, u, strict=True)], axis=0)
        v = rule.momentum * v + (1 - rule.momentum if rule.damped else 1) * g
        seconds = rule.beta2 * seconds + (1 - rule.beta2) * g**2
        largest = np.maximum(largest, seconds)
        move = {"sgd": v, "signsgd": np.sign(g), "svrg": g + mean}.get(rule.optimizer)
        if anchor:
            mean = g
        else:
            w -= step.lr * r * (v / np.sqrt(np.maximum(largest, 1e-30)) if move is None else move)
    whole.apply(steps)
    assert np.abs(whole.x.numpy() - w).max() < 2e-5
    assert np.abs(w - np.linspace(-1, 1, SIZE)).max() > 1e-2
    assert np.array_equal(whole.x.numpy(), by_step.x)


def test_a_smoothing_radius_moves_the_estimate_of_no_gradient():
    """f linear: the mean of Δ u / s is the gradient. The control leaves out 1 / s."""
    shapes: Shapes = (("a", (3,)), ("b", (3,)))
    rule = Rule(groups=(("b", Group(smoothing=4.0)),)).on(shapes)
    gradient = np.array([1.0, -2.0, 0.5, 0.3, 1.5, -1.0])
    x, count = np.zeros(6, np.float32), 20_000
    seeds = [direction_seed(Key(6), 0, step) for step in range(count)]
    descent = Descent(x, rule)
    along = (
        np.stack([descent.direction(seed).values() for seed in seeds]).astype(np.float64) @ gradient
    )
    descent.apply([Step(seeds, along, 1.0)])
    far = np.linalg.norm(gradient * [1, 1, 1, 4, 4, 4])
    assert np.abs(-x - gradient).max() < 5 * far * np.sqrt(3 / count)
    assert np.abs(-x * [1, 1, 1, 4, 4, 4] - gradient).max() > 1


def model() -> FlatModel:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(50, 6, padding_idx=0), nn.LayerNorm(6)
            self.out = nn.Linear(6, 50, bias=False)
            self.out.weight = self.table.weight
            self.last = nn.Linear(50, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.last(self.out(self.norm(self.table(ids).mean(1))).relu())

    return FlatModel(Tied, Key(3))


def test_layers_are_perturbed_as_the_whole_vector_is():
    tied = model()
    u = Direction(4, tied.size, "rank_one", spans_of("rank_one", GROUPS, tied.shapes))
    ids, found = torch.arange(12).view(4, 3), []
    kinds = (
        WholePerturbation(tied.module, tied.flat, tied.offsets),
        LayerwisePerturbation(tied.module, tied.offsets),
    )
    for kind in kinds:
        with torch.no_grad(), kind.at(u, 0.1):
            found.append(tied.module(ids))
    assert torch.equal(*found)
    with torch.no_grad():
        assert not torch.allclose(found[0], tied.module(ids), atol=1e-3)


def test_products_on_a_device_have_the_bits_of_the_kernel(monkeypatch):
    monkeypatch.setattr(device, "_COPY", 200)
    seeds, span = np.array([3, 9, 11], np.uint64), Span(0, 1500, 0, 30, 50)
    scales = np.array([0.3, -0.2, 0.7], np.float32)
    x = torch.linspace(-1, 1, 1500)
    here = Descent(x.clone(), Rule("rank_one").on((("w", (30, 50)),)))
    here.apply([Step(seeds, scales * 3, 1.0)])
    for start, stop in ((0, 1500), (233, 1111)):
        there = x[start:stop].clone()
        rows, columns = drawn(seeds, span.drawn, 30), drawn(seeds, 30, 50)
        device.subtract_products(there, rows, columns, scales, start)
        assert torch.equal(there, here.x[start:stop])


def test_a_rule_without_its_models_shapes_is_refused():
    with pytest.raises(InputError, match=r"rule\.on"):
        Descent(torch.zeros(4), Rule("rank_one"))
    with pytest.raises(InputError, match="needs the shapes"):
        Direction(1, 4, "rank_one")
    assert Rule().on(SHAPES) == Rule()


@pytest.mark.parametrize(
    ("first", "second", "spans"),
    [
        (Group(), Group(), 1),
        (Group(2.0, 0.5), Group(2.0, 0.5), 1),
        (Group(2.0, 0.5), Group(2.0, 0.25), 2),
        (Group(2.0, 0.5), Group(3.0, 0.5), 2),
    ],
)
def test_neighbours_share_a_span_only_with_both_factors_equal(first, second, spans):
    shapes: Shapes = (("a", (4,)), ("b", (6,)))
    made = spans_of("gaussian", (("a", first), ("b", second)), shapes)
    assert len(made) == spans
    assert [(s.lr, s.smoothing) for s in made] == [
        (group.lr, group.smoothing) for group in (first, second)[-spans:]
    ]


NAMES = [name for name, _ in SHAPES]


@pytest.mark.parametrize(
    ("patterns", "names", "said"),
    [
        (
            ["1.wieght"],
            NAMES,
            r'no parameter matches "1\.wieght"\. Did you mean "1\.weight"',
        ),
        (
            ["0.*", "*bias"],
            NAMES,
            r'"0\.\*" and "\*bias" both match the parameter "0\.bias"',
        ),
        (["x"], [f"{n}.weight" for n in range(20)], "and 8 more"),
    ],
)
def test_patterns_that_match_nothing_or_twice_are_refused(patterns, names, said):
    check_groups(GROUPS, NAMES)
    with pytest.raises(SpecError, match=said):
        check_groups(tuple((pattern, Group()) for pattern in patterns), names)
