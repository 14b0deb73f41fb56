"""One round of the algorithm, for the simulator and Flower alike.

plan           method, what the server sends, what the client keeps  →  local jobs          on every selected client
train          local jobs, batches                                   →  trained models      on every selected client
finish         trained models  →  what the client sends, what it keeps                      on every selected client
server_update  what the server keeps, all updates                    →  what it keeps next  on the server

What the server and a client keep between rounds are named sets of tensors: see `fedtilt.rounds.method_state`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data.groups import CLASS
from fedtilt.errors import Diverged, InputError
from fedtilt.math.aggregate import tilted
from fedtilt.methods import CORRECTIONS, Method
from fedtilt.methods.corrections import ClientStep, ServerStep
from fedtilt.models import with_weights
from fedtilt.parts import Parts, Tensors, vector_to_buffers
from fedtilt.rounds.aggregation import RoundRule, losses_of, weights_of_clients
from fedtilt.rounds.client_update import ClientUpdate
from fedtilt.rounds.gaussian_mechanism import GaussianMechanism
from fedtilt.rounds.method_state import correction_state
from fedtilt.rounds.screening import screen
from fedtilt.rounds.server_optimizers import server_step
from fedtilt.rounds.settings import TrainSettings
from fedtilt.rounds.sharded_models import stack_models
from fedtilt.rounds.update_distances import DISTANCES, add_distances
from fedtilt.rounds.validity import invalid_reason, invalid_updates
from fedtilt.training import LocalJob, Trained
from fedtilt.training.local_job import step_count


def plan(
    method: Method, received: Tensors, client_state: Tensors, *, parts: Parts, settings: TrainSettings, round: int,
    group: str = CLASS,
) -> dict[str, LocalJob]:  # fmt: skip
    """The local jobs of a client by the model they train: "shared" and, if the method has them, "personal".

    Both have the received w as their anchor, so they are independent of each other.

    Args:
        method: tilts, weights of the proximal terms, learning rates of its own
        received: what the server sends: parameters and, if they are averaged, buffers
        client_state: what the client keeps; empty if it is selected for the first time
        parts: the parts of the model and its initial values
        settings: the recipe of the run
        round: the number of the round, for the schedule
        group: what tau tilts over: the federation's groups, else the classes
    """
    parts = parts.keeping(method.local)
    w, w_buffers = client_model(parts, received, client_state)
    device = w.device
    lr, lr_personal = method.rates(settings.lr, settings.lr_personal)
    factor = settings.lr_factor(round)
    (inner, tau), *outer = method.levels or [(group, method.tau)]
    recipe: dict[str, Any] = {
        "group": inner,
        "tau": tau,
        "outer": tuple(outer),
        "lam": method.lam,
        "steps": settings.local_steps,
        "optimizer": settings.client_optimizer,
        "loss": settings.sample_loss,
        "buffer_names": tuple(parts.buffers),
        "utility": method.utility,
    }
    trains_buffers = parts.trains_buffers
    epochs = settings.job_epochs(None)
    shared = LocalJob(
        start=w, anchor=w, prox=method.prox, lr=lr * factor, epochs=epochs,
        buffers=w_buffers if trains_buffers else None, measures_loss=method.needs_losses, **recipe,
    )  # fmt: skip
    if method.correction != "none":
        kept = _to(device, correction_state(method, parts, client_state))
        shared = replace(shared, drift=parts.expand(CORRECTIONS[method.correction].drift(received, kept)))
    if method.head_epochs is not None:
        assert epochs is not None  # with local_steps, `check_methods` refuses it
        shared = replace(
            shared, epochs=method.head_epochs + epochs, first=parts.is_local.to(device), first_epochs=method.head_epochs
        )
    if method.inner_steps is not None:
        job = replace(
            shared, prox=method.mu, lr=lr_personal * factor, repeats=method.inner_steps,
            anchor_rate=lr * factor * method.mu,
        )  # fmt: skip
        return {"shared": job}
    jobs = {"shared": shared}
    if method.personal:
        start, buffers = w, w_buffers
        if "personal" in client_state and method.personal_start != "received":
            start = client_state["personal"].to(device)
            buffers = client_state["personal_buffers"].to(device) if "personal_buffers" in client_state else w_buffers
        elif "personal" not in client_state and method.personal_start == "initial":
            start, buffers = _on(device, parts.initial), _on(device, parts.initial_buffers)
        jobs["personal"] = LocalJob(
            start=start, anchor=w, prox=method.mu, lr=lr_personal * factor,
            epochs=settings.job_epochs(method.epochs_personal), buffers=buffers if trains_buffers else None, **recipe,
        )  # fmt: skip
    return jobs


def _on(device: torch.device, values: Tensor | None) -> Any:
    return None if values is None else values.to(device)


def _to(device: torch.device, tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def client_model(
    parts: Parts, server: Tensors, client_state: Tensors, *, personal: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The parameters (T,) and buffers (B,) of the model that a client uses; buffers are None if they never change.

    Args:
        parts: the parts of the model
        server: what the server keeps
        client_state: what the client keeps; empty if it was never selected
        personal: its personal model instead of the shared one with its local parts
    """
    if personal and "personal" in client_state:
        return client_state["personal"], client_state.get("personal_buffers")
    parameters = server["parameters"]
    buffers = server.get("buffers", client_state.get("buffers", parts.initial_buffers))
    if not parts.trains_buffers:
        buffers = None
    return parts.merge(parameters, client_state.get("local")), _on(parameters.device, buffers)


def build_client_model(
    net: nn.Module, parts: Parts, server: Tensors, client_state: Tensors, *, personal: bool = False
) -> nn.Module:
    """A module on the CPU with what `client_model` gives."""
    parameters, buffers = client_model(parts, server, client_state, personal=personal)
    named = {} if buffers is None else vector_to_buffers(net, tuple(parts.buffers), buffers)
    return with_weights(net, parameters, named).cpu()


def finish(
    method: Method, jobs: Mapping[str, LocalJob], trained: Mapping[str, Trained], client_state: Tensors, *,
    parts: Parts, settings: TrainSettings, rows: int, samples: float,
) -> tuple[ClientUpdate, dict[str, Tensor]]:  # fmt: skip
    """What a client sends, and what it keeps.

    Args:
        method: the method
        jobs: the jobs of `plan`
        trained: the trained models of these jobs
        client_state: what the client kept before
        parts: the parts of the model
        settings: the recipe of the run
        rows: how many samples the client trains on
        samples: how much they count: their number, or the sum of their weights
    """
    parts = parts.keeping(method.local)
    shared, personal = trained["shared"], trained.get("personal")
    model = shared.parameters
    if method.inner_steps is not None:  # the job trains the personal model, and its anchor is the shared one
        assert shared.anchor is not None
        model, personal = shared.anchor, shared
    buffers = shared.buffers if parts.averages_buffers else None
    declared = {} if shared.loss is None else {"loss": float(shared.loss)}
    update = ClientUpdate(parts.shared(model), samples, buffers, declared)
    kept = {"local": parts.local(model), "buffers": shared.buffers if parts.keeps_buffers else None}
    if personal is not None:
        kept |= {"personal": personal.parameters, "personal_buffers": personal.buffers}
    if method.correction != "none":
        job = jobs["shared"]
        assert job.drift is not None
        step = ClientStep(
            received=parts.shared(job.start), trained=update.parameters, drift=parts.shared(job.drift),
            kept=_to(model.device, correction_state(method, parts, client_state)),
            steps=step_count(job, rows, settings.batch_size, settings.last_batch), lr=job.lr, prox=job.prox,
        )  # fmt: skip
        sent, vectors = CORRECTIONS[method.correction].client_step(step)
        update, kept = update._replace(tensors=sent), {**kept, **vectors}
    if method.client_momentum:
        # Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021, arXiv 2012.10333
        received, share = parts.shared(jobs["shared"].start), 1 - method.client_momentum
        before = client_state.get("momentum", torch.zeros_like(received)).to(received.device)
        momentum = method.client_momentum * before + share * (update.parameters - received)
        update, kept = update._replace(parameters=received + momentum), {**kept, "momentum": momentum}
    return update, {name: tensor for name, tensor in kept.items() if tensor is not None}


class ServerUpdate(NamedTuple):
    """What the server keeps next, and the clients that were left out of it."""

    state: dict[str, Tensor]
    rejected: dict[int, str]  # client → reason
    bounded: dict[int, str]  # client → what screening bounded in its update


def server_update(
    method: Method,
    server: Tensors,
    updates: Mapping[int, ClientUpdate],
    settings: TrainSettings,
    mechanism: GaussianMechanism | None = None,
    *,
    selected: int | None = None,
    round: int = 1,
    root: Tensor | None = None,
    clients: int | None = None,
) -> ServerUpdate:
    """Aggregate the clients' w_n into the next w; invalid models are left out and reported.

    Clients are aggregated in the order of their numbers, so the order of arrival does not matter.

    Args:
        method: the aggregation rule and its settings
        server: what the server keeps; `parameters` is the w that the clients started from
        updates: client → its update
        settings: the server optimiser
        mechanism: with `settings.privacy`, that of this round
        selected: how many clients were asked for an update; None: as many as sent one
        round: the number of the round, for the order of buckets and the learning rate
        root: with fltrust, the model that the server trained on its root set
        clients: how many there are; None: as many as were asked
    """
    if (settings.privacy is None) != (mechanism is None):
        raise ValueError("settings.privacy and the mechanism of the round need each other")
    received = server["parameters"]
    selected = len(updates) if selected is None else selected
    rejected = invalid_updates(method, updates, server)
    updates = {client: updates[client] for client in sorted(updates) if client not in rejected}
    state, bounded = dict(server), dict[int, str]()
    if settings.audit and mechanism is None and len(updates) > 1:
        state[DISTANCES] = add_distances(server, updates)
    if settings.screen and updates:
        updates, refused, bounded, state["update_lengths"] = screen(server, updates, settings.screen)
        rejected |= refused
    accepted = list(updates)
    if not accepted and mechanism is None:
        reasons = "; ".join(f"client {client} {reason}" for client, reason in rejected.items())
        raise InputError(f"method {method.name!r} has no client model to aggregate ({reasons or 'none arrived'})")
    weights = None
    if mechanism is not None:
        aggregated = mechanism.aggregate(method, received, {client: u.parameters for client, u in updates.items()})
    else:
        models = stack_models([u.parameters for u in updates.values()])  # (C, S)
        weights, kept = weights_of_clients(method, server, updates)
        state |= kept
        aggregated = RoundRule.of(
            method, len(models), received, weights, selected=selected, seed=settings.seed, round=round, root=root,
            losses=losses_of(method, updates), lr=method.rates(settings.lr, None)[0] * settings.lr_factor(round),
        ).aggregate(models)  # fmt: skip
        if method.correction != "none":
            assert isinstance(models, Tensor)  # `uses_shards` is for methods without
            step = ServerStep(
                aggregated=aggregated, received=received, models=models, sent=[u.tensors for u in updates.values()],
                kept=server, clients=selected if clients is None else clients, prox=method.prox,
            )  # fmt: skip
            aggregated, kept = CORRECTIONS[method.correction].server_step(step)
            state |= kept
    state["parameters"] = aggregated
    if settings.server_optimizer is not None:
        state |= server_step(settings, server, aggregated)
    if "buffers" in server:
        buffers = torch.stack([b for client in accepted if (b := updates[client].buffers) is not None])
        weights = None if weights is None or not weights.any() else weights
        state["buffers"] = tilted(buffers, 0.0, weights=weights, start=server["buffers"])
    if reason := invalid_reason(state["parameters"], received):
        rule = method.aggregator if method.aggregator != "tilted" else f"tilted, q = {method.q:g}"
        raise Diverged(
            f"method {method.name!r} diverged on the server: the aggregated model {reason}; "
            + (f"lower the size in steps = {method.steps}" if method.steps else f"check its aggregation rule {rule!r}"),
            methods=[method.name],
        )
    return ServerUpdate(state, dict(sorted(rejected.items())), bounded)
