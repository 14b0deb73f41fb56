"""A whole federation on one machine: every method on the same clients, batches and outliers, one round at a time.

    prepared    looks at everything before anything is done
    simulated   selects clients, plans their lanes, trains them, settles, evaluates; and again

Lanes are trained where `placement` puts them, in this process (`Here`: a GPU, or no workers) or on one worker a core
(`Crew`), by one of the `WAYS` of `descend`.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data import Federation
from fedtilt.errors import Diverged, InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.metrics import Counts, Metrics, measure
from fedtilt.evaluation.results import evaluated_counts, number_of
from fedtilt.methods import Method, check_methods
from fedtilt.models import ModelSource, flat, recipe, with_weights
from fedtilt.rounds.client_states import ClientStates, FederationState
from fedtilt.rounds.executors import (
    BatchSchedule,
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
from fedtilt.training import choose_backend, deduplicate
from fedtilt.training.precision import fp32_deterministic


@dataclass(frozen=True, kw_only=True)
class Round:
    """What happened in one round; `state` is the federation's own and moves on with the next one."""

    number: int
    selected: list[int]
    state: FederationState
    counts: Mapping[str, Counts] | None  # method → right answers, where the round was judged
    total: Tensor  # (N, K) test samples
    validation: Mapping[str, Counts] | None  # the same on validation data, where the federation sets some aside
    validation_total: Tensor | None  # (N, K) validation samples
    seconds: float
    _net: nn.Module
    _clients: tuple[str, ...]

    def metrics(self, method: str, *, validation: bool = False) -> Metrics:
        """Of the method's models in use, the personal ones where it has them; on test data, or on that set aside."""
        self._check(method)
        if self.counts is None:
            raise InputError(f"round {self.number} was not judged; eval_every = 1 judges every round")
        if not validation:
            return measure(evaluated_counts(self.counts[method]), self.total)
        if self.validation is None or self.validation_total is None:
            raise InputError("the federation sets no validation data aside; build it with validation = 0.1, say")
        return measure(evaluated_counts(self.validation[method]), self.validation_total)

    def model(self, method: str, client: int | str | None = None) -> nn.Module:
        """A copy of the method's shared model, or of a client's own as it is now; later rounds leave it alone."""
        self._check(method)
        own = None if client is None else self.state.client_states.get((method, number_of(client, self._clients)))
        return with_weights(self._net, self.state.shared[method] if own is None else own).cpu()

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
    """Train every method on one federation, and yield after every round; the defaults are the paper's setting.

    All methods see the same clients, batches and outliers. A progress bar or an early stop is a plain loop around it.

    Args:
        methods: the methods to compare, with unique names
        federation: the clients and their data
        model: an `nn.Module`, or a function of `input_shape` and `classes` that returns one
        state: continue from this state
        client_states: where personal models are kept; in memory by default
        **settings: the training settings:
    """
    work = prepare(methods, federation, model, train_settings(settings))
    return simulate_prepared(work, state=state, client_states=client_states)


class PreparedRun(NamedTuple):
    """A simulation whose parts are known to fit together, before anything is written or trained."""

    methods: list[Method]
    federation: Federation
    net: nn.Module  # the model that every method starts from
    settings: TrainSettings
    device: torch.device
    backend: str
    recipe: dict[str, Any] | None  # how to make the model again, where it is one of `models`


def prepare(
    methods: Iterable[Method], federation: Federation, model: ModelSource, settings: TrainSettings
) -> PreparedRun:
    """Look at everything that a simulation needs, and refuse what would fail later."""
    methods = check_methods(methods, settings.lr, settings.personal_rate)
    if torch.is_inference_mode_enabled():
        raise InputError("a run trains, which torch.inference_mode() rules out; start it outside of that")
    if not isinstance(federation, Federation):
        raise InputError(
            f"federation must be a Federation, such as ft.Federation.build(data), got {type(federation).__name__}"
        )
    device = pick_device(settings.device)
    net = initial_model(federation, model, settings.seed)
    backend = choose_backend(net, device.type, settings.backend, federation.clean_train(0)[0][:1], settings.precision)
    made = recipe(model, federation.input_shape, federation.classes)
    return PreparedRun(methods, federation, net, settings, device, backend, made)


def simulate_prepared(
    work: PreparedRun, *, state: FederationState | None = None, client_states: ClientStates | None = None
) -> Iterator[Round]:
    """`simulate`, once its parts are known to fit together."""
    if state is None:
        start = flat(work.net).to(work.device)
        state = FederationState(
            0, {m.name: start for m in work.methods}, ClientStates() if client_states is None else client_states
        )
    else:
        for m in work.methods:
            if m.name not in state.shared:
                raise InputError(f"state has no method {m.name!r}; it has {', '.join(state.shared)}")
        state.shared = {m.name: state.shared[m.name].to(work.device) for m in work.methods}
    return _rounds(work, state)


def _rounds(work: PreparedRun, state: FederationState) -> Iterator[Round]:
    methods, federation, net, settings, device, backend, _ = work
    net = net.to(device)
    samples = dict(enumerate(federation.train_sizes().tolist()))
    validated = any(map(len, federation.validation_index))
    with fp32_deterministic(device):
        test = Evaluator(federation, net, device)
        held_out = Evaluator(federation, net, device, "validation") if validated else None
        executor = _make_executor(federation, net, backend, settings, device, len(methods))
    try:
        while state.round < settings.rounds:
            begun = time.perf_counter()
            number = state.round + 1
            selected = settings.selected(number, federation.clients)
            evaluated = settings.evaluates(number)
            # on small tensors, threads that share cores with anything wait more than they work
            with one_thread(device), fp32_deterministic(device):
                _advance(methods, state, number, selected, executor, settings, samples)
                done = Round(
                    number=number,
                    selected=selected,
                    state=state,
                    counts=test.all_counts(methods, state) if evaluated else None,
                    total=test.total,
                    validation=held_out.all_counts(methods, state) if evaluated and held_out else None,
                    validation_total=held_out.total if held_out else None,
                    seconds=time.perf_counter() - begun,
                    _net=net,
                    _clients=federation.client_names,
                )
            yield done
    finally:
        executor.close()


def _make_executor(
    federation: Federation, net: nn.Module, backend: str, settings: TrainSettings, device: torch.device, methods: int
) -> Executor:
    batch_schedule = BatchSchedule(seed=settings.seed, epochs=settings.epochs, batch_size=settings.batch_size)
    workers = settings.workers
    if device.type != "cpu" or backend == "stacked":
        workers = 0
    elif workers is None:
        most = max(1, round_half_up(settings.participation * federation.clients))
        workers = min(cores(), most) if cores() > 1 and can_fork(backend) else 0
    elif workers and not can_fork(backend):
        raise InputError(
            f"workers = {workers} cannot be forked here (not Linux, a daemon, or autograd was used beside a GPU); "
            "leave it out or set it to 0"
        )
    if workers == 0:
        return InProcessExecutor(federation, net, backend, batch_schedule, device, settings.precision)
    return ForkedExecutor(federation, net, backend, batch_schedule, workers, jobs_per_client=2 * methods)


def _advance(
    methods: Sequence[Method], state: FederationState, number: int, selected: Sequence[int], executor: Executor,
    settings: TrainSettings, samples: Mapping[int, int],
) -> None:  # fmt: skip
    """One round: plan and descend on every selected client, settle every method; the state changes at the end."""
    received = _merged(state.shared)
    plans: dict[int, dict[str, Plan]] = {
        client: {
            m.name: plan(
                m, received[m.name], _last(state, m, client, received[m.name].device),
                lr=settings.lr, lr_personal=settings.personal_rate,
            )
            for m in methods
        }
        for client in selected
    }  # fmt: skip
    distinct, index_of = {}, {}
    for client, by_method in plans.items():
        distinct[client], index_of[client] = deduplicate([job for p in by_method.values() for job in p.jobs])

    updates: dict[str, dict[int, Tensor]] = {m.name: {} for m in methods}
    personal: dict[str, dict[int, Tensor]] = {m.name: {} for m in methods}
    for client, trained in executor.train(number, distinct):
        results = iter(trained[i] for i in index_of[client])
        for m in methods:
            updates[m.name][client] = next(results)
            if m.personal:
                personal[m.name][client] = next(results)

    flawed = {m.name: invalid_reasons(updates[m.name], received[m.name]) for m in methods}
    for m in methods:
        flawed[m.name] |= invalid_reasons(personal[m.name], received[m.name])
    _refuse_diverged(number, flawed)
    shared = {m.name: server_update(m, received[m.name], updates[m.name], samples).shared for m in methods}
    state.round, state.shared = number, shared
    for m in methods:
        for client, own in sorted(personal[m.name].items()):
            state.client_states.put((m.name, client), number, own.clone())  # a trained lane is a view into its stack


def _refuse_diverged(number: int, found: Mapping[str, Mapping[int, str]]) -> None:
    """Say which methods have a model that is not finite; the sentence is of the first."""
    diverged = [name for name, flawed in found.items() if flawed]
    if diverged:
        client, why = next(iter(found[diverged[0]].items()))
        others = f" (and so did {', '.join(map(repr, diverged[1:]))})" if diverged[1:] else ""
        raise Diverged(
            f"method {diverged[0]!r} diverged in round {number} on client {client}{others}: its model {why}; "
            "lower lr (train.lr in a spec) or the tilts",
            methods=diverged,
        )


def _last(state: FederationState, method: Method, client: int, device: torch.device) -> Tensor | None:
    own = state.client_states.get((method.name, client)) if method.personal else None
    return own if own is None else own.to(device)


def _merged(shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The shared models, equal ones as one tensor, so that their lanes are seen to be identical."""
    kept: list[Tensor] = []
    merged = {}
    for name, model in shared.items():
        twin = next((other for other in kept if torch.equal(other, model)), None)
        if twin is None:
            kept.append(model)
        merged[name] = model if twin is None else twin
    return merged
