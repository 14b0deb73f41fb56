"""The update rules of `torch.optim` for many models at once, a row each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtilt.optimizers import Optimizer

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # the defaults of torch.optim.Adam and AdamW


def state_rows(settings: Optimizer) -> int:
    """How many rows of state a model has: its momentum, or both averages of Adam; all start at 0."""
    if settings.name == "sgd":
        return 1 if settings.momentum else 0
    return 2


def clip_gradients(settings: Optimizer, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Gradients of models in pieces (L, columns), none longer than the optimiser allows, as `clip_grad_norm_` does."""
    if settings.clip_norm is None:
        return gradients
    norms = torch.stack([torch.linalg.vector_norm(piece, dim=1) for piece in gradients])
    factor = (settings.clip_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
    return [piece * factor[:, None] for piece in gradients]


def optimizer_step(
    settings: Optimizer, theta: Tensor, gradient: Tensor, state: Sequence[Tensor], lr: Tensor, step: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The next parameters (L, T) and state, of this gradient.

    Args:
        settings: the optimiser
        theta: parameters (L, T)
        gradient: of the loss and the proximal term (L, T), clipped
        state: `state_rows` tensors (L, T)
        lr: learning rates (L, 1)
        step: the number of the step (1,), the first is 1
    """
    if settings.weight_decay and settings.name != "adamw":
        gradient = gradient + settings.weight_decay * theta
    if settings.name == "sgd":
        if not settings.momentum:
            return theta - lr * gradient, []
        momentum = settings.momentum * state[0] + gradient
        direction = gradient + settings.momentum * momentum if settings.nesterov else momentum
        return theta - lr * direction, [momentum]
    if settings.name == "adamw":
        theta = theta * (1 - lr * settings.weight_decay)
    mean = state[0] + (1 - BETA1) * (gradient - state[0])
    square = BETA2 * state[1] + (1 - BETA2) * gradient.square()
    mean_bias, square_bias = (1 - beta ** step.double() for beta in (BETA1, BETA2))
    scale = square.sqrt() / square_bias.sqrt().float() + EPS
    return theta - lr / mean_bias.float() * (mean / scale), [mean, square]
