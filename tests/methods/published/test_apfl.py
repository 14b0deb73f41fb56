"""APFL: the mixture of a client's own model and the shared one."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.methods import apfl
from fedtilt.models import parameters_to_vector, with_weights
from tests.methods.published.reference import LR, STEPS, Reference, check, close, descend, shared, simulated


class Apfl(Reference):
    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        v, alpha = self.kept.get(n, (parameters_to_vector(net), 0.4))

        def gradient(theta: Tensor) -> Tensor:
            at = with_weights(net, theta)
            grads = torch.autograd.grad(F.cross_entropy(at(x), y), [*at.parameters()])
            return torch.cat([g.flatten() for g in grads])

        w = parameters_to_vector(net)
        alpha = min(max(alpha - LR * float((v - w) @ gradient(alpha * v + (1 - alpha) * w)), 0), 1)
        for _ in range(STEPS):
            mixed = alpha * v + (1 - alpha) * w
            w, v = w - LR * gradient(w), v - LR * alpha * gradient(mixed)
        self.kept[n] = v, alpha
        self.personal[n] = alpha * v + (1 - alpha) * w
        return with_weights(net, w)


def test_it_is_the_papers_update() -> None:
    reference = Apfl()
    last = check(apfl(alpha=0.4), reference)
    alphas = {n: alpha for n, (_, alpha) in reference.kept.items()}
    assert any(abs(alpha - 0.4) > 1e-5 for alpha in alphas.values())
    for n, alpha in alphas.items():
        close(last.state.client_states.get(("apfl", n)).slot("training")["alpha"], torch.tensor([alpha]))


def test_the_shared_model_is_fedavgs() -> None:
    close(shared(apfl()), shared(ft.fedavg()))


def test_none_of_the_own_model_is_the_clients_shared_one() -> None:
    none, tuned = simulated(apfl(0.0, adaptive=False)), simulated(ft.methods.fedavg_finetuned())
    for n in range(3):
        close(parameters_to_vector(none.model("apfl", n)), parameters_to_vector(tuned.model("fedavg_finetuned", n)))


class FromFirst(Reference):
    """Local training from the model that a client first receives."""

    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        own = self.kept.setdefault(n, copy.deepcopy(net))
        for _ in range(STEPS):
            descend([*own.parameters()], F.cross_entropy(own(x), y))
        self.personal[n] = parameters_to_vector(own)
        return super().client(n, net, x, y)


def test_all_of_the_own_model_is_local_training() -> None:
    check(apfl(1.0, adaptive=False), FromFirst())
