"""FedBABU: the head never trains, and fine-tuning trains all of the model."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt.methods import fedbabu
from fedtilt.models import parameters_to_vector
from tests.methods.published.reference import STEPS, Reference, check, descend, simulated


class FedBabu(Reference):
    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        tuned = copy.deepcopy(net)
        for _ in range(STEPS):
            descend([*net[:-1].parameters()], F.cross_entropy(net(x), y))
            descend([*tuned.parameters()], F.cross_entropy(tuned(x), y))
        self.personal[n] = parameters_to_vector(tuned)
        return net


class Check(FedBabu):
    """The shared parameters of the simulator are those of the body."""

    def run(self) -> Reference:
        super().run()
        self.w = self.w[: -(10 * 6 + 10)]
        return self


def test_it_is_the_papers_update() -> None:
    check(fedbabu(), Check())


def test_the_head_stays_as_it_is_initially_and_is_never_sent() -> None:
    last, initial = simulated(fedbabu()), Reference().net
    shared = last.model("fedbabu")
    assert torch.equal(shared[-1].weight, initial[-1].weight)
    assert not torch.equal(shared[1].weight, initial[1].weight)
    assert not torch.equal(last.model("fedbabu", last.selected[0])[-1].weight, initial[-1].weight)
