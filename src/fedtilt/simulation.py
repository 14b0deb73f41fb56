"""Simulate a federation on one machine, round by round: every method on the same clients, batches and outliers.

    prepare             checks all inputs before anything is trained or written
    simulate_prepared   the loop: select clients, plan, train, server update, evaluate

Jobs are trained by an executor, in this process (a GPU, or no workers) or in one worker process per core, with one of
the `BACKENDS` of `fedtilt.training`.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data import Federation
from fedtilt.data.names import client_number
from fedtilt.errors import Diverged, InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.metrics import Counts, Metrics, measure
from fedtilt.evaluation.results import evaluated_counts
from fedtilt.methods import Method, check_methods, check_rates_used
from fedtilt.models import ModelSource, parameters_to_vector, recipe, with_weights
from fedtilt.rounds.client_states import ClientStates, FederationState
from fedtilt.rounds.executors import (
    BatchSettings,
    Executor,
    ForkedExecutor,
    InProcessExecutor,
    can_fork,
    cores,
    one_thread,
)
from fedtilt.rounds.round import Plan, invalid_reasons, plan, server_update
from fedtilt.rounds.settings import (
    TrainSettings,
    initial_model,
    pick_device,
    round_half_up,
    takes_train_settings,
    train_settings,
)
from fedtilt.training import choose_backend, distinct_jobs
from fedtilt.training.precision import fp32_deterministic

Models = dict[str, dict[int, Tensor]]  # method → client → (P,)


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
    _net: nn.Module
    _clients: tuple[str, ...]

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
        personal = None
        if client is not None:
            personal = self.state.client_states.get((method, client_number(client, self._clients)))
        return with_weights(self._net, self.state.shared[method] if personal is None else personal).cpu()

    def _check(self, method: str) -> None:
        if method not in self.state.shared:
            raise InputError(f"there is no method {method!r} in this run; it has {', '.join(self.state.shared)}")


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


class PreparedRun(NamedTuple):
    """The checked inputs of a simulation."""

    methods: list[Method]
    federation: Federation
    net: nn.Module  # the initial model of every method
    settings: TrainSettings
    device: torch.device
    backend: str
    recipe: dict[str, Any] | None  # name and arguments to build the model again; None: a custom model


def prepare(
    methods: Iterable[Method], federation: Federation, model: ModelSource, settings: TrainSettings
) -> PreparedRun:
    """Check the inputs of a simulation, and refuse what would fail later."""
    methods = check_methods(methods, settings.lr, settings.lr_personal)
    if torch.is_inference_mode_enabled():
        raise InputError("a run trains models, which is not possible in torch.inference_mode(); start it outside")
    if not isinstance(federation, Federation):
        raise InputError(
            f"federation must be a Federation, such as ft.Federation.build(data), got {type(federation).__name__}"
        )
    device = pick_device(settings.device)
    net = initial_model(federation, model, settings.seed)
    backend = choose_backend(net, device.type, settings.backend, federation.clean_train(0)[0][:1], settings.precision)
    model_recipe = recipe(model, federation.input_shape, federation.classes)
    return PreparedRun(methods, federation, net, settings, device, backend, model_recipe)


def simulate_prepared(
    prepared: PreparedRun, *, state: FederationState | None = None, client_states: ClientStates | None = None
) -> Iterator[Round]:
    """`simulate` with checked inputs."""
    methods, device = prepared.methods, prepared.device
    if state is None:
        start = parameters_to_vector(prepared.net).to(device)
        state = FederationState(
            0, {m.name: start for m in methods}, ClientStates() if client_states is None else client_states
        )
    else:
        for m in methods:
            if m.name not in state.shared:
                raise InputError(f"state has no method {m.name!r}; it has {', '.join(state.shared)}")
        state.shared = {m.name: state.shared[m.name].to(device) for m in methods}
    return _rounds(prepared, state)


def _rounds(prepared: PreparedRun, state: FederationState) -> Iterator[Round]:
    _, federation, net, settings, device, _, _ = prepared
    net.to(device)
    has_validation = any(map(len, federation.validation_index))
    with fp32_deterministic(device):
        test = Evaluator(federation, net, device)
        validation = Evaluator(federation, net, device, "validation") if has_validation else None
        executor = _make_executor(prepared)
    try:
        while state.round < settings.rounds:
            # one thread: on small tensors, several threads wait for each other more than they work
            with one_thread(device), fp32_deterministic(device):
                finished = _run_round(prepared, state, executor, test, validation)
            yield finished
    finally:
        executor.close()


def _run_round(
    prepared: PreparedRun, state: FederationState, executor: Executor, test: Evaluator, validation: Evaluator | None
) -> Round:
    methods, federation, net, settings, *_ = prepared
    started = time.perf_counter()
    number = state.round + 1

    # 1. select clients
    selected = settings.selected(number, federation.clients)

    # 2. plan their local jobs
    received = _merge_equal(state.shared)
    initial = parameters_to_vector(net) if any(m.personal_start == "initial" for m in methods) else None
    plans = {client: _plan_client(methods, received, state, client, settings, initial) for client in selected}

    # 3. train
    updates, personal = _train(methods, plans, executor, number)

    # 4. server update; the state changes only after all models have been checked
    _check_finite(number, methods, received, updates, personal)
    samples = {client: len(federation.train_index[client]) for client in selected}
    state.shared = {m.name: server_update(m, received[m.name], updates[m.name], samples).shared for m in methods}
    state.round = number
    _store_personal(state, personal)
    del received, plans, updates, personal  # free their memory before the evaluation

    # 5. evaluate
    evaluate = settings.evaluates(number)
    return Round(
        number=number,
        selected=selected,
        state=state,
        counts=test.all_counts(methods, state) if evaluate else None,
        total=test.total,
        validation=validation.all_counts(methods, state) if evaluate and validation else None,
        validation_total=validation.total if validation else None,
        seconds=time.perf_counter() - started,
        _net=net,
        _clients=federation.client_names,
    )


def _make_executor(prepared: PreparedRun) -> Executor:
    methods, federation, net, settings, device, backend, _ = prepared
    batch_settings = BatchSettings.of(settings)
    workers = settings.workers
    if device.type != "cpu" or backend == "stacked":
        workers = 0
    elif workers is None:
        clients = max(1, round_half_up(settings.participation * federation.clients))  # in a round
        workers = min(cores(), clients) if cores() > 1 and can_fork(backend) else 0
    elif workers and not can_fork(backend):
        raise InputError(
            f"workers = {workers} cannot be forked here (not Linux, a daemon, or autograd was used with a GPU); "
            "leave it out or set it to 0"
        )
    if workers == 0:
        return InProcessExecutor(federation, net, backend, batch_settings, device, settings.precision)
    return ForkedExecutor(federation, net, backend, batch_settings, workers, jobs_per_client=2 * len(methods))


def _merge_equal(shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The shared models, equal ones as the same tensor, so that `distinct_jobs` finds their identical jobs."""
    distinct: list[Tensor] = []
    merged = {}
    for name, model in shared.items():
        equal = next((other for other in distinct if torch.equal(other, model)), None)
        if equal is None:
            distinct.append(model)
        merged[name] = model if equal is None else equal
    return merged


def _plan_client(
    methods: Sequence[Method], received: Mapping[str, Tensor], state: FederationState, client: int,
    settings: TrainSettings, initial: Tensor | None,
) -> dict[str, Plan]:  # fmt: skip
    """The client's plan for every method."""
    plans = {}
    for m in methods:
        w = received[m.name]
        last = state.client_states.get((m.name, client)) if m.personal else None
        last = None if last is None else last.to(w.device)
        plans[m.name] = plan(m, w, last, settings, initial=initial)
    return plans


def _train(
    methods: Sequence[Method], plans: Mapping[int, Mapping[str, Plan]], executor: Executor, number: int
) -> tuple[Models, Models]:
    """The trained shared and personal models; jobs that several methods have in common are trained once."""
    jobs, positions = {}, {}  # by client: its distinct jobs, and for every planned job its position among them
    for client, by_method in plans.items():
        jobs[client], positions[client] = distinct_jobs([job for p in by_method.values() for job in p.jobs])
    updates: Models = {m.name: {} for m in methods}
    personal: Models = {m.name: {} for m in methods}
    for client, trained in executor.train(number, jobs):
        results = iter(trained[i] for i in positions[client])
        for m in methods:
            updates[m.name][client] = next(results)
            if m.personal:
                personal[m.name][client] = next(results)
    return updates, personal


def _check_finite(
    number: int, methods: Sequence[Method], received: Mapping[str, Tensor], updates: Models, personal: Models
) -> None:
    """Raise `Diverged` if any model is not finite; the message is about the first."""
    reasons = {m.name: invalid_reasons(updates[m.name], received[m.name]) for m in methods}
    for m in methods:
        reasons[m.name] |= invalid_reasons(personal[m.name], received[m.name])
    diverged = [name for name, by_client in reasons.items() if by_client]
    if diverged:
        client, reason = next(iter(reasons[diverged[0]].items()))
        others = f" (and so did {', '.join(map(repr, diverged[1:]))})" if diverged[1:] else ""
        raise Diverged(
            f"method {diverged[0]!r} diverged in round {number} on client {client}{others}: its model {reason}; "
            "lower lr (train.lr in a spec) or the tilts",
            methods=diverged,
        )


def _store_personal(state: FederationState, personal: Models) -> None:
    for name, models in personal.items():
        for client, model in sorted(models.items()):
            # a copy: a trained model may be a view into a stack of all models, which would stay in memory
            state.client_states.put((name, client), state.round, model.clone())
