"""Simulate a federation on one machine, round by round: every method on the same clients, batches and outliers.

The loop of a round: select clients, plan their jobs, train, update the server, evaluate. All inputs are checked before
anything is trained or written (`fedtilt.rounds.prepare`). Jobs are trained by an executor, in this process (on a GPU,
or without workers) or in one worker process per core, with one of the `BACKENDS` of `fedtilt.training`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedtilt.auditing.collect import ClientRound, Collector
from fedtilt.cluster.remote_tensor import LostTensorError
from fedtilt.data import Federation
from fedtilt.data.data_warnings import warn
from fedtilt.data.naming import client_number
from fedtilt.data.targets import NumericTarget
from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.metrics import Counts, Metrics, measure
from fedtilt.evaluation.summary import evaluated_counts
from fedtilt.methods import Method, check_rates_used
from fedtilt.models import ModelSource, in_target_unit
from fedtilt.parts import Parts, Tensors
from fedtilt.rounds.attack import AttackedFederation
from fedtilt.rounds.client_states import ClientStates, FederationState
from fedtilt.rounds.executors import Executor, one_thread
from fedtilt.rounds.gaussian_mechanism import PrivacyLoss
from fedtilt.rounds.make_executor import make_executor
from fedtilt.rounds.method_state import check_state, initial_server
from fedtilt.rounds.prepare import PreparedRun, prepare
from fedtilt.rounds.received_updates import received_updates
from fedtilt.rounds.restart_point import RestartPoint
from fedtilt.rounds.root_set import train_on_root_sets
from fedtilt.rounds.round import (
    ClientUpdate,
    build_client_model,
    finish,
    plan,
    server_update,
)
from fedtilt.rounds.setting_arguments import takes_train_settings, train_settings
from fedtilt.rounds.validity import check_finite
from fedtilt.training import BackendChoice, LocalJob, Trained, distinct_jobs
from fedtilt.training.precision import fp32_deterministic


@dataclass(frozen=True, kw_only=True)
class Round:
    """One finished round; `state` is not a copy: the next round changes it."""

    number: int
    selected: list[int]
    state: FederationState
    counts: Mapping[str, Counts] | None  # method → correct predictions; None: the round was not evaluated
    total: Tensor  # (N, K) test samples
    validation: Mapping[str, Counts] | None  # the same on validation data, if the federation has any
    validation_total: Tensor | None  # (N, K) validation samples
    seconds: float
    backend: BackendChoice  # what trained the models, and why nothing faster did
    screened: Mapping[str, Mapping[int, str]]  # method → client → why its update was refused or bounded
    attack_success: Mapping[str, float]  # method → success of a backdoor in percent; empty: none, or not evaluated
    privacy: PrivacyLoss | None  # of the shared model of each method, so far; None: no privacy, or not evaluated
    _net: nn.Module
    _parts: Mapping[str, Parts]  # by method
    client_names: tuple[str, ...]
    _target: NumericTarget | None = None  # the scale of the targets if they are numbers

    def metrics(self, method: str, *, validation: bool = False) -> Metrics:
        """Metrics of the method's evaluated models, on test or on validation data."""
        self._check(method)
        if self.counts is None:
            raise InputError(f"round {self.number} was not evaluated; use eval_every = 1 to evaluate every round")
        if not validation:
            return measure(evaluated_counts(self.counts[method]), self.total)
        if self.validation is None or self.validation_total is None:
            raise InputError("the federation has no validation data; build it with, for example, validation = 0.1")
        return measure(evaluated_counts(self.validation[method]), self.validation_total)

    def model(self, method: str, client: int | str | None = None) -> nn.Module:
        """A copy of the method's shared model or, with `client`, of the model that this client uses."""
        self._check(method)
        kept: Tensors = {}
        if client is not None:
            kept = self.state.client_states.get((method, client_number(client, self.client_names)))
        parts = self._parts[method]
        model = build_client_model(self._net, parts, self.state.server[method], kept, personal=client is not None)
        return in_target_unit(model, self._target)

    def _check(self, method: str) -> None:
        if method not in self.state.server:
            raise InputError(f"there is no method {method!r} in this run; it has {', '.join(self.state.server)}")


@takes_train_settings
def simulate(
    methods: Iterable[Method],
    federation: Federation,
    model: ModelSource,
    *,
    state: FederationState | None = None,
    client_states: ClientStates | None = None,
    **settings: Any,
) -> Iterator[Round]:
    """Train every method on one federation, and yield after every round; the defaults are the setting of the paper.

    All methods use the same clients, batches and outliers. For a progress bar or an early stop, write a plain loop.

    Args:
        methods: the methods to compare, with unique names
        federation: the clients and their data
        model: an `nn.Module`, or a function of `input_shape` and `classes` that returns one
        state: continue from this state
        client_states: where personal models are stored; in memory by default
        **settings: the training settings:
    """
    prepared = prepare(methods, federation, model, train_settings(settings))
    check_rates_used(prepared.methods, settings)
    return simulate_prepared(prepared, state=state, client_states=client_states)


def simulate_prepared(
    prepared: PreparedRun,
    *,
    state: FederationState | None = None,
    client_states: ClientStates | None = None,
    notice: Callable[[str], None] | None = None,
) -> Iterator[Round]:
    """`simulate` with checked inputs; `notice` is called with messages for the user, which else are warnings."""
    methods, device = prepared.methods, prepared.device
    if state is None:
        servers: dict[str, Tensors] = {
            m.name: _to(device, initial_server(m, prepared.parts, prepared.federation.clients)) for m in methods
        }
        state = FederationState(0, servers, ClientStates() if client_states is None else client_states)
    else:
        for m in methods:
            if m.name not in state.server:
                raise InputError(f"state has no method {m.name!r}; it has {', '.join(state.server)}")
            needed = initial_server(m, prepared.parts, prepared.federation.clients)
            check_state(state.server[m.name], needed, f"what the server keeps for method {m.name!r}")
        state.server = {m.name: _to(device, state.server[m.name]) for m in methods}
    return _rounds(prepared, state, notice or (lambda text: warn([text])))


def _to(device: torch.device, tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _rounds(prepared: PreparedRun, state: FederationState, notice: Callable[[str], None]) -> Iterator[Round]:
    federation, settings, device = prepared.federation, prepared.settings, prepared.device
    prepared.net.to(device)
    if state.round >= settings.rounds:  # nothing is left to train, and no worker to start
        return
    has_validation = any(map(len, federation.validation_index))
    with fp32_deterministic(device):
        test = Evaluator(federation, prepared.net, prepared.parts, device)
        validation = (
            Evaluator(federation, prepared.net, prepared.parts, device, "validation") if has_validation else None
        )
        triggered = None
        if isinstance(federation, AttackedFederation) and federation.attack.kind == "backdoor":
            triggered = Evaluator(federation.with_triggers(), prepared.net, prepared.parts, device)
        executor = make_executor(prepared, notice)
        collector = Collector(prepared.net, prepared.parts) if settings.audit else None
    restart, yielded = RestartPoint(), state.round
    try:
        while state.round < settings.rounds:
            # one thread: on small tensors, several threads wait for each other more than they work
            with one_thread(device), fp32_deterministic(device):
                try:
                    restart.save(state, on_nodes=executor.on_nodes)
                    again = state.round < yielded
                    finished = _run_round(prepared, state, executor, test, validation, triggered, collector, again)
                    if state.round == settings.rounds:
                        state.client_states.fetch_remote()
                except LostTensorError:
                    notice(restart.restore(state))
                    continue
            if state.round > yielded:
                yielded = state.round
                yield finished
    finally:
        try:
            state.client_states.fetch_remote()
        finally:
            executor.close()


def _run_round(
    prepared: PreparedRun,
    state: FederationState,
    executor: Executor,
    test: Evaluator,
    validation: Evaluator | None,
    triggered: Evaluator | None,
    collector: Collector | None,
    again: bool,
) -> Round:
    """Train one round; one that is trained again, after a loss, is not evaluated again."""
    methods, federation, settings = prepared.methods, prepared.federation, prepared.settings
    started = time.perf_counter()
    number = state.round + 1

    # 1. select clients
    selected = settings.selected(number, federation.clients)

    # 2. plan their local jobs
    server = _merge_equal(state.server)
    plans = {client: _plan_client(prepared, server, state.client_states, client, number) for client in selected}

    # 3. train
    updates, kept, audited = _train(prepared, plans, executor, number, state.client_states, collector)

    # 4. server update; the state changes only after all models have been checked
    check_finite(number, methods, server, updates, kept)
    mechanism = prepared.mechanism and prepared.mechanism.for_round(number)
    roots = train_on_root_sets(prepared, server, number)
    updates = received_updates(prepared, server, updates, roots, number)
    updated = {
        m.name: server_update(
            m,
            server[m.name],
            updates[m.name],
            settings,
            mechanism,
            round=number,
            root=roots.get(m.name),
            clients=federation.clients,
        )
        for m in methods
    }
    state.server = {name: update.state for name, update in updated.items()}
    state.round = number
    _store(state, kept, audited)
    del server, plans, updates, kept, audited  # free their memory before the evaluation

    # 5. evaluate
    evaluate = settings.evaluates(number) and not again
    return Round(
        number=number,
        selected=selected,
        state=state,
        counts=test.all_counts(methods, state) if evaluate else None,
        total=test.total,
        validation=validation.all_counts(methods, state) if evaluate and validation else None,
        validation_total=validation.total if validation else None,
        seconds=time.perf_counter() - started,
        backend=prepared.backend,
        screened={name: {**update.bounded, **update.rejected} for name, update in updated.items()},
        attack_success=_attack_success(methods, state, triggered) if evaluate and triggered else {},
        privacy=mechanism.loss(number) if mechanism and evaluate else None,
        _net=prepared.net,
        _parts={m.name: prepared.parts.keeping(m.local) for m in methods},
        client_names=federation.client_names,
        _target=federation.target,
    )


def _attack_success(methods: Sequence[Method], state: FederationState, triggered: Evaluator) -> dict[str, float]:
    counts = triggered.all_counts(methods, state)
    return {name: measure(evaluated_counts(found), triggered.total).accuracy for name, found in counts.items()}


def _merge_equal(server: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """What the servers keep, equal tensors as the same object, so that `distinct_jobs` finds their identical jobs."""
    distinct: list[Tensor] = []

    def merge(tensor: Tensor) -> Tensor:
        equal = next((other for other in distinct if torch.equal(other, tensor)), None)
        if equal is None:
            distinct.append(tensor)
        return tensor if equal is None else equal

    return {method: {name: merge(t) for name, t in tensors.items()} for method, tensors in server.items()}


def _plan_client(
    prepared: PreparedRun, server: Mapping[str, Tensors], client_states: ClientStates, client: int, round: int
) -> dict[str, dict[str, LocalJob]]:
    """The client's jobs for every method."""
    plans = {}
    for m in prepared.methods:
        kept = client_states.get((m.name, client), fetch=False)
        plans[m.name] = plan(
            m, server[m.name], kept, parts=prepared.parts, settings=prepared.settings, round=round,
            group=prepared.federation.group,
        )  # fmt: skip
    return plans


KeptTensors = dict[str, dict[int, dict[str, Tensor]]]  # method → client → what it keeps


def _train(
    prepared: PreparedRun,
    plans: Mapping[int, Mapping[str, Mapping[str, LocalJob]]],
    executor: Executor,
    number: int,
    client_states: ClientStates,
    collector: Collector | None,
) -> tuple[dict[str, dict[int, ClientUpdate]], KeptTensors, KeptTensors]:
    """Updates, what clients keep, and what the audit collects; jobs that several methods have in common train once."""
    jobs, positions = {}, {}  # by client: its distinct jobs, and for every planned job its position among them
    for client, by_method in plans.items():
        jobs[client], positions[client] = distinct_jobs([job for p in by_method.values() for job in p.values()])
    updates: dict[str, dict[int, ClientUpdate]] = {m.name: {} for m in prepared.methods}
    kept: KeptTensors = {m.name: {} for m in prepared.methods}
    audited: KeptTensors = {m.name: {} for m in prepared.methods}
    all_trained: dict[int, dict[str, dict[str, Trained]]] = {}
    for client, results in executor.train(number, jobs):
        by_job = iter(results[i] for i in positions[client])
        samples = len(prepared.federation.train_index[client])
        trained = {m.name: {model: next(by_job) for model in plans[client][m.name]} for m in prepared.methods}
        for m in prepared.methods:
            updates[m.name][client], kept[m.name][client] = finish(
                m, plans[client][m.name], trained[m.name], client_states.get((m.name, client), fetch=False),
                parts=prepared.parts, settings=prepared.settings, samples=samples,
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
) -> KeptTensors:
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


def _store(state: FederationState, kept: KeptTensors, audited: KeptTensors) -> None:
    for name, by_client in kept.items():
        for client, tensors in sorted(by_client.items()):
            # copies: a trained model may be a view into a stack of all models, which would stay in memory
            stored = {key: tensor.clone() for key, tensor in tensors.items()} | audited[name].get(client, {})
            if stored:
                state.client_states.put((name, client), state.round, stored)
