"""One table of properties for every aggregator, and `tilted` against its definition."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math import aggregate, fair
from fedtilt.methods import COMPONENTS

INF = math.inf
PARAMETERS, OFFSET = 100_000, 100.0
ROUNDING = 2e-5  # a few units in the last place of a float32 near 100

# name: (rule, share of outliers it must tolerate)
AGGREGATORS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "mean": (aggregate.mean, 0.0),
    "median": (aggregate.median, 0.4),
    "trimmed_mean": (lambda m: aggregate.trimmed_mean(m, 0.3), 0.3),
    "krum": (lambda m: aggregate.krum(m, 0.3), 0.3),
    "multi_krum": (lambda m: aggregate.multi_krum(m, 0.3), 0.3),
    "bulyan": (lambda m: aggregate.bulyan(m, 0.1), 0.1),
    "geometric_median": (aggregate.geometric_median, 0.4),
    "centered_clipping": (aggregate.centered_clipping, 0.4),
    "fltrust": (lambda m: aggregate.fltrust(m, aggregate.median(m), root=aggregate.trimmed_mean(m, 0.3)), 0.3),
    "root_selected": (lambda m: aggregate.root_selected(m, aggregate.median(m), aggregate.krum(m, 0.3), 0.3), 0.3),
    "norm_clipped": (aggregate.norm_clipped, 0.4),
    "tilted q=0": (aggregate.tilted, 0.0),
    "tilted q=1e-5": (lambda m: aggregate.tilted(m, 1e-5), 0.0),
    "tilted q=5": (lambda m: aggregate.tilted(m, 5.0), 0.0),
    "tilted q=inf": (lambda m: aggregate.tilted(m, INF), 0.0),
    "tilted q=-1e-5": (lambda m: aggregate.tilted(m, -1e-5, start=aggregate.median(m)), 0.4),
    "tilted q=-inf": (lambda m: aggregate.tilted(m, -INF, start=aggregate.median(m)), 0.4),
    "tilted l2": (lambda m: aggregate.tilted(m, distance="l2"), 0.4),
    "tilted l1": (lambda m: aggregate.tilted(m, distance="l1"), 0.4),
    "tilted q=1e-6 steps": (lambda m: aggregate.tilted(m, 1e-6, steps=(3, 0.2)), 0.0),
    "tilted l2 q=1e-3 steps": (lambda m: aggregate.tilted(m, 1e-3, distance="l2", steps=(3, 0.2)), 0.0),
}


def test_the_table_has_every_aggregator() -> None:
    robust = {name for name in COMPONENTS["aggregator"] if not hasattr(fair, name)}  # others: test_fair.py
    assert {name.split()[0] for name in AGGREGATORS} == robust


def clients(count: int = 10, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return OFFSET + torch.randn(count, PARAMETERS, generator=rng)


def close(a: Tensor, b: Tensor, tolerance: float = ROUNDING) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def models() -> Tensor:
    return clients()


@pytest.mark.parametrize("name", AGGREGATORS)
def test_properties(name: str, models: Tensor) -> None:
    rule, tolerated = AGGREGATORS[name]
    result = rule(models)
    assert result.shape == (PARAMETERS,)
    assert result.dtype == models.dtype
    order = torch.randperm(len(models), generator=torch.Generator().manual_seed(1))
    close(rule(models[order]), result)
    offset = torch.linspace(-50, 50, PARAMETERS)
    close(rule(models + offset), result + offset, 4 * ROUNDING)
    if "e-" not in name and name != "tilted q=5":  # a finite q depends on the scale: see test_scale_law
        close(rule(models * 4) / 4, result)
    close(rule(models[:1]), models[0])
    close(rule(models[:1].expand(5, -1)), models[0])
    for share in (0.1, 0.2, 0.3, 0.4):
        if share <= tolerated:
            bad = models.clone()
            bad[: int(share * len(bad))] += 1e6
            error = (rule(bad) - OFFSET).norm() / PARAMETERS**0.5
            assert error < 2.5, f"{share:.0%} of outliers moved {name} by {error:.1f} standard deviations"


def weiszfeld(models: Tensor) -> Tensor:
    """The geometric median by its textbook iteration on coordinates, in float64."""
    points, y = models.double(), models.double().median(0).values
    for _ in range(5000):
        inverse = 1 / (points - y).norm(dim=1)
        y = inverse @ points / inverse.sum()
    return y


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize("far", [1e4, 1e8, 1e20, 1e37])
def test_one_far_client_costs_no_accuracy(far: float, place: int) -> None:
    honest = 0.1 * torch.randn(9, 100, generator=torch.Generator().manual_seed(0))
    models = torch.cat([honest[:place], torch.full((1, 100), far), honest[place:]])
    origin = torch.zeros(100)
    close(aggregate.tilted(models, -1.0, start=origin), aggregate.tilted(honest, -1.0, start=origin), 1e-7)
    close(aggregate.krum(models), aggregate.krum(torch.cat([honest, torch.full((1, 100), 1e3)])), 0.0)
    close(aggregate.multi_krum(models), honest.mean(0), 1e-7)
    close(aggregate.geometric_median(models).double(), weiszfeld(models), 1e-7)


@pytest.mark.parametrize("name", ["mean", "tilted q=0", "tilted q=1e-5", "tilted q=inf"])
def test_mean_and_positive_tilts_are_not_robust(name: str, models: Tensor) -> None:
    bad = models.clone()
    bad[0] += 1e6
    assert (AGGREGATORS[name][0](bad) - OFFSET).norm() / PARAMETERS**0.5 > 1e4


@pytest.mark.parametrize("q", [0.0, 1e-5, 5.0, INF, -1e-5, -5.0, -INF])
def test_scale_law(q: float, models: Tensor) -> None:
    for scale in (0.25, 4.0):
        scaled = aggregate.tilted(models * scale, q)
        close(scaled / scale, aggregate.tilted(models, q * scale**2), 4 * ROUNDING)


CLASSICAL = [
    ("mean", lambda m: aggregate.tilted(m, 0.0), lambda m: m.double().mean(0).float()),
    ("small q", lambda m: aggregate.tilted(m, 1e-12), aggregate.mean),
    ("small negative q", lambda m: aggregate.tilted(m, -1e-12), aggregate.mean),
    ("one half step", lambda m: aggregate.tilted(m, steps=(1, 0.5), start=torch.zeros(m.shape[1])), aggregate.mean),
    ("l2", lambda m: aggregate.tilted(m, distance="l2"), aggregate.geometric_median),
    ("l1", lambda m: aggregate.tilted(m, distance="l1"), lambda m: torch.quantile(m.double(), 0.5, dim=0).float()),
    ("large q", lambda m: aggregate.tilted(m, 1e6), lambda m: aggregate.tilted(m, INF)),
    ("large negative q", lambda m: aggregate.tilted(m, -1e3), lambda m: aggregate.tilted(m, -INF)),
    ("no trim", lambda m: aggregate.trimmed_mean(m, 0.0), aggregate.mean),
    ("trim all but two", lambda m: aggregate.trimmed_mean(m, 0.4), aggregate.median),
    ("no bad clients", lambda m: aggregate.multi_krum(m, 0.0), aggregate.mean),
    ("no bad clients for bulyan", lambda m: aggregate.bulyan(m, 0.0), aggregate.mean),
    ("one iteration", lambda m: aggregate.centered_clipping(m, iterations=1), aggregate.norm_clipped),
    ("wide centred clipping", lambda m: aggregate.centered_clipping(m, radius=1e9), aggregate.mean),
    ("no clipping", lambda m: aggregate.norm_clipped(m, radius=1e9), aggregate.mean),
]


@pytest.mark.parametrize(("name", "rule", "classical"), CLASSICAL, ids=[c[0] for c in CLASSICAL])
def test_special_cases_equal_classical_rules(name: str, rule: Callable, classical: Callable, models: Tensor) -> None:
    close(rule(models), classical(models))


def client_grads(models: Tensor, w: Tensor, q: float, u: Tensor) -> Tensor:
    return torch.softmax(u.log() + q * (models - w).square().sum(1), 0)


@pytest.mark.parametrize("size", [(2, 1), (5, 3), (10, 400), (60, 7)])
@pytest.mark.parametrize("q", [1e-3, 0.1, 1.0, 5.0, 300.0, -1e-3, -0.1, -1.0, -5.0, -300.0])
def test_tilted_is_stationary(size: tuple[int, int], q: float) -> None:
    rng = torch.Generator().manual_seed(size[0])
    models = OFFSET + torch.randn(*size, generator=rng, dtype=torch.float64)
    radius = (models - models.mean(0)).norm(dim=1).max()
    for u in (torch.ones(size[0], dtype=torch.float64), torch.rand(size[0], generator=rng, dtype=torch.float64)):
        w = aggregate.tilted(models, q, weights=u)
        assert (w - client_grads(models, w, q, u) @ models).norm() <= 1e-6 * radius


def test_the_smallest_enclosing_ball() -> None:
    rng = torch.Generator().manual_seed(3)
    models = torch.randn(40, 6, generator=rng, dtype=torch.float64)
    centre = aggregate.tilted(models, INF)
    radius = (models - centre).norm(dim=1).max()
    boundary = models[(models - centre).norm(dim=1) > radius * (1 - 1e-7)]
    for direction in torch.randn(200, 6, generator=rng, dtype=torch.float64):
        assert ((boundary - centre) @ direction).max() >= -1e-6 * radius  # no direction is closer to all of them
    for q in (1e15, 1e17, 1e300):  # Newton's method would solve a singular system
        torch.testing.assert_close(aggregate.tilted(models, q), centre, atol=1e-9, rtol=0)
    corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(aggregate.tilted(corners, INF), corners.new_tensor([1.0, 0.0]), atol=1e-7, rtol=0)


def test_mean_shift_finds_the_cluster_it_starts_in() -> None:
    left, right = torch.randn(6, 20) * 0.1, torch.randn(4, 20) * 0.1 + 5
    models = torch.cat([left, right])
    close(aggregate.tilted(models, -2.0, start=left[0]), aggregate.tilted(left, -2.0, start=left[0]), 1e-5)
    close(aggregate.tilted(models, -2.0, start=right[0]), aggregate.tilted(right, -2.0, start=right[0]), 1e-5)
    assert torch.equal(aggregate.tilted(models, -INF, start=right[2] + 1e-3), right[2])


def test_mean_shift_does_not_stop_at_a_saddle() -> None:
    models = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    y = aggregate.tilted(models, -0.55, start=models.new_tensor([1e-4]))  # 0 is a fixed point but not a mode
    assert y.item() > 0.4
    torch.testing.assert_close(y, (2 * 0.55 * y).tanh(), atol=1e-8, rtol=0)


def test_geometric_median_is_stationary_or_a_heavy_client() -> None:
    models = torch.randn(30, 50, dtype=torch.float64)
    w = aggregate.geometric_median(models)
    difference = w - models
    assert (difference / difference.norm(dim=1, keepdim=True)).mean(0).norm() < 1e-6
    heavy = torch.tensor([1.0] * 29 + [40.0], dtype=torch.float64)
    assert torch.equal(aggregate.geometric_median(models, heavy), models[29])
    three = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    assert aggregate.geometric_median(three).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["mean", "median", "geometric_median", "tilted"])
def test_weights_count_as_repetition(name: str) -> None:
    models = torch.randn(5, 40, dtype=torch.float64)
    times = torch.tensor([1, 3, 0, 2, 1])
    repeated = models.repeat_interleave(times, dim=0)
    rule = getattr(aggregate, name)
    for extra in [{"q": q} for q in (0.0, 0.3, INF, -0.01)] if name == "tilted" else [{}]:
        torch.testing.assert_close(rule(models, weights=times, **extra), rule(repeated, **extra), rtol=0, atol=1e-7)


DISTANCES_TO = {
    "squared_l2": lambda models, w: (models - w).square().sum(1),
    "l2": lambda models, w: (models - w).norm(dim=1),
    "l1": lambda models, w: (models - w).abs().sum(1),
}


def test_steps_decrease_the_objective() -> None:
    models = torch.randn(8, 30, dtype=torch.float64)
    for distance, q, size in (("squared_l2", 0.2, 0.01), ("l2", 1.0, 0.1), ("l1", 0.5, 0.002), ("l2", -1.0, 0.1)):
        distance_to = DISTANCES_TO[distance]
        objective = [
            (q * distance_to(models, w)).exp().mean().log() / q
            for w in (aggregate.tilted(models, q, distance, steps=(n, size)) for n in (1, 5, 20))
        ]
        assert objective[0] > objective[1] > objective[2]
    converged = aggregate.tilted(models, 0.05, steps=(2000, 0.05))
    torch.testing.assert_close(converged, aggregate.tilted(models, 0.05), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: aggregate.mean(torch.ones(3)), "(clients, parameters), got torch.float32 of shape (3,)"),
        (lambda: aggregate.mean(torch.ones(0, 3)), "of shape (0, 3)"),
        (lambda: aggregate.mean(torch.tensor([[1.0], [math.nan]])), "client 1 is not finite"),
        (
            lambda: aggregate.mean(torch.ones(2, 3), torch.tensor([1.0, -1.0])),
            "2 numbers ≥ 0, not all 0, got [1.0, -1.0]",
        ),
        (lambda: aggregate.tilted(torch.ones(2, 3), distance="l3"), "'l3'; choose one of squared_l2, l2, l1"),
        (lambda: aggregate.tilted(torch.ones(2, 3), 2.0, "l1"), "pass steps="),
        (lambda: aggregate.tilted(torch.ones(2, 3), math.nan), "got nan"),
        (lambda: aggregate.tilted(torch.ones(2, 3), start=torch.ones(4)), "start must have shape (3,), got (4,)"),
        (lambda: aggregate.tilted(torch.ones(2, 3), steps=(0, 1.0)), "got (0, 1.0)"),
        (lambda: aggregate.trimmed_mean(torch.ones(2, 3), 0.5), "trim must be in [0, 0.5), got 0.5"),
        (lambda: aggregate.krum(torch.ones(2, 3), -0.1), "bad_share must be in [0, 0.5), got -0.1"),
    ],
)
def test_invalid_input_gives_a_one_line_error(call: Callable, message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
