"""The clients of one round: their jobs, the trained models and their states; what attackers send, and root sets."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedtilt.attacks.attack import AttackedFederation
from fedtilt.attacks.forged_updates import forge
from fedtilt.auditing.collect import ClientRound, Collector
from fedtilt.engine.client import ClientUpdate, finish, plan
from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.engine.root_set import RootUpdate
from fedtilt.engine.server import RoundRule
from fedtilt.executors.in_process import Executor
from fedtilt.methods import ServerRound
from fedtilt.state import ClientState, ServerState
from fedtilt.training import LocalJob, Trained, distinct_jobs

Sums = dict[str, dict[int, dict[str, Tensor]]]  # method → client → what the audit collects


def merge_equal(server: Mapping[str, ServerState]) -> dict[str, ServerState]:
    """The server states, equal tensors as the same object, so that `distinct_jobs` finds their identical jobs."""
    distinct: list[Tensor] = []

    def merge(tensor: Tensor) -> Tensor:
        # some are always on the CPU; `torch.equal` of two types compares values alone
        alike = [other for other in distinct if (other.device, other.dtype) == (tensor.device, tensor.dtype)]
        equal = next((other for other in alike if torch.equal(other, tensor)), None)
        if equal is None:
            distinct.append(tensor)
        return tensor if equal is None else equal

    return {method: state.map(merge) for method, state in server.items()}


Plans = dict[int, dict[str, dict[str, LocalJob]]]  # client → method → its jobs


def plan_clients(
    prepared: PreparedRun,
    server: Mapping[str, ServerState],
    client_states: ClientStates,
    clients: Sequence[int],
    round: int,
) -> Plans:
    """The jobs of these clients for every method; those without a state have the same."""
    plans: Plans = {client: {} for client in clients}
    for m in prepared.methods:
        without_state: dict[str, LocalJob] | None = None
        for client in clients:
            kept = client_states.get((m.name, client), fetch=False)
            jobs = without_state if kept.is_empty else None
            if jobs is None:
                jobs = plan(
                    m, server[m.name], kept, parts=prepared.parts, settings=prepared.settings, round=round,
                    group=prepared.federation.group, net=prepared.net,
                )  # fmt: skip
                without_state = jobs if kept.is_empty else without_state
            plans[client][m.name] = jobs
    return plans


def train_clients(
    prepared: PreparedRun,
    plans: Mapping[int, Mapping[str, Mapping[str, LocalJob]]],
    executor: Executor,
    number: int,
    client_states: ClientStates,
    collector: Collector | None,
) -> tuple[dict[str, dict[int, ClientUpdate]], dict[str, dict[int, ClientState]], Sums]:
    """Updates, new client states, and what the audit collects; jobs that methods have in common train once."""
    jobs, positions = {}, {}  # by client: its distinct jobs, and for every planned job its position among them
    for client, by_method in plans.items():
        jobs[client], positions[client] = distinct_jobs([job for p in by_method.values() for job in p.values()])
    updates: dict[str, dict[int, ClientUpdate]] = {m.name: {} for m in prepared.methods}
    kept: dict[str, dict[int, ClientState]] = {m.name: {} for m in prepared.methods}
    audited: Sums = {m.name: {} for m in prepared.methods}
    all_trained: dict[int, dict[str, dict[str, Trained]]] = {}
    for client, results in executor.train(number, jobs):
        by_job = iter(results[i] for i in positions[client])
        rows, samples = len(prepared.federation.train_index[client]), prepared.federation.train_size(client)
        trained = {m.name: {model: next(by_job) for model in plans[client][m.name]} for m in prepared.methods}
        for m in prepared.methods:
            updates[m.name][client], kept[m.name][client] = finish(
                m, plans[client][m.name], trained[m.name], client_states.get((m.name, client), fetch=False),
                parts=prepared.parts, settings=prepared.settings, rows=rows, samples=samples, net=prepared.net,
            )  # fmt: skip
        if collector is not None:
            all_trained[client] = trained
    if collector is not None:
        audited = _collect(prepared, plans, all_trained, number, client_states, collector)
    return updates, kept, audited


def _collect(
    prepared: PreparedRun,
    plans: Mapping[int, Mapping[str, Mapping[str, LocalJob]]],
    trained: Mapping[int, Mapping[str, Mapping[str, Trained]]],
    number: int,
    client_states: ClientStates,
    collector: Collector,
) -> Sums:
    """What the audit collects in this round."""
    federation, seed, device = prepared.federation, prepared.settings.seed, prepared.device

    def client_round(client: int) -> ClientRound:
        x, y = federation.train(client, seed=seed, round=number, device=device)
        kept = {m.name: client_states.get((m.name, client)) for m in prepared.methods}
        groups = federation.train_groups(client, device=device)
        return ClientRound(plans[client], trained[client], kept, x, y, groups)

    clients = sorted(trained)  # not as they arrive: those that share a forward pass must not depend on it
    sums = dict(zip(clients, collector.collect(map(client_round, clients)), strict=True))
    return {m.name: {client: sums[client][m.name] for client in clients} for m in prepared.methods}


def store_states(state: FederationState, kept: Mapping[str, Mapping[int, ClientState]], audited: Sums) -> None:
    """Store the client states after a round."""
    for name, by_client in kept.items():
        for client, next_state in sorted(by_client.items()):
            # copies: a trained model may be a view into a stack of all models, which would stay in memory
            stored = next_state.map(Tensor.clone).with_slots({"audit": audited[name].get(client, {})})
            if not stored.is_empty:
                state.client_states.put((name, client), state.round, stored)


def train_on_root_sets(prepared: PreparedRun, server: Mapping[str, ServerState], round: int) -> dict[str, RootUpdate]:
    """For every method with a root set, what a client's round on it gives."""
    return {
        m.name: prepared.roots[m.name].train(
            m, server[m.name], net=prepared.net, parts=prepared.parts, settings=prepared.settings,
            backend=prepared.backend.name, round=round,
        )
        for m in prepared.methods if m.name in prepared.roots
    }  # fmt: skip


def received_updates(
    prepared: PreparedRun,
    server: Mapping[str, ServerState],
    updates: Mapping[str, Mapping[int, ClientUpdate]],
    roots: Mapping[str, RootUpdate],
    number: int,
) -> Mapping[str, Mapping[int, ClientUpdate]]:
    """Method → client → its update; those of attackers are forged."""
    federation, settings = prepared.federation, prepared.settings
    if not isinstance(federation, AttackedFederation):
        return updates
    forged = {}
    for m in prepared.methods:
        by_client = {client: updates[m.name][client] for client in sorted(updates[m.name])}
        root = roots.get(m.name)
        asked = ServerRound(
            received=server[m.name].parameters, population=federation.population, selected=len(by_client),
            round=number, root=root and root.parameters,
        )  # fmt: skip
        rule, _ = RoundRule.of(m, server[m.name], asked, by_client, settings, federation.left_out)
        forged[m.name] = forge(federation.attack, rule, by_client, federation.attackers)
    return forged
