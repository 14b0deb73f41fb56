import itertools
import math

import pytest
import torch

from fedtilt.math.fair import (
    afl_weights,
    fedmgda,
    project_to_simplex,
    q_ffl,
    shortest_combination,
    tilted_weights,
)


def points(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


def test_a_projection_sums_to_1_and_is_the_nearest() -> None:
    """A widely copied projection is off by one, and does not sum to 1."""
    assert project_to_simplex(torch.tensor([1.0, 0.9, 0.3])).tolist() == pytest.approx([0.55, 0.45, 0.0])
    assert project_to_simplex(torch.tensor([0.2, 0.3, 0.5])).tolist() == pytest.approx([0.2, 0.3, 0.5])
    assert project_to_simplex(torch.tensor([5.0])).tolist() == [1.0]
    values = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    projected = project_to_simplex(values)
    assert float(projected.sum()) == pytest.approx(1, abs=1e-13)
    assert projected.min() == 0
    shift = (values - projected)[projected > 0]  # optimal: the same for all positive entries, and no less for others
    assert float(shift.max() - shift.min()) < 1e-12
    assert ((values - projected)[projected == 0] <= shift.max() + 1e-12).all()


def test_tilted_weights_are_softmax_and_its_limits() -> None:
    losses = torch.tensor([0.5, 1.5, 1.0])
    assert torch.allclose(tilted_weights(losses, 2.0), torch.softmax(2.0 * losses.double(), 0))
    assert torch.allclose(tilted_weights(losses, 0.0), torch.full((3,), 1 / 3, dtype=torch.float64))
    assert tilted_weights(losses, math.inf).tolist() == [0, 1, 0]
    assert torch.allclose(tilted_weights(torch.ones(4), 100.0), torch.full((4,), 0.25, dtype=torch.float64))


def test_afl_by_hand() -> None:
    """Three clients, of which two take part: λ + 0.1 · 3/2 · (F − 1.5)."""
    weights = torch.full((3,), 1 / 3)
    new = afl_weights(weights, [0, 2], torch.tensor([1.0, 2.0]), 0.1)
    assert torch.allclose(new, torch.tensor([1 / 3 - 0.075, 1 / 3, 1 / 3 + 0.075], dtype=torch.float64))
    losses = torch.tensor([1.0, 2.0, 4.0])
    assert torch.allclose(
        afl_weights(weights, [0, 1, 2], losses, 0.05), project_to_simplex(weights + 0.05 * losses.double())
    )
    assert torch.allclose(afl_weights(weights, [0, 1, 2], torch.ones(3), 0.1), weights.double())  # equal losses
    worst = weights
    for _ in range(50):
        worst = afl_weights(worst, [0, 1, 2], torch.tensor([1.0, 1.0, 1.5]), 0.1)
    assert worst.tolist() == [0, 0, 1]  # the largest loss wins in the end


def test_q_ffl_by_hand() -> None:
    """Two clients in one dimension: w = 0, models 1 and −1, losses 1 and 4, q = 1, lr = 0.5, so L = 2.

    g = −2, 2; numerator 1 · (−2) + 4 · 2 = 6; denominator (4 + 2 · 1) + (4 + 2 · 4) = 18.
    """
    models, received = points([1.0], [-1.0]), torch.zeros(1)
    assert float(q_ffl(models, received, torch.tensor([1.0, 4.0]), 1.0, 0.5)) == pytest.approx(-6 / 18)


def test_q_0_is_the_mean_whatever_the_losses() -> None:
    models = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    received = models[0] + 1
    for losses in (torch.zeros(5), torch.arange(5.0), torch.tensor([1e30, 1, 1, 1, 1])):
        assert torch.allclose(q_ffl(models, received, losses, 0.0, 0.1), models.mean(0), atol=1e-6)


def test_one_client_and_equal_clients_of_q_ffl() -> None:
    """With equal losses F and updates u, the step is u / (1 + q · ‖u‖² / (lr · F))."""
    received, update = torch.zeros(2), torch.tensor([0.3, 0.4])
    expected = update / (1 + 2 * 0.25 / (0.1 * 3))
    for count in (1, 4):
        result = q_ffl((received + update).expand(count, 2), received, torch.full((count,), 3.0), 2.0, 0.1)
        assert torch.allclose(result, expected)
    assert q_ffl(points([1.0, 1.0], [1.0, 1.0]), received, torch.tensor([1e30, 1.0]), 50.0, 0.1).isfinite().all()


def test_the_shortest_combination() -> None:
    """Of two vectors, in closed form; of several, by the conditions of an optimum."""
    a, b = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 1.0])
    gram = torch.tensor([[9.0, 0.0], [0.0, 1.0]])
    share = float(b.dot(b) - a.dot(b)) / float((a - b).dot(a - b))
    assert shortest_combination(gram).tolist() == pytest.approx([share, 1 - share])
    assert shortest_combination(gram, 0.4, 0.6).tolist() == pytest.approx([0.4, 0.6])
    vectors = torch.randn(12, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    vectors += torch.tensor([1.0, 0, 0, 0, 0])
    gram = vectors @ vectors.T
    weights = shortest_combination(gram)
    slopes = gram @ weights
    assert float((slopes - weights @ slopes).min()) > -1e-8  # no client's slope is below that of the combination
    assert torch.allclose(slopes[weights > 1e-8], weights @ slopes, atol=1e-8)


@pytest.mark.parametrize("dimensions", [2, 6])  # with 2, the Gram matrix is singular
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.1, 0.4), (0.2, 0.2)])
def test_the_shortest_combination_is_the_best_of_all_sets_of_bounds(dimensions: int, low: float, high: float) -> None:
    """Every entry is at its lower bound, at its upper one or free; the best feasible minimum of the 3^5 cases."""
    for seed in range(3):
        vectors = torch.randn(5, dimensions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
        gram, best = vectors @ vectors.T, math.inf
        for places in itertools.product(("low", "high", "free"), repeat=5):
            values = {"low": low, "high": high, "free": 0.0}
            p = torch.tensor([values[place] for place in places], dtype=torch.float64)
            free = torch.tensor([place == "free" for place in places])
            if free.any():
                count = int(free.sum())
                system = torch.ones(count + 1, count + 1, dtype=torch.float64)
                system[:count, :count], system[count, count] = gram[free][:, free], 0
                right = torch.cat([-(gram @ p)[free], 1 - p.sum()[None]])
                p[free] = (torch.linalg.pinv(system) @ right)[:count]
            if abs(p.sum() - 1) < 1e-9 and p.min() >= low - 1e-9 and p.max() <= high + 1e-9:
                best = min(best, float(p @ gram @ p))
        weights = shortest_combination(gram, low, high)
        assert float(weights.sum()) == pytest.approx(1)
        assert float(weights.min()) >= low
        assert float(weights.max()) <= high
        assert float(weights @ gram @ weights) == pytest.approx(best, abs=1e-8)


def test_fedmgda_hurts_no_client_and_normalises() -> None:
    received = torch.zeros(2)
    models = points([10.0, 0.0], [0.0, 0.1])  # lengths do not matter
    assert torch.allclose(fedmgda(models, received), torch.tensor([0.5, 0.5]))
    assert torch.allclose(fedmgda(points([3.0, 4.0]), received), torch.tensor([0.6, 0.8]))  # one client: a unit step
    assert torch.allclose(fedmgda(points([3.0, 4.0], [6.0, 8.0]), received), torch.tensor([0.6, 0.8]))
    opposed = points([1.0, 0.0], [1.0, 0.1], [-1.0, 0.5])
    step = fedmgda(opposed, received)
    assert (opposed @ step > 0).all()
    unit = opposed / opposed.norm(dim=1, keepdim=True)
    assert torch.allclose(fedmgda(opposed, received, bound=0.0), unit.mean(0))
    assert torch.equal(fedmgda(received.expand(3, 2), received), received)  # nobody moved
