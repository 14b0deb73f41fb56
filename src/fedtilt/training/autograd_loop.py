"""One job after the other, by autograd, for any `nn.Module` and any recipe: the reference for every other backend."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data.inputs import Inputs, split, take
from fedtilt.errors import InputError
from fedtilt.math.tilt import nested_tilt
from fedtilt.methods.objectives import objective_value
from fedtilt.models import copy_with_parameters, logits, trained_parameters, vector_to_parameters
from fedtilt.parts import buffers_to_vector
from fedtilt.training import client_update
from fedtilt.training.dropout import keyed_dropout
from fedtilt.training.local_job import MIN_UTILITY, Batch, Batches, LocalJob, Trained
from fedtilt.training.precision import autocast, fp32_deterministic

_SAMPLES = 4096  # in a forward pass without gradients


def unsupported_reason(*_: object) -> None:
    """Every job is supported."""


special_reason = unsupported_reason


def train(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], *, precision: str = "float32"
) -> list[Trained]:
    """Train every job on its batches; the model has the frozen parameters and initial buffers, on the jobs' device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights")  # views of theta; cuDNN copies them in every step
        return [_train_one(model, job, data, precision) for job, data in zip(jobs, batches, strict=True)]


def _train_one(model: nn.Module, job: LocalJob, batches: Batches, precision: str) -> Trained:
    if job.training is not None:
        return client_update.train(model, job, batches, precision)
    theta = job.start.clone()
    views = vector_to_parameters(model, theta)
    net = copy_with_parameters(model, views)  # a step on its parameters changes theta
    parameters = list(trained_parameters(net).values())
    changing = client_update.load_buffers(net, job)
    anchor = job.anchor.clone() if job.anchor_rate else job.anchor
    new_step = partial(_step, job, theta, anchor, list(views.values()), parameters)
    step, switch = new_step(job.first), job.first_epochs * batches.per_epoch * job.repeats
    constant = {name: b.clone() for name, b in net.named_buffers() if name not in changing}
    key = seeds.to_signed(batches.key)
    with (
        seeds.seeded_global_rng(batches.key, theta.device),
        fp32_deterministic(theta.device, precision == "tf32"),
        keyed_dropout() as masks,
        torch.autograd.set_multithreading_enabled(
            False
        ),  # checkpoints drop values in the backward pass: in this thread
    ):
        for number, batch in enumerate(batches.of(job), 1):

            def losses_of(x: Inputs, y: Tensor, first: int = 0, number: int = number) -> Tensor:
                masks.start(key, number, first)
                with autocast(theta.device, precision):
                    outputs = logits(net, x)
                return job.loss(outputs.float(), y)

            if job.first is not None and number == switch + 1:
                step = new_step(1 - job.first)
            if job.micro_batch is None or len(batch.y) <= job.micro_batch:
                loss = _minimised(job, losses_of(batch.x, batch.y), batch)
                step(torch.autograd.grad(loss, parameters, materialize_grads=True))  # 0 for unused parameters
            else:
                step(_accumulated(job, batch, losses_of, parameters, job.micro_batch))
            masks.stop()  # dropout in a transform has masks of its own
            if job.anchor_rate and number % job.repeats == 0:
                anchor.lerp_(theta, job.anchor_rate)
    _check_constant(net, constant)
    buffers = buffers_to_vector(net, changing) if changing else None
    return Trained(theta, buffers, anchor=anchor if job.anchor_rate else None)


def batch_objective(job: LocalJob, losses: Tensor, groups: Sequence[Tensor], weights: Tensor | None) -> Tensor:
    """The client's objective of the losses of a batch: R, or that of the user."""
    if job.objective is None:
        return nested_tilt(losses, groups, job.tilts, weights)
    return objective_value(job.objective, losses, groups[0], torch.ones_like(losses) if weights is None else weights)


def _minimised(job: LocalJob, losses: Tensor, batch: Batch) -> Tensor:
    """What a step minimises, of the losses of its batch; of −log(utility − R), a value with the same gradient."""
    loss = batch_objective(job, losses, batch.groups, batch.weights)
    return loss / (job.utility - loss.detach()).clamp_min(MIN_UTILITY) if job.utility < math.inf else loss


def _accumulated(
    job: LocalJob, batch: Batch, losses_of: Callable[[Inputs, Tensor, int], Tensor],
    parameters: Sequence[nn.Parameter], size: int,
) -> list[Tensor]:  # fmt: skip
    """The gradients of a batch, `size` samples at a time.

    A tilt is not a mean: how much a sample counts depends on the losses of the whole batch. They are computed first,
    without gradients; then every micro-batch adds the gradient of its losses, each times how much it counts.
    """
    parts = list(zip(split(batch.x, size), batch.y.split(size), range(0, len(batch.y), size), strict=True))
    device = batch.y.device
    if any(job.tilts) or job.objective is not None or job.utility < math.inf:
        # random layers draw the same numbers in both passes
        with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            losses = torch.cat([losses_of(*part) for part in parts])
    else:  # a mean: no loss matters
        losses = torch.zeros(len(batch.y), device=device)
    (counts,) = torch.autograd.grad(_minimised(job, losses.requires_grad_(), batch), [losses])
    total = [torch.zeros_like(p) for p in parameters]
    for x, y, first in parts:
        loss = losses_of(x, y, first) @ counts[first : first + len(y)]
        for sum, grad in zip(total, torch.autograd.grad(loss, parameters, materialize_grads=True), strict=True):
            sum += grad
    return total


def start_loss(model: nn.Module, job: LocalJob, batches: Batches, precision: str = "float32") -> Tensor:
    """R of the model that a job starts from, on all samples, in evaluation mode, (1,)."""
    net = copy_with_parameters(model, vector_to_parameters(model, job.start.clone()))
    client_update.load_buffers(net, job)
    net.eval()
    device, samples = job.start.device, len(batches.y)
    with torch.no_grad(), fp32_deterministic(device, precision == "tf32"), autocast(device, precision):
        outputs = [logits(net, take(batches.x, slice(i, i + _SAMPLES))) for i in range(0, samples, _SAMPLES)]
    with torch.no_grad():
        losses = job.loss(torch.cat(outputs).float(), batches.y)
        return batch_objective(job, losses, batches.groups_of(job), batches.weights).reshape(1)


Step = Callable[[Sequence[Tensor]], None]


def _step(
    job: LocalJob, theta: Tensor, anchor: Tensor, views: Sequence[Tensor], parameters: Sequence[nn.Parameter],
    trained: Tensor | None,
) -> Step:  # fmt: skip
    """A function that takes one step with the gradients of the loss; views and parameters are the pieces of theta.

    Where `trained` is 0, theta stays as it is, and no gradient enters the step.
    """

    def plain_step(grads: Sequence[Tensor]) -> None:
        if job.prox:
            theta.lerp_(anchor, job.lr * job.prox)
        if job.drift is not None:
            theta.sub_(job.drift, alpha=job.lr)
        for view, grad in zip(views, grads, strict=True):
            view.sub_(grad, alpha=job.lr)

    sizes = [view.numel() for view in views]
    optimizer = None if job.optimizer.is_plain else client_update.torch_optimizer(job.optimizer, parameters, job.lr)

    def optimizer_step(grads: Sequence[Tensor]) -> None:
        assert optimizer is not None
        added = [] if not job.prox else [(theta - anchor) * job.prox]
        for term in added if job.drift is None else [*added, job.drift]:
            grads = [grad + piece.view_as(grad) for grad, piece in zip(grads, term.split(sizes), strict=True)]
        if trained is not None:
            grads = [grad * mask.view_as(grad) for grad, mask in zip(grads, trained.split(sizes), strict=True)]
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad
        if job.optimizer.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, job.optimizer.clip_norm)
        optimizer.step()

    step = plain_step if optimizer is None else optimizer_step
    return step if trained is None else _only(trained, theta, step)


def _only(trained: Tensor, theta: Tensor, step: Step) -> Step:
    """The same step, which changes the parameters where `trained` is 1 alone."""

    def masked_step(grads: Sequence[Tensor]) -> None:
        before = theta.clone()
        step(grads)
        theta.copy_(torch.where(trained > 0, theta, before))

    return masked_step


def _check_constant(net: nn.Module, before: dict[str, Tensor]) -> None:
    """Raise for a change of a buffer that a probe took for a constant: it would be lost."""
    for name, buffer in net.named_buffers():
        if name in before and not torch.equal(buffer, before[name]):
            raise InputError(
                f"buffer {name!r} changed in training, but a forward pass of two samples leaves it as it is, so it is "
                "not kept; let every forward pass in training mode change it"
            )
