"""The server's half of a round: aggregate the clients' updates into the next shared model."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedtilt.attacks.screening import Screened, screen, tolerated_count
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.root_set import RootUpdate
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.updates import add_distances, invalid_reason, invalid_updates
from fedtilt.errors import Diverged, InputError
from fedtilt.executors.sharded_models import stack_models
from fedtilt.math.aggregate import tilted
from fedtilt.math.client_models import ClientModels, without_finite_check
from fedtilt.methods import Method, Prepared, ServerOptimizer, ServerRound, ServerStep
from fedtilt.methods.component import Component, check_slot, check_tensor, describe, run_slot_step, run_step
from fedtilt.methods.run_checks import check_models, tolerant_parts
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism
from fedtilt.state import ServerState, Slot


@dataclass(frozen=True, kw_only=True)
class RoundRule:
    """The steps before the aggregator and the aggregator of a method, in one round."""

    method: Method
    round: ServerRound
    slots: Mapping[str, Slot]  # of these components, before the round

    @classmethod
    def of(
        cls, method: Method, server: ServerState, asked: ServerRound, updates: Mapping[int, ClientUpdate],
        settings: TrainSettings, left_out: Sequence[int] = (),
    ) -> tuple[Self, Slot]:  # fmt: skip
        """The rule of the round that was `asked` for, with these updates, and the next slot of the weighting.

        Components count the clients that are part of the run: those that are left out have no number.
        """
        losses = None
        if method.needs_losses:
            losses = torch.tensor([update.declared["loss"] for update in updates.values()], dtype=torch.float64)
        given = replace(
            asked, clients=[n - sum(left < n for left in left_out) for n in updates], seed=settings.seed,
            losses=losses, sent=sent_to(method.training, updates),
            lr=method.rates(settings.lr, None)[0] * settings.lr_factor(asked.round),
            samples=torch.tensor([update.samples for update in updates.values()], dtype=torch.float64),
        )  # fmt: skip
        before = {name: tensor.cpu() for name, tensor in server.slot("weighting").items()}  # as the losses are
        weights, slot = run_slot_step(method.weighting, "weights", given, before)
        if weights is not None:
            dtype = weights.dtype if isinstance(weights, Tensor) else torch.float64
            weights = check_tensor(method.weighting, "weights", weights, torch.zeros(len(updates), dtype=dtype))
            if weights.is_complex() or bool((weights < 0).any()):
                raise InputError(
                    f"{describe(method.weighting)} returned {weights.tolist()!s:.60} as weights; expected numbers ≥ 0"
                )
        slot = check_slot(method.weighting, "the slot of the server", slot, before)
        names = [f"before.{i}" for i in range(len(method.before))] + ["aggregator"]
        slots = {name: server.slot(name) for name in names}
        return cls(method=method, round=replace(given, weights=weights), slots=slots), slot

    @property
    def is_by_coordinate(self) -> bool:
        """Whether the rule, or a step before it, depends on more than lengths and angles."""
        return any(part.by_coordinate for part in (*self.method.before, self.method.aggregator))

    def relative_to(self, start: Tensor, root: Tensor | None = None) -> Self:
        """The same rule for models in other coordinates, in which these are the received and the root model."""
        return replace(self, round=replace(self.round, received=start, root=root))

    def prepare(self, models: ClientModels) -> tuple[ClientModels, Self]:
        """The models after the steps before the rule, (M, P), and the rule for them, with the next slots."""
        given, slots = self.round, dict(self.slots)
        for i, step in enumerate(self.method.before):
            assert isinstance(models, Tensor)  # `uses_shards` is for methods without such steps
            prepared = run_step(step, "apply", models, given, slots[f"before.{i}"])
            models, mixing = _checked(step, prepared, models)
            if mixing is not None:
                given = given.mixed(mixing)
            slots[f"before.{i}"] = check_slot(step, "the slot of the server", prepared.slot, slots[f"before.{i}"])
        return models, replace(self, round=given, slots=slots)

    def apply(self, models: ClientModels) -> tuple[Tensor, dict[str, Slot]]:
        """The aggregated model (P,) of models after the steps before the rule, and the next slots."""
        start, weights, rule = self.round.received, self.round.weights, self.method.aggregator
        if weights is not None and not weights.any():  # AFL gives all weight to clients that take no part
            return start.clone(), dict(self.slots)
        model, slot = run_slot_step(rule, "aggregate", models, self.round, self.slots["aggregator"])
        model = check_tensor(rule, "the aggregated model", model, start)
        slot = check_slot(rule, "the slot of the server", slot, self.slots["aggregator"])
        return model, {**self.slots, "aggregator": slot}

    def aggregate(self, models: ClientModels) -> tuple[Tensor, dict[str, Slot]]:
        """The aggregated model (P,) of the clients' models (C, P), and the next slots."""
        models, rule = self.prepare(models)
        return rule.apply(models)

    def combine_messages(self, messages: Tensor) -> Tensor:
        """One message of those that the clients sent beside their models, (C, …) → (…); see `Aggregator`."""
        rule = self.method.aggregator
        return rule.combine_messages(messages.reshape(len(messages), -1), self.round).reshape(messages.shape[1:])


def _checked(step: Component, prepared: object, models: Tensor) -> tuple[Tensor, Tensor | None]:
    """The models after a step before the rule, (M, P), and their weights (M, C) of those before it, in float64."""
    if not isinstance(prepared, Prepared):
        raise InputError(
            f"{describe(step)} returned {type(prepared).__name__} from apply; expected Prepared(models, mixing, slot)"
        )
    found, mixing = prepared.models, prepared.mixing
    count = len(found) if isinstance(found, Tensor) and found.ndim == models.ndim else len(models)
    found = check_tensor(step, "models", found, models[:1].expand(count, -1))
    if count != len(models) and mixing is None:
        raise InputError(
            f"{describe(step)} returned {count} models for {len(models)} clients, and no mixing; expected a model for "
            "every client, or as mixing the weights (models, clients) with which they are means"
        )
    if mixing is not None:
        like = torch.zeros(count, len(models))
        mixing = check_tensor(step, "mixing", mixing, like.to(mixing) if isinstance(mixing, Tensor) else like).double()
    return found, mixing


def sent_to(component: Component | None, updates: Mapping[int, ClientUpdate]) -> dict[str, Tensor]:
    """What the clients sent beside their models for a component, by name, each (C, …)."""
    if component is None or not updates:
        return {}
    sent = [u.sent.get(component.kind, {}) for u in updates.values()]
    return {name: torch.stack([tensors[name] for tensors in sent]) for name in sent[0]}


def trusting_slots(method: Method) -> list[str]:
    """The slots of the components that take what clients send as it is."""
    return [p.kind for p in (method.correction, method.training) if p is not None and p.messages == "trusted"]


class ServerUpdate(NamedTuple):
    """The next state of the server, and the clients whose updates were rejected."""

    state: ServerState
    rejected: dict[int, str]  # client → reason
    bounded: dict[int, str]  # client → what screening bounded in its update


def server_update(
    method: Method,
    server: ServerState,
    updates: Mapping[int, ClientUpdate],
    settings: TrainSettings,
    mechanism: GaussianMechanism | None = None,  # of this round, with `settings.privacy`
    *,
    selected: int | None = None,  # how many clients were asked for an update; None: as many as sent one
    round: int = 1,
    root: RootUpdate | None = None,  # of a rule with a root set: what the server trained on it
    clients: int | None = None,  # how many there are; None: as many as were asked
    left_out: Sequence[int] = (),  # those of them that are not part of the run
    check: Callable[[], None] | None = None,  # raises if an update is invalid; None: these are looked at here
) -> ServerUpdate:
    """Aggregate the clients' w_n into the next w; invalid models are rejected and reported.

    Clients are aggregated in the order of their numbers, so the order of arrival does not matter.
    """
    if (settings.privacy is None) != (mechanism is None):
        raise ValueError("settings.privacy and the mechanism of the round need each other")
    received = server.parameters
    selected = len(updates) if selected is None else selected
    clients = selected if clients is None else clients
    only_averages = method.only_averages and mechanism is None and not settings.audit and not settings.screen
    rejected: dict[int, str] = {}
    if check is None:
        rejected = invalid_updates(method, updates, server)
    elif not only_averages:  # a mean is queued before the check waits for a GPU
        check()
    updates = {client: updates[client] for client in sorted(updates) if client not in rejected}
    slots, bounded, screened_out = dict(server.slots), dict[int, str](), 0
    if settings.audit and mechanism is None and len(updates) > 1:
        slots["audit"] = add_distances(server.slot("audit"), updates)
    if settings.screen and updates:
        screened = _screen(method, server, updates, settings.screen, selected, clients)
        updates, bounded, screened_out = screened.updates, screened.bounded, len(screened.rejected)
        rejected |= screened.rejected
        slots["screening"] = screened.slot
    accepted = list(updates)
    if not accepted and mechanism is None:
        reasons = "; ".join(f"client {client} {reason}" for client, reason in rejected.items())
        raise InputError(f"method {method.name!r} has no client model to aggregate ({reasons or 'none arrived'})")
    weights = None
    if mechanism is not None:
        aggregated = mechanism.aggregate(method, received, {client: u.parameters for client, u in updates.items()})
    else:
        asked = ServerRound(
            received=received, population=clients - len(left_out), selected=selected, rejected=screened_out,
            round=round, root=root and root.parameters,
        )  # fmt: skip
        aggregated, weights, of_components = _aggregate(method, server, asked, updates, settings, left_out)
        slots |= of_components
        if check is not None and only_averages:
            check()
    if root is not None:
        slots["root"] = root.slot
    optimizer = method.optimizer or settings.server_optimizer
    if optimizer is not None:
        aggregated, slots["optimizer"] = _take_step(optimizer, server, aggregated)
    buffers = None
    if server.buffers is not None:
        sent = torch.stack([b for client in accepted if (b := updates[client].buffers) is not None])
        weights = None if weights is None or not weights.any() else weights
        buffers = tilted(sent, 0.0, weights=weights, start=server.buffers)
    if reason := invalid_reason(aggregated, received):
        rule_name, steps = method.aggregator.label, getattr(method.aggregator, "steps", None)
        raise Diverged(
            f"method {method.name!r} diverged on the server: the aggregated model {reason}; "
            + (f"lower the size in steps = {steps}" if steps else f"check its aggregation rule {rule_name!r}"),
            methods=[method.name],
        )
    state = ServerState(aggregated, buffers, slots=slots)
    return ServerUpdate(state, dict(sorted(rejected.items())), bounded)


def _screen(
    method: Method, server: ServerState, updates: Mapping[int, ClientUpdate], factor: float, selected: int, clients: int
) -> Screened:
    """Screen the updates, by the number of bad clients that the method's robust parts are set for."""
    bad_shares = [part.bad_share for part in tolerant_parts(method)]
    bad = tolerated_count(bad_shares, selected)
    by_rule = bad if bad_shares else (len(updates) - 1) // 2
    return screen(
        server, updates, factor, clients=clients, bad=bad, trusted=trusting_slots(method),
        tolerated=by_rule if method.aggregator.is_robust else 0,
    )  # fmt: skip


def _take_step(optimizer: ServerOptimizer, server: ServerState, aggregated: Tensor) -> tuple[Tensor, Slot]:
    """The model after the step of a server optimiser, and its next slot."""
    received = server.parameters
    was: Slot = server.slot("optimizer") or optimizer.init(received)
    model, slot = run_slot_step(optimizer, "step", received, aggregated, was)
    return check_tensor(optimizer, "the model", model, received), check_slot(optimizer, "its slot", slot, was)


def _aggregate(
    method: Method, server: ServerState, asked: ServerRound, updates: Mapping[int, ClientUpdate],
    settings: TrainSettings, left_out: Sequence[int],
) -> tuple[Tensor, Tensor | None, dict[str, Slot]]:  # fmt: skip
    """The aggregated and corrected model, the weights of the clients, and the next slots of the components."""
    received = asked.received
    models = stack_models([u.parameters for u in updates.values()])  # (C, S)
    rule, weighting = RoundRule.of(method, server, asked, updates, settings, left_out)
    check_models(method, rule.round)
    # `server_update` looks at what clients send, but not at a root model
    with without_finite_check() if asked.root is None else contextlib.nullcontext():
        aggregated, slots = rule.aggregate(models)
    slots = {"weighting": weighting, **slots}
    if (correction := method.correction) is not None:
        assert isinstance(models, Tensor)  # `uses_shards` is for methods without
        step = ServerStep(
            aggregated=aggregated, received=received, slot=server.slot("correction"),
            population=asked.population, clients=len(updates),
            update=aggregated - received if method.aggregator.is_robust else (models - received).mean(0),
            sent={name: rule.combine_messages(tensor) for name, tensor in sent_to(correction, updates).items()},
        )  # fmt: skip
        aggregated, slot = run_slot_step(correction, "server_step", step)
        aggregated = check_tensor(correction, "the model", aggregated, received)
        slots["correction"] = check_slot(correction, "its slot", slot, step.slot)
    if (training := method.training) is not None:
        before, sent = server.slot("training"), dict(rule.round.sent)
        if method.aggregator.is_robust and training.messages == "aggregated":
            sent = {name: rule.combine_messages(tensor).expand_as(tensor) for name, tensor in sent.items()}
        slot = run_step(training, "server_step", sent, rule.round, before)
        slots["training"] = check_slot(training, "the slot of the server", slot, before)
    return aggregated, rule.round.weights, slots
