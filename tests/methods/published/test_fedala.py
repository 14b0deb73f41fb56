"""FedALA: a learned mixture of the last and the received model, by element."""

import copy
import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.methods import fedala
from fedtilt.models import parameters_to_vector
from tests.methods.published.reference import STEPS, Reference, check, close, descend, shared, simulated


class FedAla(Reference):
    """All samples teach the weights, so that no choice of samples matters."""

    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        if n in self.kept:
            last, weights, is_first = self.kept[n]
            received = [p.detach().clone() for p in net[-1].parameters()]
            losses: list[float] = []
            while True:
                for p, a, b, w in zip(net[-1].parameters(), last, received, weights, strict=True):
                    p.data = a + (b - a) * w
                if len(losses) > (10 if is_first else 0) and (not is_first or statistics.pstdev(losses[-10:]) < 0.1):
                    break
                loss = F.cross_entropy(net(x), y)
                losses.append(loss.item())
                grads = torch.autograd.grad(loss, [*net[-1].parameters()])
                weights = [
                    (w - 2.0 * g * (b - a)).clamp(0, 1)
                    for w, g, a, b in zip(weights, grads, last, received, strict=True)
                ]
        else:
            weights = [torch.ones_like(p) for p in net[-1].parameters()]
        for _ in range(STEPS):
            descend([*net.parameters()], F.cross_entropy(net(x), y))
        self.kept[n] = [p.detach().clone() for p in net[-1].parameters()], weights, n not in self.kept
        self.personal[n] = parameters_to_vector(net)
        return net


def test_it_is_the_papers_update() -> None:
    reference = FedAla()
    last = check(fedala(share=1.0, rate=2.0), reference)
    for n, (_, weights, _) in reference.kept.items():
        kept = last.state.client_states.get(("fedala", n)).slot("training")["weights"]
        close(kept, torch.cat([w.flatten() for w in weights]))
    assert not torch.allclose(last.state.shared["fedala"], shared(ft.fedavg()), atol=1e-5)


def test_without_mixing_the_shared_model_is_fedavgs_and_the_personal_one_is_the_clients() -> None:
    mixed, tuned = simulated(fedala(layers=0)), simulated(ft.methods.fedavg_finetuned())
    close(mixed.state.shared["fedala"], tuned.state.shared["fedavg_finetuned"])
    for n in range(3):
        close(parameters_to_vector(mixed.model("fedala", n)), parameters_to_vector(tuned.model("fedavg_finetuned", n)))


def test_the_slot_is_as_large_as_the_mixed_layers() -> None:
    net = copy.deepcopy(Reference().net)
    sizes = {layers: len(fedala(layers).training.init_client(net)["last"]) for layers in (0, 1, 2, 5)}
    assert sizes == {0: 0, 1: 70, 2: len(parameters_to_vector(net)), 5: len(parameters_to_vector(net))}


@pytest.mark.parametrize("samples", [2, 13])
def test_batch_norm_gets_no_batch_of_one_sample(samples: int) -> None:
    """1 of 2 samples, and 10 of 13 in batches of 3, are the share that the weights learn from."""
    federation = ft.Federation.build(ft.data.load("digits"), clients=3, partition="iid", max_train=samples)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))
    settings = {"rounds": 2, "participation": 1.0, "batch_size": 4, "epochs": 1, "lr": 0.05, "workers": 0}
    *_, last = ft.simulate([fedala()], federation, model, **settings)
    assert last.state.client_states.get(("fedala", 0)).slot("training")["weights"].isfinite().all()
