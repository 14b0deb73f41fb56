"""`tilted_mean` and `nested_tilt` against mpmath, and the identities of the tilt."""

import collections
import functools
import itertools
import math

import mpmath
import pytest
import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math.small_batch import small_batch_tilt_grad
from fedtilt.math.tilt import nested_tilt, nested_tilt_grad, tilted_mean

INF = math.inf
EXPONENTS = (-12, -9, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6)
TILTS = [0.0, INF, -INF, *(sign * 10.0**e for e in EXPONENTS for sign in (1, -1))]
SCALES = (1e-6, 1e-3, 1.0, 37.0, 1e4)
SHAPES = ("one", "pair", "ties", "ten", "outlier of 10", "hundred")


@functools.cache
def sample(shape: str, scale: float) -> Tensor:
    """float32-representable losses, so that both precisions see the same numbers."""
    rng = torch.Generator().manual_seed(hash((len(shape), scale)) % 2**31)
    x = {
        "one": lambda: torch.ones(1),
        "pair": lambda: torch.tensor([0.25, 1.0]),
        "ties": lambda: torch.tensor([0.5, 1.0, 1.0, 0.5, 0.75, 1.0]),
        "ten": lambda: torch.rand(10, generator=rng),
        "outlier of 10": lambda: torch.cat([torch.rand(9, generator=rng) * 1e-3, torch.ones(1)]),
        "hundred": lambda: torch.rand(100, generator=rng),
        "outlier of 10000": lambda: torch.cat([torch.rand(9999, generator=rng) * 1e-3, torch.ones(1)]),
        "two values of 10000": lambda: torch.cat([torch.full((9999,), 0.125), torch.ones(1)]),
        "ten thousand": lambda: torch.rand(10_000, generator=rng),
    }[shape]()
    return (x * scale).float().double()


@functools.cache
def exact(shape: str, scale: float, t: float) -> tuple[float, list[float]]:
    """Value and gradient by mpmath, with 60 digits."""
    x = sample(shape, scale).tolist()
    n, lo, hi = len(x), min(x), max(x)
    if math.isinf(t):
        extreme = hi if t > 0 else lo
        ties = x.count(extreme)
        return extreme, [1 / ties if v == extreme else 0.0 for v in x]
    if t == 0:
        return float(mpmath.fsum(x) / n), [1 / n] * n
    with mpmath.workdps(60):
        m = mpmath.mpf(hi if t > 0 else lo)
        exps = {v: mpmath.exp(mpmath.mpf(t) * (mpmath.mpf(v) - m)) for v in set(x)}
        total = mpmath.fsum(count * exps[v] for v, count in collections.Counter(x).items())
        shares = {v: float(exp / total) for v, exp in exps.items()}
        return float(m + mpmath.log(total / n) / t), [shares[v] for v in x]


def assert_close(shape: str, scale: float, t: float, dtype: torch.dtype, tolerance: float) -> None:
    x = sample(shape, scale).to(dtype, copy=True).requires_grad_()
    value = tilted_mean(x, t)
    (grad,) = torch.autograd.grad(value, x)
    expected, expected_grad = exact(shape, scale, t)
    assert math.isfinite(value.item())
    assert grad.isfinite().all()
    assert abs(value.item() - expected) <= tolerance * abs(expected)
    error = (grad.double() - torch.tensor(expected_grad, dtype=torch.float64)).abs().max().item()
    assert error <= tolerance * max(expected_grad), f"gradient off by {error / max(expected_grad):.1e}"


GRID = list(itertools.product(SHAPES, SCALES, TILTS))
LARGE = [
    *itertools.product(
        ("outlier of 10000", "ten thousand"), (1e-6, 1.0, 1e4), (0.0, 1e-12, -1e-3, 1.0, -30.0, 1e6, INF)
    ),
    *itertools.product(("two values of 10000",), SCALES, TILTS),
]
assert 2 * (len(GRID) + len(LARGE)) >= 1000


@pytest.mark.parametrize(
    ("shape", "scale"),
    [
        # 10,000 numbers of 60 digits each
        pytest.param(*case, marks=[pytest.mark.slow] if "thousand" in case[0] or case[0] == "outlier of 10000" else [])
        for case in sorted({c[:2] for c in GRID + LARGE})
    ],
)
def test_value_and_gradient_match_mpmath(shape: str, scale: float) -> None:
    for t in (case[2] for case in GRID + LARGE if case[:2] == (shape, scale)):
        assert_close(shape, scale, t, torch.float64, 1e-12)
        assert_close(shape, scale, t, torch.float32, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_rounded_once(dtype: torch.dtype) -> None:
    for shape, t in itertools.product(("ten", "outlier of 10", "hundred"), TILTS):
        x = sample(shape, 1.0).to(dtype)
        value = tilted_mean(x, t)
        assert value.dtype == dtype
        assert value == tilted_mean(x.float(), t).to(dtype)


def test_a_stack_of_tilts_equals_one_at_a_time() -> None:
    x = sample("hundred", 1.0)
    tilts = torch.tensor(TILTS, dtype=torch.float64)
    one_by_one = torch.stack([tilted_mean(x, t) for t in TILTS])
    torch.testing.assert_close(tilted_mean(x, tilts), one_by_one, rtol=1e-15, atol=0)
    torch.testing.assert_close(tilted_mean(x.expand(len(TILTS), -1), tilts), one_by_one, rtol=1e-15, atol=0)


def test_any_dimension() -> None:
    x = torch.rand(3, 4, 5, dtype=torch.float64)
    for dim in (0, 1, 2, -2):
        expected = (2 * x).exp().mean(dim).log() / 2
        torch.testing.assert_close(tilted_mean(x, 2.0, dim=dim), expected)
        torch.testing.assert_close(tilted_mean(x, 2.0, dim=dim, weights=torch.ones_like(x)), expected)


@pytest.mark.parametrize("t", [0.0, 1e-9, 1.0, -3.0, 1e4, INF, -INF])
@pytest.mark.parametrize("masked", [math.nan, INF, -INF, 1e30])
def test_values_of_weight_zero_have_no_effect(t: float, masked: float) -> None:
    x = torch.tensor([0.3, masked, 0.9, masked, 0.9], requires_grad=True)
    w = torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0])
    value = tilted_mean(x, t, weights=w)
    (grad,) = torch.autograd.grad(value, x)
    repeated = torch.tensor([0.3, 0.9, 0.9, 0.9], requires_grad=True)
    expected = tilted_mean(repeated, t)
    (expected_grad,) = torch.autograd.grad(expected, repeated)
    torch.testing.assert_close(value, expected)
    a, b = expected_grad[0], expected_grad[1]
    torch.testing.assert_close(grad, torch.stack([a, a * 0, b * 2, a * 0, b]))


@pytest.mark.parametrize(("t", "extreme"), [(1e39, 0.9), (-1e300, 0.3)])
def test_a_tilt_beyond_float32_is_infinite(t: float, extreme: float) -> None:
    x = torch.tensor([0.3, 0.9, 0.5], requires_grad=True)
    value = tilted_mean(x, t)
    (grad,) = torch.autograd.grad(value, x)
    assert torch.equal(value, torch.tensor(extreme))
    assert grad.tolist() == (x == extreme).tolist()


@pytest.mark.parametrize("t", [2.0, -2.0, INF, -INF])
@pytest.mark.parametrize("losses", [(1.0, math.nan, 0.5), (math.nan, 1.0, 0.5), (0.5, 1.0, math.nan)])
def test_a_nan_loss_makes_the_result_nan(losses: tuple[float, ...], t: float) -> None:
    x, y = torch.tensor(losses), torch.zeros(3, dtype=torch.long)
    assert tilted_mean(x, t).isnan()
    assert nested_tilt_grad(x, [y], [t, 0.0]).isnan().all()
    assert small_batch_tilt_grad(x, [y], [t, 0.0]).isnan().all()


def test_all_weights_zero_gives_zero_not_nan() -> None:
    x = torch.tensor([[1.0, math.nan], [1.0, 2.0]], requires_grad=True)
    value = tilted_mean(x, 3.0, weights=torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    (grad,) = torch.autograd.grad(value.sum(), x)
    assert value.tolist() == [0.0, 1.0]
    assert grad.tolist() == [[0.0, 0.0], [1.0, 0.0]]


def naive_nested(losses: Tensor, groups: list[Tensor], tilts: list[float]) -> Tensor:
    """Dictionaries of groups, level by level: slow and obvious."""
    level_groups = [(losses[i], 1.0, tuple(int(g[i]) for g in groups)) for i in range(len(losses))]
    for level in range(len(groups)):
        merged: dict[tuple[int, ...], list[tuple[Tensor, float]]] = {}
        for value, mass, labels in level_groups:
            merged.setdefault(labels[: len(groups) - level] if level == 0 else labels, []).append((value, mass))
        level_groups = [
            (_tilted(members, tilts[level]), sum(m for _, m in members), key[1:]) for key, members in merged.items()
        ]
    return _tilted([(v, m) for v, m, _ in level_groups], tilts[-1])


def _tilted(members: list[tuple[Tensor, float]], t: float) -> Tensor:
    return tilted_mean(
        torch.stack([v for v, _ in members]), t, weights=torch.tensor([m for _, m in members], dtype=torch.float64)
    )


NESTS = (
    [5.0, -2.0, 0.0, 3.0],
    [0.0, INF, 1.0, -1.0],
    [-INF, 50.0, -7.0, 0.0],
    [-4.0, 0.0, INF, 2.0],
    [-2.0, 3.0, 3.0, 3.0],  # equal neighbours are one level, whatever the finer tilts are
    [3.0, 3.0, -2.0, -2.0],
)


@pytest.mark.parametrize("size", [1, 12, 300])  # below and above the switch from masks to a sort
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_nested_tilt_equals_the_naive_version(size: int, levels: int) -> None:
    rng = torch.Generator().manual_seed(size * levels)
    losses = torch.rand(size, generator=rng, dtype=torch.float64).requires_grad_()
    kinds = (torch.int64, torch.int32, torch.uint8)  # labels of any integer type
    groups = [torch.randint(0, 7, (size,), generator=rng).to(kinds[i]) for i in range(levels)]
    for tilts in NESTS:
        value = nested_tilt(losses, groups, tilts[: levels + 1])
        expected = naive_nested(losses, groups, tilts[: levels + 1])
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
        (grad,) = torch.autograd.grad(value, losses)
        (expected_grad,) = torch.autograd.grad(expected, losses)
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(
            nested_tilt_grad(losses.detach(), groups, tilts[: levels + 1]), grad, rtol=1e-10, atol=1e-14
        )


@pytest.mark.parametrize("size", [10, 400])
def test_equal_tilts_are_one_level_and_zero_tilts_the_mean(size: int) -> None:
    losses = torch.rand(size, dtype=torch.float64)
    label = torch.arange(size) % 3
    for t in (-50.0, -1.0, 1e-9, 2.0, 100.0, INF, -INF):
        one = tilted_mean(losses, t)
        torch.testing.assert_close(nested_tilt(losses, [label], [t, t]), one, rtol=1e-13, atol=0)
        as_tensor = torch.tensor(t, dtype=torch.float64)  # tensors are never merged: the formula itself must agree
        torch.testing.assert_close(nested_tilt(losses, [label], [as_tensor, as_tensor]), one, rtol=1e-13, atol=0)
    torch.testing.assert_close(nested_tilt(losses, [label], [0.0, 0.0]), losses.mean())


def test_sample_order_and_class_labels_do_not_matter() -> None:
    losses, label = torch.rand(50, dtype=torch.float64), torch.randint(0, 4, (50,))
    order, renamed = torch.randperm(50), torch.tensor([7, -2, 100, 0])
    value = nested_tilt(losses, [label], [3.0, -5.0])
    torch.testing.assert_close(nested_tilt(losses[order], [label[order]], [3.0, -5.0]), value, rtol=1e-14, atol=0)
    torch.testing.assert_close(nested_tilt(losses, [renamed[label]], [3.0, -5.0]), value, rtol=1e-14, atol=0)


def test_zero_weights_exclude_samples_and_whole_classes() -> None:
    losses = torch.tensor([1.0, math.nan, 3.0, math.nan], requires_grad=True)
    weights = torch.tensor([1.0, 0.0, 1.0, 0.0])
    value = nested_tilt(losses, [torch.tensor([0, 0, 1, 2])], [2.0, 5.0], weights=weights)
    (grad,) = torch.autograd.grad(value, losses)
    torch.testing.assert_close(value, nested_tilt(torch.tensor([1.0, 3.0]), [torch.tensor([0, 1])], [2.0, 5.0]))
    assert grad[[1, 3]].tolist() == [0.0, 0.0]
    assert grad.sum().item() == pytest.approx(1.0)


LABELS = torch.tensor([[0, 1, 1, 2, 0, 1], [1, 1, 1, 0, 0, 0], [2, 0, 2, 2, 2, 0]])


def stacked(losses: Tensor, label: Tensor, tau: Tensor, lam: Tensor) -> Tensor:
    return nested_tilt(losses, [label], [lam, tau])


def test_vmap_compile_and_plain_broadcasting_agree() -> None:
    losses = torch.rand(3, 6)
    tau, lam = torch.tensor([0.0, 50.0, -INF]), torch.tensor([100.0, -2.0, 0.0])
    plain = stacked(losses, LABELS, tau, lam)
    torch.testing.assert_close(torch.vmap(stacked)(losses, LABELS, tau, lam), plain)
    gradient = torch.func.grad(lambda x: stacked(x, LABELS, tau, lam).sum())(losses)
    torch.testing.assert_close(torch.vmap(torch.func.grad(stacked))(losses, LABELS, tau, lam), gradient)
    compiled = torch.compile(torch.vmap(torch.func.grad_and_value(stacked)), backend="aot_eager", fullgraph=True)
    grad, value = compiled(losses, LABELS, tau, lam)
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(grad, gradient)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_inductor_agrees() -> None:
    losses = torch.rand(3, 6)
    tau, lam = torch.tensor([0.0, 50.0, -INF]), torch.tensor([100.0, -2.0, 0.0])
    compiled = torch.compile(stacked, fullgraph=True)
    torch.testing.assert_close(compiled(losses, LABELS, tau, lam), stacked(losses, LABELS, tau, lam))


def test_second_derivatives() -> None:
    x = torch.rand(7, dtype=torch.float64)
    for t in (0.0, 2.0, -3.0):
        p = torch.softmax(t * x, 0)
        hessian = torch.autograd.functional.hessian(lambda v, t=t: tilted_mean(v, t), x)
        torch.testing.assert_close(hessian, t * (p.diag() - p[:, None] * p), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tilted_mean(torch.empty(0), 1.0), "must not be empty, got shape (0,)"),
        (lambda: tilted_mean(torch.ones(3, dtype=torch.long), 1.0), "floating point, got torch.int64"),
        (lambda: tilted_mean(torch.ones(3), math.nan), "a tilt must be a number or ±inf, got nan"),
        (lambda: tilted_mean(torch.ones(3), 1.0, weights=torch.ones(2)), "weights of shape (2,) do not broadcast"),
        (lambda: nested_tilt(torch.ones(3), [], [1.0, 2.0]), "got 2 tilts for 0 groups"),
        (lambda: nested_tilt(torch.ones(3), [torch.ones(3)], [1.0, 2.0]), "must have one integer label per loss (3,)"),
        (lambda: nested_tilt(torch.ones(3), [torch.ones(2, dtype=torch.long)], [1.0, 2.0]), "of shape (2,)"),
    ],
)
def test_invalid_input_gives_a_one_line_error(call, message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
