"""The training step of any model: autograd over a batch of models, compiled by torch on CUDA."""

import types
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedtilt.math.losses import client_loss
from fedtilt.models import functional_logits, vector_to_parameters
from fedtilt.parts import vector_to_buffers
from fedtilt.training.precision import autocast
from fedtilt.training.stacked.buffers import Buffers, Recipe
from fedtilt.training.stacked.layers import convs_as_matmul, pad_batch_norms
from fedtilt.training.stacked.optimizers import optimizer_step

# theta (L, T), model buffers (L, B), x, y, sample weights (L, batch size), tau, lam → gradients, next model buffers
StackedGradient = Callable[..., tuple[Tensor, Tensor]]


def stacked_gradient(model: nn.Module, recipe: Recipe, device: torch.device, precision: str) -> StackedGradient:
    """The gradient of the clients' losses by the parameters of a batch of models, and their next buffers."""
    net = convs_as_matmul(model).to(device).train()
    names = recipe.buffer_names if recipe.trains_buffers else ()
    if names:
        pad_batch_norms(net, recipe.buffer_layers)
    else:
        for name in recipe.buffer_layers:  # frozen: their layers use them as in evaluation
            net.get_submodule(name).eval()

    def loss(
        theta: Tensor, model_buffers: Tensor, x: Tensor, y: Tensor, weights: Tensor, tau: Tensor, lam: Tensor
    ) -> tuple[Tensor, Tensor]:
        values = vector_to_buffers(net, names, model_buffers)  # new tensors, which `forward` changes
        padding = {f"{name}.sample_weights": weights for name in recipe.buffer_layers} if names else {}
        with autocast(device, precision):
            outputs = functional_logits(net, vector_to_parameters(net, theta) | values | padding, x)
        changed = [value.reshape(-1).float() for value in values.values()]
        return (
            client_loss(recipe.loss(outputs.float(), y), y, tau, lam, weights),
            torch.cat(changed) if changed else model_buffers,
        )

    return vmap(grad(loss, has_aux=True))


class VmapStep:
    """One training step of all jobs over these buffers, by autograd."""

    def __init__(self, model: nn.Module, recipe: Recipe, buffers: Buffers, precision: str) -> None:
        device = buffers.theta.device
        self._recipe, self._buffers = recipe, buffers
        self._gradient = stacked_gradient(model, recipe, device, precision)
        self._client_rows = torch.arange(len(buffers.x), device=device)[:, None]
        self._step: Callable[[Tensor], None] = self._run_step
        if device.type == "cuda":
            self._step = torch.compile(_with_own_code(self._run_step), fullgraph=True, dynamic=False)

    def __call__(self, offset: int = 0) -> None:
        """Run step number `first_step + offset`; first_step is on the device."""
        self._step(self._buffers.first_step + offset)

    def _run_step(self, step: Tensor) -> None:
        b = self._buffers
        index = b.batch_indices.index_select(0, step)[0]  # (C, B)
        rows = self._client_rows, index.clamp(min=0)
        x, y, weights = (t[b.client_index] for t in (b.x[rows], b.y[rows], (index >= 0).float()))
        gradient, model_buffers = self._gradient(b.theta, b.model_buffers, x, y, weights, b.tau, b.lam)
        gradient = gradient + b.prox[:, None] * (b.theta - b.anchor[b.anchor_index])
        theta, state = optimizer_step(
            self._recipe.optimizer, b.theta, gradient, b.optimizer_state.unbind(), b.lr[:, None], step + 1
        )
        active = (step < b.steps)[:, None]  # a job that is done does not change
        old = (b.theta, b.model_buffers, *b.optimizer_state.unbind())
        for value, next_value in zip(old, (theta, model_buffers, *state), strict=True):
            value.copy_(torch.where(active, next_value, value))


def _with_own_code(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """The method with a copy of its code object: torch refuses to compile one code object more than eight times."""
    assert isinstance(method, types.MethodType)
    code = method.__func__.__code__.replace()
    return types.MethodType(types.FunctionType(code, method.__func__.__globals__), method.__self__)
