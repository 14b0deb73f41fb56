"""FedDBE: a personal mean of features, and a pull of their mean to one that all agree on."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.methods import feddbe
from fedtilt.models import parameters_to_vector
from tests.methods.published.reference import FED, RECIPE, STEPS, Reference, check, close, descend, shared, simulated


class FedDbe(Reference):
    momentum, kappa = 0.3, 2.0

    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        own = self.kept.setdefault(n, torch.zeros(6, requires_grad=True))
        agreed, running = self.kept.get("agreed"), torch.zeros(6)
        for _ in range(STEPS):
            z = net[:-1](x)
            if agreed is None:
                descend([*net.parameters()], F.cross_entropy(net[-1](z), y))
                continue
            running = (1 - self.momentum) * running.detach() + self.momentum * z.mean(0)
            pull = (0.5 * (running - agreed) ** 2).mean()
            descend([*net.parameters(), own], F.cross_entropy(net[-1](z + own), y) + self.kappa * pull)
        if agreed is None:
            self.kept["means"] = [*self.kept.get("means", []), (len(y), net[:-1](x).mean(0).detach())]
        personal = copy.deepcopy(net)
        personal[-1].bias.data += net[-1].weight.data @ own.data
        self.personal[n] = parameters_to_vector(personal)
        return net

    def server(self, models: Tensor, clients: list[int], number: int) -> Tensor:
        if number == 1:
            means = self.kept["means"]
            self.kept["agreed"] = sum(count * mean for count, mean in means) / sum(count for count, _ in means)
        return super().server(models, clients, number)


def test_it_is_the_papers_update() -> None:
    reference = FedDbe()
    last = check(feddbe(kappa=2.0, momentum=0.3), reference)
    close(last.state.server["feddbe"].slot("training")["mean"], reference.kept["agreed"])
    assert any(bool(last.state.client_states.get(("feddbe", n)).slot("training")["mean"].any()) for n in last.selected)


def test_the_first_round_is_fedavg() -> None:
    close(shared(feddbe(), rounds=1), shared(ft.fedavg(), rounds=1))


def test_the_personal_model_adds_the_personal_mean_to_the_features() -> None:
    last = simulated(feddbe(kappa=1.0))
    n = last.selected[0]
    x, _ = FED.train(n, seed=0, round=1)
    personal, mean = last.model("feddbe", n), last.state.client_states.get(("feddbe", n)).slot("training")["mean"]
    features = personal[:-1](x)
    head = copy.deepcopy(personal[-1])
    head.bias.data -= head.weight.data @ mean
    torch.testing.assert_close(personal(x), head(features + mean))


def test_a_last_layer_without_bias_is_refused() -> None:
    def model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, classes, bias=False))

    with pytest.raises(InputError, match="'feddbe' needs a last layer with a bias; it has none"):
        list(ft.simulate([feddbe()], FED, model, **RECIPE))
