"""The client's half of a round: plan its local jobs, and after they are trained, its update and its next state."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data.groups import CLASS
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import client_slot
from fedtilt.methods import ClientStep, Method, Moreau
from fedtilt.methods.component import check_slot, check_tensor, run_slot_step, run_step
from fedtilt.methods.objectives import PropFair, Tilted
from fedtilt.models import with_weights
from fedtilt.parts import Parts, vector_to_buffers
from fedtilt.state import ClientState, ServerState, Slot
from fedtilt.training import LocalJob, Trained
from fedtilt.training.local_job import pack, step_count, unpack


class ClientUpdate(NamedTuple):
    """What a client sends after a round."""

    parameters: Tensor  # (S,)
    samples: int | float  # training samples, or the sum of their weights
    buffers: Tensor | None = None  # (B,) if the server averages them
    declared: Mapping[str, float] = {}  # numbers that a component asks for, such as the loss of the received model
    sent: Mapping[str, Slot] = {}  # what components send, by slot


def plan(
    method: Method, received: ServerState, client_state: ClientState, *, parts: Parts, settings: TrainSettings,
    round: int, group: str = CLASS, net: nn.Module | None = None,
) -> dict[str, LocalJob]:  # fmt: skip
    """The local jobs of a client by the model they train: "shared" and, if the method has them, "personal".

    Both have the received w as their anchor, so they are independent of each other. `received` is the state of the
    server, or what it sends of it; a client that is selected for the first time has an empty state. The `group` is what
    tau tilts over, and `net` is for a method with `training`.
    """
    parts = parts.keeping(method.local_names)
    w, w_buffers = client_model(parts, received, client_state)
    device = w.device
    lr, lr_personal = method.rates(settings.lr, settings.lr_personal)
    factor = settings.lr_factor(round)
    recipe: dict[str, Any] = {
        "steps": settings.local_steps,
        "optimizer": settings.client_optimizer,
        "loss": settings.sample_loss,
        "micro_batch": settings.micro_batch_size,
        "buffer_names": tuple(parts.buffers),
        **_objective(method, group),
    }
    trains_buffers = parts.trains_buffers
    epochs = settings.job_epochs(None)
    shared = LocalJob(
        start=w, anchor=w, prox=method.prox, lr=lr * factor, epochs=epochs,
        buffers=w_buffers if trains_buffers else None, measures_loss=method.needs_losses, **recipe,
    )  # fmt: skip
    if method.training is not None:
        slot = client_slot(method, parts, client_state, "training", device, net)
        broadcast = received.slot("training")
        shapes = tuple((name, tuple(broadcast[name].shape)) for name in sorted(broadcast))
        return {
            "shared": replace(
                shared, training=method.training, round=round, slot=pack(slot) if slot else None,
                broadcast=pack(broadcast).to(device) if broadcast else None, broadcast_shapes=shapes,
            )
        }  # fmt: skip
    if method.correction is not None:
        slot = client_slot(method, parts, client_state, "correction", device)
        drift = run_step(method.correction, "drift", received.slot("correction"), slot)
        drift = parts.expand(check_tensor(method.correction, "drift", drift, received.parameters))
        shared = replace(shared, prox=method.prox or method.correction.prox, drift=drift)
    if method.local is not None and (method.local.first_epochs is not None or not method.local.trains):
        first = method.local.first_epochs or 0  # 0: the local parameters never train
        together = None if epochs is None else first + epochs  # `check_methods` rejects first_epochs with local_steps
        shared = replace(shared, epochs=together, first=parts.is_local.to(device), first_epochs=first)
    if isinstance(method.personal, Moreau):
        mu = method.personal.mu
        job = replace(
            shared, prox=mu, lr=lr_personal * factor, repeats=method.personal.inner_steps, anchor_rate=lr * factor * mu
        )
        return {"shared": job}
    jobs = {"shared": shared}
    if method.personal is not None:
        start, buffers = w, w_buffers
        if client_state.personal is not None and method.personal.start != "received":
            start, own_buffers = client_state.personal.to(device), client_state.personal_buffers
            buffers = w_buffers if own_buffers is None else own_buffers.to(device)
        elif client_state.personal is None and method.personal.start == "initial":
            start, buffers = _on(device, parts.initial), _on(device, parts.initial_buffers)
        jobs["personal"] = LocalJob(
            start=start, anchor=w, prox=method.personal.mu, lr=lr_personal * factor,
            epochs=settings.job_epochs(method.personal.epochs), buffers=buffers if trains_buffers else None, **recipe,
        )  # fmt: skip
    return jobs


def _objective(method: Method, group: str) -> dict[str, Any]:
    """The fields of a local job that its objective decides; fast backends know the built-in ones by heart."""
    objective = method.objective
    if isinstance(objective, Tilted):
        (inner, tau), *outer = objective.levels or [(group, objective.tau)]
        return {"group": inner, "tau": tau, "outer": tuple(outer), "lam": objective.lam}
    plain = {"group": group, "tau": 0.0, "lam": 0.0}
    return plain | ({"utility": objective.utility} if isinstance(objective, PropFair) else {"objective": objective})


def _on(device: torch.device, values: Tensor | None) -> Any:
    return None if values is None else values.to(device)


def client_model(
    parts: Parts, server: ServerState, client_state: ClientState, *, personal: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The parameters (T,) and buffers (B,) of a client's shared model with its local parts, or of its personal model.

    Buffers are None if they never change; a client that was never selected has an empty state.
    """
    if personal and client_state.personal is not None:
        return client_state.personal, client_state.personal_buffers
    buffers = next((b for b in (server.buffers, client_state.buffers) if b is not None), parts.initial_buffers)
    if not parts.trains_buffers:
        buffers = None
    return parts.merge(server.parameters, client_state.local), _on(server.parameters.device, buffers)


def build_client_model(
    net: nn.Module, parts: Parts, server: ServerState, client_state: ClientState, *, personal: bool = False
) -> nn.Module:
    """A module on the CPU with what `client_model` gives."""
    parameters, buffers = client_model(parts, server, client_state, personal=personal)
    named = {} if buffers is None else vector_to_buffers(net, tuple(parts.buffers), buffers)
    return with_weights(net, parameters, named).cpu()


def finish(
    method: Method, jobs: Mapping[str, LocalJob], trained: Mapping[str, Trained], client_state: ClientState, *,
    parts: Parts, settings: TrainSettings, rows: int, samples: float, net: nn.Module | None = None,
) -> tuple[ClientUpdate, ClientState]:  # fmt: skip
    """What a client sends, and its next state; its `rows` of data count as `samples`, by their weights."""
    parts = parts.keeping(method.local_names)
    shared = trained["shared"]
    model = shared.parameters
    personal: tuple[Tensor | None, Tensor | None] = (None, None)
    if isinstance(method.personal, Moreau):  # the job trains the personal model, and its anchor is the shared one
        assert shared.anchor is not None
        model, personal = shared.anchor, (shared.parameters, shared.buffers)
    elif method.training is not None:
        personal = shared.personal, shared.personal_buffers
    elif "personal" in trained:
        personal = trained["personal"].parameters, trained["personal"].buffers
    buffers = shared.buffers if parts.averages_buffers else None
    declared = {} if shared.loss is None else {"loss": float(shared.loss)}
    update = ClientUpdate(parts.shared(model), samples, buffers, declared)
    slots: dict[str, Slot] = {}
    if method.training is not None and net is not None:
        layouts = method.training.init_client(net), method.training.sends(net)
        slot, sent = (
            {} if vector is None else unpack(vector, {name: t.shape for name, t in layout.items()})
            for vector, layout in zip((shared.slot, shared.sent), layouts, strict=True)
        )
        slots["training"] = slot
        update = update._replace(sent={"training": sent})
    if method.correction is not None:
        job = jobs["shared"]
        assert job.drift is not None
        step = ClientStep(
            received=parts.shared(job.start), trained=update.parameters, drift=parts.shared(job.drift),
            slot=client_slot(method, parts, client_state, "correction", model.device),
            steps=step_count(job, rows, settings.batch_size, settings.last_batch), lr=job.lr,
        )  # fmt: skip
        sent, slot = run_slot_step(method.correction, "client_step", step)
        declared_sends = dict.fromkeys(method.correction.sends, step.received)
        sent = check_slot(method.correction, "what a client sends", sent, declared_sends)
        slots["correction"] = check_slot(method.correction, "the slot of a client", slot, step.slot)
        update = update._replace(sent={"correction": sent})
    if method.client_momentum:
        # Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021, arXiv 2012.10333
        received, share = parts.shared(jobs["shared"].start), 1 - method.client_momentum
        before = client_slot(method, parts, client_state, "client_momentum", received.device)["average"]
        average = method.client_momentum * before + share * (update.parameters - received)
        update = update._replace(parameters=received + average)
        slots["client_momentum"] = {"average": average}
    buffers = shared.buffers if parts.keeps_buffers else None
    return update, ClientState(parts.local(model), buffers, *personal, slots=slots)
