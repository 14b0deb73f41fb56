"""A client's whole update by the user's code: a `Training` component instead of the steps of a local job."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data.inputs import take
from fedtilt.errors import InputError
from fedtilt.methods.component import Component, check_slot, describe, run_step
from fedtilt.methods.training import ClientBatch, ClientBatches, ClientResult, Step, plain_sgd
from fedtilt.models import copy_with_parameters, logits, vector_to_parameters
from fedtilt.optimizers import Optimizer
from fedtilt.parts import buffers_to_vector, vector_to_buffers
from fedtilt.training.local_job import Batches, LocalJob, Trained, pack, unpack
from fedtilt.training.precision import fp32_deterministic


def train(model: nn.Module, job: LocalJob, batches: Batches, precision: str) -> Trained:
    """Call the user's `train`, and check what it returns."""
    training, device = job.training, job.start.device
    assert training is not None
    net = copy_with_parameters(model, vector_to_parameters(model, job.start.clone()))
    load_buffers(net, job)
    shapes = {name: tensor.shape for name, tensor in training.init_client(model).items()}
    slot = unpack(_given(job.slot, device), shapes)
    received = unpack(_given(job.broadcast, device), dict(job.broadcast_shapes))
    steps = [ClientBatch(x, y, groups[0], weights) for x, y, groups, weights in batches.of(job)]
    epochs = len(batches.order) if job.epochs is None else job.epochs
    data = ClientBatches(
        x=batches.x, y=batches.y, groups=batches.groups_of(job)[0], weights=batches.weights, steps=steps, lr=job.lr,
        loss=job.loss, round=job.round, epochs=epochs, classes=_outputs(net, batches),
        new_step=plain_sgd if job.optimizer.is_plain else partial(_optimizer_step, job.optimizer),
    )  # fmt: skip
    with seeds.seeded_global_rng(batches.key, device), fp32_deterministic(device, precision == "tf32"):
        result = run_step(training, "train", net, data, received, slot)
    if not job.optimizer.is_plain and not data.made_stepper:
        raise InputError(
            f"{describe(training)} never calls batches.stepper, so the optimiser of the run has no effect "
            f"({job.optimizer.describe()}); take its steps with batches.stepper, or train with plain SGD"
        )
    return _checked(training, model, job, result)


def _outputs(net: nn.Module, batches: Batches) -> int:
    with torch.no_grad():
        return int(logits(copy.deepcopy(net).eval(), take(batches.x, slice(0, 1))).shape[-1])


def _optimizer_step(settings: Optimizer, parameters: Sequence[nn.Parameter], lr: float) -> Step:
    optimizer = torch_optimizer(settings, parameters, lr)

    def step(loss: Tensor) -> None:
        for p, grad in zip(parameters, torch.autograd.grad(loss, parameters, materialize_grads=True), strict=True):
            p.grad = grad
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
        optimizer.step()

    return step


def torch_optimizer(settings: Optimizer, parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """The optimiser of PyTorch with these settings."""
    if settings.is_of_torch:
        name = settings.label.removeprefix("torch.optim.")
        arguments = {key: value for key, value in settings.settings().items() if key != "clip_norm"}
        try:
            return getattr(torch.optim, name)(parameters, lr=lr, **arguments)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"optimizer = {settings.label!r} does not take its settings or this model: {error}"
            ) from error
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters, lr, settings.momentum, weight_decay=settings.weight_decay, nesterov=settings.nesterov
        )
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[settings.name](parameters, lr, weight_decay=settings.weight_decay)


def _given(vector: Tensor | None, device: torch.device) -> Tensor:
    return torch.zeros(0, device=device) if vector is None else vector


def load_buffers(net: nn.Module, job: LocalJob) -> tuple[str, ...]:
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


def _checked(training: Component, model: nn.Module, job: LocalJob, result: object) -> Trained:
    """What the user's code returned as tensors of a local job's result."""
    if not isinstance(result, ClientResult):
        raise InputError(
            f"{describe(training)} returned {type(result).__name__} from train; expected "
            "ClientResult(model, personal=…, slot=…, sends=…)"
        )
    wants = training.has_personal  # type: ignore[attr-defined]
    if (result.personal is not None) != wants:
        raise InputError(
            f"{describe(training)} returned {'a' if result.personal is not None else 'no'} personal model, and "
            f"declares has_personal = {wants}; make them agree"
        )
    trained = _vector(training, "model", model, result.model, job)
    personal = None if result.personal is None else _vector(training, "personal model", model, result.personal, job)
    slot = check_slot(training, "the slot of a client", result.slot, training.init_client(model))  # type: ignore[attr-defined]
    sent = check_slot(training, "what a client sends", result.sends, training.sends(model))  # type: ignore[attr-defined]
    names = job.buffer_names if job.buffers is not None else ()
    return Trained(
        trained,
        buffers_to_vector(result.model, names) if names else None,
        personal=personal,
        personal_buffers=buffers_to_vector(result.personal, names) if names and result.personal is not None else None,
        slot=pack(slot).to(trained.device) if slot else None,
        sent=pack(sent).to(trained.device) if sent else None,
    )


def _vector(training: Component, what: str, model: nn.Module, found: object, job: LocalJob) -> Tensor:
    """The trained parameters of a module that the user's code returned, (T,)."""
    if not isinstance(found, nn.Module):
        raise InputError(f"{describe(training)} returned {type(found).__name__} as {what}; expected an nn.Module")
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    named: Mapping[str, Tensor] = dict(found.named_parameters())
    wanted = job.start.dtype, job.start.device
    for name, shape in shapes.items():
        p = named.get(name)
        if p is None or p.shape != shape or (p.dtype, p.device) != wanted:
            has = "no such parameter" if p is None else f"shape {tuple(p.shape)}, {p.dtype}, on {p.device}"
            raise InputError(
                f"{describe(training)} returned a {what} whose {name!r} has {has}; expected shape {tuple(shape)}, "
                f"{job.start.dtype}, on {job.start.device}"
            )
    return torch.cat([named[name].detach().reshape(-1) for name in shapes])
