"""FedRoD: a balanced loss for the generic head, the plain one for both heads together."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.methods import fedrod
from fedtilt.models import parameters_to_vector
from tests.methods.published.reference import MODEL, RECIPE, STEPS, Reference, check, close, descend, shared


class FedRod(Reference):
    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        own = self.kept.setdefault(n, nn.Linear(6, 10))
        if n not in self.personal:
            nn.init.zeros_(own.weight)
            nn.init.zeros_(own.bias)
        counts = torch.bincount(y, minlength=10).float()
        for _ in range(STEPS):
            features = net[:-1](x)
            generic = net[-1](features)
            # softmax weighted by the samples of every class
            weighted = counts * generic.exp()
            balanced = -(weighted[torch.arange(len(y)), y] / weighted.sum(1)).log().mean()
            both = F.cross_entropy(generic.detach() + own(features.detach()), y)
            descend([*net.parameters()], balanced)
            descend([*own.parameters()], both)
        personal = copy.deepcopy(net)
        personal[-1].weight.data += own.weight.data
        personal[-1].bias.data += own.bias.data
        self.personal[n] = parameters_to_vector(personal)
        return net


def test_it_is_the_papers_update() -> None:
    last = check(fedrod(), FedRod())
    assert not torch.allclose(last.state.shared["fedrod"], shared(ft.fedavg()), atol=1e-4)


def test_without_balance_the_shared_model_is_fedavgs() -> None:
    close(shared(fedrod(gamma=0.0)), shared(ft.fedavg()))


def test_numbers_are_refused() -> None:
    x, y = torch.randn(60, 4), torch.randn(60)
    data = ft.data.Dataset(name="numbers", x_train=x, y_train=y, x_test=x, y_test=y, task="regression")
    federation = ft.Federation.build(data, clients=3, partition="iid", seed=1)
    with pytest.raises(InputError, match="'fedrod' is for classes; the targets are numbers"):
        list(ft.simulate([fedrod()], federation, MODEL, **RECIPE))
