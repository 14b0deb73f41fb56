"""FoundationFL: synthetic models beside those of the clients."""

import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.methods import ServerRound, foundationfl
from fedtilt.methods.published import Foundation
from tests.methods.published.reference import Reference, check, shared

MODELS = torch.tensor([[0.0, 0.0], [1.0, 1.2], [1.1, 0.9], [9.0, 9.0]])


def given(models: Tensor) -> ServerRound:
    return ServerRound(received=models[0], clients=range(len(models)), population=len(models), selected=len(models))


def test_the_model_farthest_from_the_extremes_is_copied() -> None:
    """The extremes are the first and the last model; the third is farther from the first than the second is."""
    distances = torch.stack([(MODELS - end).norm(dim=1) for end in (MODELS.amax(0), MODELS.amin(0))]).amin(0)
    chosen = int(distances.argmax())
    assert chosen == 1
    prepared = Foundation(share=0.5).apply(MODELS, given(MODELS), {})
    torch.testing.assert_close(prepared.models, torch.cat([MODELS, MODELS[[1, 1]]]))
    assert prepared.mixing is not None
    torch.testing.assert_close(prepared.mixing @ MODELS.double(), prepared.models.double())


class Median(Reference):
    def server(self, models: Tensor, clients: list[int], number: int) -> Tensor:
        extremes = models.max(0).values, models.min(0).values
        scores = [min(float((m - end).norm()) for end in extremes) for m in models]
        synthetic = models[scores.index(max(scores))].repeat(len(models), 1)  # share = 1
        return torch.cat([models, synthetic]).quantile(0.5, dim=0)


def test_it_is_the_papers_update() -> None:
    check(foundationfl(share=1.0), Median())


@pytest.mark.parametrize("rule", ["median", "mean", {"rule": "trimmed_mean", "bad_share": 0.4}, "geometric_median"])
def test_without_synthetic_models_it_is_the_rule_alone(rule: object) -> None:
    settings = {"participation": 1.0}
    alone = shared(ft.fedavg(aggregator=rule), **settings)
    assert torch.equal(shared(foundationfl(0.0, aggregator=rule), **settings), alone)
    assert not torch.equal(shared(foundationfl(0.5, aggregator=rule), **settings), alone)
