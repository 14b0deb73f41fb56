"""Robust rules and the steps before them: by hand, and against Flower and ByzFL."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math import aggregate
from fedtilt.math.robust import sort_rows
from fedtilt.methods import ServerRound, component_of

FIVE = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]])


def random_models(seed: int, clients: int, parameters: int = 7) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(clients, parameters, generator=rng, dtype=torch.float64)


def column(models: Tensor) -> list[float]:
    return models[:, 0].tolist()


def test_bulyan_by_hand() -> None:
    # f = 1 of 7: the five of lowest Krum score are 1 … 5, their median 3, and the three values nearest to it count
    models = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.5], [100.0]])
    chosen = sorted(models[aggregate_ranking(models, 1)[:5]].flatten().tolist())
    middle = chosen[2]
    nearest = sorted(chosen, key=lambda value: abs(value - middle))[:3]
    assert aggregate.bulyan(models, 1 / 7).item() == pytest.approx(sum(nearest) / 3)
    with pytest.raises(InputError, match="bulyan with 1 bad clients needs 7 models, got 5; lower bad_share"):
        aggregate.bulyan(FIVE, 0.2)


def aggregate_ranking(models: Tensor, bad: int) -> list[int]:
    distances = torch.cdist(models.double(), models.double()).square()
    scores = distances.sort(dim=1).values[:, 1 : len(models) - bad - 1].sum(1)
    return scores.argsort(stable=True).tolist()


def test_centered_clipping_by_hand() -> None:
    start = torch.zeros(1)
    # clipped to 1: 0, 1, 1, 1, 1 around 0, then −0.8, 0.2, 1, 1, 1 around 0.8
    assert aggregate.centered_clipping(FIVE, start, radius=1.0, iterations=1).item() == pytest.approx(0.8)
    assert aggregate.centered_clipping(FIVE, start, radius=1.0, iterations=2).item() == pytest.approx(0.8 + 2.4 / 5)
    assert aggregate.norm_clipped(FIVE, start, radius=1.0).item() == pytest.approx(0.8)
    assert aggregate.norm_clipped(FIVE, start).item() == pytest.approx(
        (0 + 1 + 2 + 2 + 2) / 5
    )  # the median length is 2


def test_fltrust_by_hand() -> None:
    start, root = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 3.0])  # the server's own update: length 2, upwards
    up, right, down = torch.tensor([1.0, 11.0]), torch.tensor([9.0, 1.0]), torch.tensor([1.0, -5.0])
    diagonal = torch.tensor([2.0, 2.0])
    close = torch.testing.assert_close
    close(aggregate.fltrust(torch.stack([up, right, down]), start, root), root)  # trust 1, 0, 0; scaled to length 2
    trust = 2**-0.5
    expected = start + (torch.tensor([0.0, 2.0]) + trust * torch.tensor([2**0.5, 2**0.5])) / (1 + trust)
    close(aggregate.fltrust(torch.stack([up, diagonal, down]), start, root), expected)
    close(aggregate.fltrust(torch.stack([right, down]), start, root), start)  # nobody agrees
    close(aggregate.fltrust(torch.stack([up, right]), start, start), start)  # the server learned nothing
    close(aggregate.fltrust(torch.stack([start, up]), start, root), root)  # a client that sends the model back


def test_root_selected_by_hand() -> None:
    start, root = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 3.0])  # the server's own update: length 2, upwards
    right, left, up, down = (
        start + torch.tensor(step) for step in ([4.0, 3.0], [-4.0, 3.0], [0.0, 5.0], [30.0, -40.0])
    )
    close = torch.testing.assert_close
    models = torch.stack([right, left, up, down])  # left and right point elsewhere, and their sum upwards
    expected = start + (torch.tensor([0.0, 3.0 + 3.0 + 5.0]) + torch.tensor([0.0, 5.0])) / 4
    close(aggregate.root_selected(models, start, root, 0.25), expected)  # without down, with the root in its place
    clipped = (
        start + torch.tensor([3.0, 3.0 + 3.0 + 5.0 - 4.0]) / 4
    )  # nobody left out: down counts as long as the others
    close(aggregate.root_selected(models, start, root, 0.0), clipped)
    close(aggregate.root_selected(models, start, start, 0.25), start)  # the server learned nothing


@pytest.mark.parametrize("seed", range(5))
def test_root_selected_against_a_loop_over_updates(seed: int) -> None:
    models, start, root = random_models(seed, 9), random_models(seed + 50, 1)[0], random_models(seed + 100, 1)[0]
    updates, own = models - start, root - start
    lengths = updates.norm(dim=1)
    median = lengths.median()
    updates = updates * (median / lengths).clamp(max=1)[:, None]
    kept = list(range(9))
    for _ in range(3):
        rest = {n: sum(updates[k] for k in kept if k != n) for n in kept}
        kept.remove(max(kept, key=lambda n: torch.cosine_similarity(rest[n], own, dim=0).item()))
    expected = start + (updates[kept].sum(0) + 3 * own * median / own.norm()) / 9
    torch.testing.assert_close(aggregate.root_selected(models, start, root, 1 / 3), expected)


def test_steps_before_a_rule_by_hand() -> None:
    assert column(aggregate.clipping(FIVE, torch.zeros(1), 1.5)) == [0.0, 1.0, 1.5, 1.5, 1.5]
    assert column(aggregate.clipping(FIVE, torch.zeros(1))) == [0.0, 1.0, 2.0, 2.0, 2.0]
    assert column(aggregate.nearest_neighbor_mixing(FIVE, 0.2)) == [1.5, 1.5, 1.5, 1.5, 26.5]
    assert column(aggregate.bucketing(FIVE, 2, [4, 0, 3, 1, 2])) == [50.0, 2.0, 2.0]
    assert column(aggregate.bucketing(FIVE, 1)) == column(FIVE)
    torch.testing.assert_close(aggregate.nearest_neighbor_mixing(FIVE, 0.0), FIVE.mean(0).expand(5, 1))
    with pytest.raises(InputError, match="order must be a permutation of 5 clients"):
        aggregate.bucketing(FIVE, 2, [0, 1])
    with pytest.raises(InputError, match="^size must be ≥ 1, got 0"):
        aggregate.bucketing(FIVE, 0)
    with pytest.raises(InputError, match="^radius must be a number > 0, got 0"):
        aggregate.clipping(FIVE, torch.zeros(1), 0.0)


@pytest.mark.parametrize("place", [0, 4, 9])
def test_mixing_keeps_the_digits_of_near_clients(place: int) -> None:
    honest = random_models(0, 9).float()
    models = torch.cat([honest[:place], torch.full((1, 7), 1e37), honest[place:]])
    mixed = aggregate.nearest_neighbor_mixing(models, 0.1)
    torch.testing.assert_close(mixed[(place + 1) % 10], honest.mean(0), atol=1e-6, rtol=0)


def selected_by_flower(models: Tensor, bad: int, count: int) -> np.ndarray:
    from flwr.app import Array, ArrayRecord, RecordDict
    from flwr.serverapp.strategy.multikrum import select_multikrum

    contents = [RecordDict({"arrays": ArrayRecord({"w": Array(model.numpy())})}) for model in models]
    chosen = select_multikrum(contents, bad, count)
    return np.stack([content["arrays"].to_numpy_ndarrays()[0] for content in chosen])


def flower_bulyan(models: Tensor, bad: int) -> np.ndarray:
    from flwr.serverapp.strategy.bulyan import aggregate_n_closest_weights

    chosen = selected_by_flower(models, bad, len(models) - 2 * bad)
    return aggregate_n_closest_weights([np.median(chosen, axis=0)], [[c] for c in chosen], len(models) - 4 * bad)[0]


FLOWER: dict[str, Callable[[Tensor, int], np.ndarray]] = {
    "krum": lambda models, bad: selected_by_flower(models, bad, 1)[0],
    "multi_krum": lambda models, bad: selected_by_flower(models, bad, len(models) - bad).mean(0),
    "median": lambda models, bad: np.median(models.numpy(), axis=0),  # as in its FedMedian
    "trimmed_mean": lambda models, bad: trim_mean(models.numpy(), bad / len(models) + 1e-9, axis=0),  # FedTrimmedAvg
    "bulyan": flower_bulyan,
}


@pytest.mark.parametrize("name", FLOWER)
def test_rules_agree_with_flower(name: str) -> None:
    pytest.importorskip("flwr")  # the workflow tests other systems without it
    for seed, (clients, bad) in enumerate([(11, 2), (12, 2), (15, 3), (20, 4), (7, 1)] * 4):
        models = random_models(seed, clients)
        zero = torch.zeros(7, dtype=torch.float64)
        round = ServerRound(received=zero, clients=range(clients), population=clients, selected=clients)
        rule = component_of("aggregator", {"rule": name} | ({} if name == "median" else {"bad_share": bad / clients}))
        ours, _ = rule.aggregate(models, round, {})
        np.testing.assert_allclose(ours.numpy(), FLOWER[name](models, bad), rtol=1e-9, atol=1e-12)


def test_rules_agree_with_byzfl() -> None:
    byzfl = pytest.importorskip("byzfl")  # it needs torchvision, which would bring another torch than the pinned one
    for seed, (clients, bad) in enumerate([(11, 2), (12, 3), (15, 4), (20, 4)] * 4):
        models, share = random_models(seed, clients), bad / clients
        start = torch.zeros(7, dtype=torch.float64)
        pairs = [
            (aggregate.trimmed_mean(models, share), byzfl.TrMean(bad)(models)),
            (aggregate.nearest_neighbor_mixing(models, share), byzfl.NNM(bad)(models)),
            (aggregate.clipping(models, start, 2.0), byzfl.Clipping(2.0)(models.clone())),
            (aggregate.centered_clipping(models, start, 1.5, 3), byzfl.CenteredClipping(L=3, tau=1.5)(models)),
            (aggregate.geometric_median(models), byzfl.GeometricMedian(nu=1e-9, T=2000)(models)),
        ]
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 14, 33, 100])
def test_sorted_rows_are_those_of_torch(count: int) -> None:
    rows = torch.randn(count, 103, generator=torch.Generator().manual_seed(count)).mul(9).round()[:, 2:-1]  # with ties
    before = rows.clone()
    cut = (count - 1) // 2
    assert torch.equal(sort_rows(rows), rows.sort(dim=0).values)
    assert torch.equal(sort_rows(rows, cut), rows.sort(dim=0).values[cut : count - cut])
    assert torch.equal(rows, before)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_the_median_of_equal_weights_is_that_of_the_weighted_one(count: int) -> None:
    models = torch.randn(count, 30)
    weights = torch.full((count,), 3.0)
    weights[0] += 1e-9  # no longer equal, but it changes no order
    assert torch.equal(aggregate.median(models), aggregate.median(models, weights))
