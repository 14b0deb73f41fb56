"""Server optimisers: the aggregated model as a step of SGD with momentum, Adagrad, Adam or Yogi.

Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv 2003.00295, Algorithm 2: with Δ = aggregated − received,

    m ← β₁ m + (1 − β₁) Δ                                  for sgd, m ← β₁ m + Δ (Hsu et al., arXiv 1909.06335)
    v ← v + Δ²                                             adagrad
    v ← β₂ v + (1 − β₂) Δ²                                 adam
    v ← v − (1 − β₂) Δ² sign(v − Δ²)                       yogi
    w ← w + server_lr · m / (√v + ε)                       for sgd, w + server_lr · m

v starts at ε², the least that the paper allows, and there is no bias correction.
"""

from torch import Tensor

from fedtilt.parts import Tensors
from fedtilt.rounds.settings import TrainSettings

BETA_2 = 0.99


def server_step(settings: TrainSettings, server: Tensors, aggregated: Tensor) -> dict[str, Tensor]:
    """What one step changes of the server state: parameters, momentum and, but for sgd, the second moment."""
    received = server["parameters"]
    delta = aggregated - received
    beta, epsilon = settings.server_beta, settings.server_epsilon or 0.001
    momentum = server.get("momentum", delta.new_zeros(delta.shape))
    if settings.server_optimizer == "sgd":
        momentum = beta * momentum + delta
        return {"parameters": received + settings.server_lr * momentum, "momentum": momentum}
    momentum = beta * momentum + (1 - beta) * delta
    square = delta.square()
    second = server.get("second_moment", delta.new_full(delta.shape, epsilon**2))
    if settings.server_optimizer == "adagrad":
        second = second + square
    elif settings.server_optimizer == "adam":
        second = BETA_2 * second + (1 - BETA_2) * square
    else:
        second = second - (1 - BETA_2) * square * (second - square).sign()
    parameters = received + settings.server_lr * momentum / (second.sqrt() + epsilon)
    return {"parameters": parameters, "momentum": momentum, "second_moment": second}
