"""FedAS: alignment of the body, personal heads, and weights by Fisher information."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.methods import fedas
from fedtilt.models import parameters_to_vector
from tests.methods.published.reference import FED, RECIPE, STEPS, Reference, check, close, descend, shared, simulated


class FedAs(Reference):
    align_lr = 0.2

    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        shared_head = copy.deepcopy(net[-1])
        if n in self.kept:
            last = self.kept[n]
            net[-1] = copy.deepcopy(last[-1])
            loss = torch.zeros(())
            for label in y.unique():
                prototype = last[:-1](x)[y == label].mean(0).detach()
                features = net[:-1](x)[y == label]
                loss = loss + F.mse_loss(features, prototype.expand_as(features))
            if self.align_lr:
                descend([*net[:-1].parameters()], loss, self.align_lr)
        for _ in range(STEPS):
            descend([*net.parameters()], F.cross_entropy(net(x), y))
        grads = torch.autograd.grad(F.cross_entropy(net(x), y), [*net.parameters()])
        self.kept["fisher", n] = sum(float((g**2).sum()) for g in grads)
        self.kept[n], self.personal[n] = copy.deepcopy(net), parameters_to_vector(net)
        net[-1] = shared_head
        return net

    def server(self, models: Tensor, clients: list[int], number: int) -> Tensor:
        traces = torch.tensor([self.kept["fisher", n] for n in clients])
        return (traces / traces.sum()) @ models


def test_it_is_the_papers_update() -> None:
    check(fedas(0.2), FedAs())


class FedPerLike(FedAs):
    align_lr = 0.0

    def server(self, models: Tensor, clients: list[int], number: int) -> Tensor:
        return models.mean(0)


def test_without_alignment_and_weights_it_is_fedper() -> None:
    check(fedas(0.0, weighting="equal"), FedPerLike())
    body = shared(fedas(0.0, weighting="equal"))[:-70]
    close(body, shared(ft.methods.fedper()))


def test_the_head_that_a_client_sends_is_the_one_that_it_received() -> None:
    last, initial = simulated(fedas()), Reference().net
    torch.testing.assert_close(last.model("fedas")[-1].weight, initial[-1].weight)
    assert not torch.equal(last.model("fedas", last.selected[0])[-1].weight, initial[-1].weight)


def test_weights_that_no_training_sends_are_refused() -> None:
    with pytest.raises(InputError, match="weighting 'fisher' needs a training that sends 'fisher', such as 'fedas'"):
        simulated(ft.fedavg(weighting="fisher"))


def test_a_model_without_a_body_is_refused() -> None:
    with pytest.raises(InputError, match="'fedas' needs a model with trained layers before the last one"):
        list(ft.simulate([fedas()], FED, ft.models.logistic, **RECIPE))
