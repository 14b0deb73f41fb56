"""The training step of any model: autograd over a batch of models, compiled by torch on CUDA."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedtilt.data.data_warnings import warn
from fedtilt.data.inputs import Inputs
from fedtilt.errors import InputError
from fedtilt.losses import ClassLoss
from fedtilt.math.tilt import nested_tilt, nested_tilt_grad
from fedtilt.models import functional_logits, trained_parameters
from fedtilt.training.local_job import MIN_UTILITY
from fedtilt.training.precision import autocast
from fedtilt.training.stacked.batch_norm import Constants, PaddedBatchNorms
from fedtilt.training.stacked.buffers import Buffers, Piece, Recipe, Rows
from fedtilt.training.stacked.compilation import compile_function
from fedtilt.training.stacked.functions import batched_functions
from fedtilt.training.stacked.layers import ParameterRows, stackable_copy
from fedtilt.training.stacked.optimizers import clip_gradients, optimizer_step

_OF_BATCH_NORMS = "."  # begins the names of their constants, and no name in a model
_CLASS_WEIGHTS = ".class weights"  # of the loss, which a CUDA graph cannot copy to the device


class StackedGradient:
    """The gradient of the clients' losses by the parameters of a batch of models, and the models' next buffers."""

    def __init__(self, model: nn.Module, recipe: Recipe, device: torch.device, precision: str) -> None:
        self._net = net = stackable_copy(model).to(device).train()
        self._recipe, self._device, self._precision = recipe, device, precision
        self.layout = ParameterRows(model)
        changing = {*trained_parameters(net), *(recipe.buffer_names if recipe.trains_buffers else ())}
        tensors = {name: t.detach() for name, t in [*net.named_parameters(), *net.named_buffers()]}
        self.constants = {name: t for name, t in tensors.items() if name not in changing}
        self._batch_norms: PaddedBatchNorms | None = None
        if recipe.trains_buffers:
            self._batch_norms = PaddedBatchNorms(net, recipe.buffer_layers, device)
            self.constants |= {_OF_BATCH_NORMS + name: t for name, t in self._batch_norms.constants._asdict().items()}
        else:
            for name in recipe.buffer_layers:  # frozen: their layers use them as in evaluation
                net.get_submodule(name).eval()
        loss = recipe.loss
        if isinstance(loss, ClassLoss) and type(loss).__call__ is ClassLoss.__call__ and loss.weights:
            self.constants[_CLASS_WEIGHTS] = torch.tensor(loss.weights, device=device)
        self.description = f"{net} {recipe} {precision}"
        self.mask_shapes: list[tuple[int, ...]] = []  # of the dropout masks of the last call
        self._batched = vmap(grad(self._loss, argnums=2, has_aux=True), in_dims=(None, None, *(0,) * 9))

    def __call__(self, step: Tensor, constants: Mapping[str, Tensor], *of_models: Any) -> tuple[list[Tensor], Tensor]:
        """Gradients by pieces of `layout`, and buffers (L, B), of a step, counted from 1, on a batch of every model."""
        with batched_functions() as self._masks:
            result = self._batched(step, constants, *of_models)
            self.mask_shapes = self._masks.shapes
            return result

    def _loss(
        self, step: Tensor, constants: Mapping[str, Tensor], theta: Sequence[Tensor], model_buffers: Tensor, x: Inputs,
        y: Tensor, groups: Tensor, weights: Tensor, tilts: Tensor, utility: Tensor, dropout_key: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Of one model: a sum that has the gradient of the client's loss, and the next buffers."""
        tensors, loss = dict(constants), self._recipe.loss
        if (class_weights := tensors.pop(_CLASS_WEIGHTS, None)) is not None:
            loss = functools.partial(cast(ClassLoss, loss).weighted, weights=class_weights)
        if self._batch_norms is not None:
            norm_constants = Constants(*(tensors.pop(_OF_BATCH_NORMS + name) for name in Constants._fields))
            self._batch_norms.start(weights)
        self._masks.start(dropout_key, step)
        with autocast(self._device, self._precision):
            outputs = functional_logits(self._net, tensors | self.layout.parameters(theta), x)
        if self._batch_norms is not None:
            model_buffers = self._batch_norms.next_buffers(model_buffers, norm_constants)
        losses = loss(outputs.float(), y)
        if (objective := self._recipe.special.objective) is not None:
            return objective(losses, groups[0], weights).reshape(()), model_buffers
        shares = nested_tilt_grad(losses.detach(), groups.unbind(), tilts.unbind(), weights)
        if self._recipe.special.has_utility:  # the gradient of −log(utility − R)
            value = nested_tilt(losses.detach(), groups.unbind(), tilts.unbind(), weights)
            shares = shares / (utility - value).clamp_min(MIN_UTILITY)
        return (shares * losses).sum(), model_buffers


class VmapStep:
    """One training step of all jobs over these buffers, by autograd."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, rows: Rows, buffers: Buffers, precision: str, *,
        compiled: bool | None = None,
    ) -> None:  # fmt: skip
        device = rows.theta.device
        self._optimizer, self._special, self._buffers = recipe.optimizer, recipe.special, buffers
        self._gradient = StackedGradient(model, recipe, device, precision)
        # a gradient in one row would be copied together, and read again
        pieces = [Piece.of(rows, columns) for columns in self._gradient.layout.pieces]
        self._tensors, self._tree = tree_flatten((pieces, buffers))  # inputs may be a dictionary
        # recurrent layers have a few operations for every step of a sequence: too many to compile
        is_recurrent = any(isinstance(layer, nn.RNNBase) for layer in model.modules())
        self._compiled = device.type == "cuda" and not is_recurrent if compiled is None else compiled

    def __call__(self, offset: int = 0) -> None:
        """Run step number `first_step + offset`; first_step is on the device."""
        self._step(self._buffers.first_step + offset, *self._tensors, *self._gradient.constants.values())

    @functools.cached_property
    def _step(self) -> Callable[..., None]:
        """The step as a function of tensors alone, compiled on first use: then the precision is set."""
        if not self._compiled:
            return self._run
        number = self._buffers.first_step.clone()  # two arguments that are one tensor would stay one
        arguments = [number, *self._tensors, *self._gradient.constants.values()]
        try:
            return compile_function(self._run, arguments, self._gradient.description)
        except (InputError, torch.cuda.OutOfMemoryError):
            raise
        except (
            Exception
        ) as error:  # torch promises nothing about its compiler, which also needs a disk that is not full
            why = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
            warn([f"torch {torch.__version__} could not compile the training step, which takes longer now ({why})"])
            return self._run

    def _run(self, number: Tensor, *tensors: Tensor) -> None:
        count = len(self._tensors)
        pieces, b = cast(tuple[list[Piece], Buffers], tree_unflatten(tensors[:count], self._tree))
        constants = dict(zip(self._gradient.constants, tensors[count:], strict=True))
        special = self._special
        batch = number if special.repeats == 1 else number // special.repeats
        index = b.batch_indices.index_select(0, batch)[0]  # (C, batch size)
        places = torch.arange(len(b.y), device=number.device)[:, None], index.clamp(min=0)
        x = tree_map(lambda t: t[places][b.client_index], b.x)
        y, weights = (t[b.client_index] for t in (b.y[places], (index >= 0).float()))
        groups = torch.stack([codes[places][b.client_index] for codes in b.groups.unbind()], 1)
        gradients, model_buffers = self._gradient(
            number[0] + 1, constants, [piece.theta for piece in pieces], b.model_buffers, x, y, groups, weights,
            b.tilts.T, b.utility, b.dropout_key,
        )  # fmt: skip
        for i, piece in enumerate(pieces):
            gradients[i] = gradients[i] + b.prox[:, None] * (piece.theta - piece.anchor[b.anchor_index])
            if special.has_drift:
                gradients[i] = gradients[i] + piece.drift
        old, new = [b.model_buffers], [model_buffers]
        for piece, gradient in zip(pieces, clip_gradients(self._optimizer, gradients), strict=True):
            theta, state = optimizer_step(
                self._optimizer, piece.theta, gradient, piece.optimizer_state, b.lr[:, None], number + 1
            )
            if special.has_first:
                trains = (piece.first > 0) == (number < b.first_steps)[:, None]
                theta = torch.where(trains, theta, piece.theta)
            old, new = [*old, piece.theta, *piece.optimizer_state], [*new, theta, *state]
            if special.moves_anchor:  # every job has an anchor of its own
                rate = b.anchor_rate * ((number + 1) % special.repeats == 0)
                old, new = [*old, piece.anchor], [*new, piece.anchor + rate[:, None] * (theta - piece.anchor)]
        active = (number < b.steps)[:, None]  # a job that is done does not change
        for value, next_value in zip(old, new, strict=True):
            value.copy_(torch.where(active, next_value, value))
