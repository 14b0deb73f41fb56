"""FedRoD: a balanced loss for the generic head, the plain one for both heads together."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import seeds
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


class Scaled(nn.Module):
    """Its outputs are not those of its last layer."""

    def __init__(self, outputs: int, temperature: float) -> None:
        super().__init__()
        self.body, self.head, self.temperature = nn.Linear(4, 5), nn.Linear(5, outputs), temperature

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.body(x).relu()) / self.temperature}


@pytest.mark.parametrize(("outputs", "temperature"), [(2, 0.5), (1, 1.0), (1, 2.0)])
def test_what_follows_the_last_layer_holds_for_both_heads(outputs: int, temperature: float) -> None:
    """From 0, the first step of the personal head is that of the generic one."""
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    data = ft.data.Dataset(name="two", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)
    federation = ft.Federation.build(data, clients=1, partition="iid")
    model = functools.partial(Scaled, outputs, temperature)
    recipe = RECIPE | {"rounds": 1, "epochs": 1, "participation": 1.0}
    *_, last = ft.simulate([fedrod(gamma=0.0)], federation, model, **recipe)
    initial = ft.models.build(model, (4,), 2, seeds.key(0, "init")).head.weight
    step = last.model("fedrod").head.weight - initial
    assert step.abs().max() > 1e-4
    close(last.model("fedrod", 0).head.weight - initial, 2 * step)


def test_numbers_are_refused() -> None:
    x, y = torch.randn(60, 4), torch.randn(60)
    data = ft.data.Dataset(name="numbers", x_train=x, y_train=y, x_test=x, y_test=y, task="regression")
    federation = ft.Federation.build(data, clients=3, partition="iid", seed=1)
    with pytest.raises(InputError, match="'fedrod' is for classes; the targets are numbers"):
        list(ft.simulate([fedrod()], federation, MODEL, **RECIPE))
