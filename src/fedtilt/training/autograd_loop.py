"""One job after the other, by autograd, for any `nn.Module` and any recipe: the reference for every other backend."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.errors import InputError
from fedtilt.math.tilt import nested_tilt
from fedtilt.models import copy_with_parameters, logits, trained_parameters, vector_to_parameters
from fedtilt.parts import buffers_to_vector, vector_to_buffers
from fedtilt.training.local_job import Batches, LocalJob, Optimizer, Trained
from fedtilt.training.precision import autocast, fp32_deterministic


def train(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], *, precision: str = "float32"
) -> list[Trained]:
    """Train every job on its batches.

    Args:
        model: the architecture, with its frozen parameters and initial buffers, on the device of the jobs
        jobs: the jobs
        batches: the data of each job
        precision: of products on CUDA; the loss and the parameters are float32
    """
    return [_train_one(model, job, data, precision) for job, data in zip(jobs, batches, strict=True)]


def _train_one(model: nn.Module, job: LocalJob, batches: Batches, precision: str) -> Trained:
    theta = job.start.clone()
    views = vector_to_parameters(model, theta)
    net = copy_with_parameters(model, views)  # a step on its parameters changes theta
    parameters = list(trained_parameters(net).values())
    changing = _load_buffers(net, job)
    step = _step(job, theta, list(views.values()), parameters)
    constant = {name: b.clone() for name, b in net.named_buffers() if name not in changing}
    with seeds.seeded_global_rng(batches.key, theta.device), fp32_deterministic(theta.device, precision == "tf32"):
        for x, y, groups in batches.of(job):
            with autocast(theta.device, precision):
                outputs = logits(net, x)
            loss = nested_tilt(job.loss(outputs.float(), y), groups, job.tilts)
            step(torch.autograd.grad(loss, parameters, materialize_grads=True))  # 0 for unused parameters
    _check_constant(net, constant)
    return Trained(theta, buffers_to_vector(net, changing) if changing else None)


def _load_buffers(net: nn.Module, job: LocalJob) -> tuple[str, ...]:
    """Set training mode and the buffers of the job; returns the names of the buffers that change."""
    net.train()
    if job.buffers is None:
        for name in job.buffer_names:  # frozen: their layers use them as in evaluation
            net.get_submodule(name.rpartition(".")[0]).eval()
        return ()
    values = vector_to_buffers(net, job.buffer_names, job.buffers)
    for name, buffer in net.named_buffers():
        if name in values:
            buffer.copy_(values[name])
    return job.buffer_names


def _step(
    job: LocalJob, theta: Tensor, views: Sequence[Tensor], parameters: Sequence[nn.Parameter]
) -> Callable[[Sequence[Tensor]], None]:
    """A function that takes one step with the gradients of the loss; views and parameters are the pieces of theta."""

    def plain_step(grads: Sequence[Tensor]) -> None:
        if job.prox:
            theta.lerp_(job.anchor, job.lr * job.prox)
        for view, grad in zip(views, grads, strict=True):
            view.sub_(grad, alpha=job.lr)

    if job.optimizer.is_plain:
        return plain_step
    optimizer = _torch_optimizer(job.optimizer, parameters, job.lr)
    sizes = [view.numel() for view in views]

    def optimizer_step(grads: Sequence[Tensor]) -> None:
        if job.prox:
            towards = ((theta - job.anchor) * job.prox).split(sizes)
            grads = [grad + piece.view_as(grad) for grad, piece in zip(grads, towards, strict=True)]
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad
        if job.optimizer.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, job.optimizer.clip_norm)
        optimizer.step()

    return optimizer_step


def _torch_optimizer(settings: Optimizer, parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters, lr, settings.momentum, weight_decay=settings.weight_decay, nesterov=settings.nesterov
        )
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[settings.name](parameters, lr, weight_decay=settings.weight_decay)


def _check_constant(net: nn.Module, before: dict[str, Tensor]) -> None:
    """Refuse a change of a buffer that a probe took for a constant: it would be lost."""
    for name, buffer in net.named_buffers():
        if name in before and not torch.equal(buffer, before[name]):
            raise InputError(
                f"buffer {name!r} changed in training, but a forward pass of two samples leaves it as it is, so it is "
                "not kept; let every forward pass in training mode change it"
            )
