"""Simulate a federation on one machine, round by round: every method on the same clients, batches and outliers.

The loop of a round: select clients, plan their jobs, train, update the server, evaluate. All inputs are checked before
anything is trained or written (`fedtilt.engine.prepare`). Jobs are trained by an executor, in this process (on a GPU,
or without workers) or in one worker process per core, with one of the `BACKENDS` of `fedtilt.training`.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from fedtilt.attacks.attack import AttackedFederation
from fedtilt.auditing.collect import Collector
from fedtilt.cluster.remote_tensor import LostTensorError
from fedtilt.data import Federation
from fedtilt.data.data_warnings import warn
from fedtilt.engine.client_states import ClientStates, FederationState, RestartPoint
from fedtilt.engine.prepare import PreparedRun, check_effects, make_executor, prepare
from fedtilt.engine.server import ServerUpdate, server_update
from fedtilt.engine.settings import TrainSettings, given_settings, takes_train_settings, train_settings
from fedtilt.engine.state import check_server, initial_server
from fedtilt.engine.updates import check_finite
from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.metrics import compute_metrics
from fedtilt.evaluation.stop_check import StopCheck
from fedtilt.executors.in_process import Executor, one_thread
from fedtilt.methods import Method, check_rates_used
from fedtilt.models import ModelSource
from fedtilt.simulation.client_training import (
    merge_equal,
    plan_clients,
    received_updates,
    store_states,
    train_clients,
    train_on_root_sets,
)
from fedtilt.simulation.round import Round
from fedtilt.storage.releases import Releases
from fedtilt.training.precision import fp32_deterministic


@takes_train_settings
def simulate(
    methods: Iterable[Method],
    federation: Federation,
    model: ModelSource,
    *,
    state: FederationState | None = None,
    client_states: ClientStates | None = None,
    settings: TrainSettings | None = None,
    **keywords: Any,
) -> Iterator[Round]:
    """Train every method on one federation, and yield after every round; the defaults are the setting of the paper.

    All methods use the same clients, batches and outliers. For a progress bar or an early stop, write a plain loop.

    Args:
        methods: the methods to compare, with unique names
        federation: the clients and their data
        model: an `nn.Module`, or a function of `input_shape` and `classes` that returns one
        state: continue from this state
        client_states: where personal models are stored; in memory by default
        settings: training settings as an object, such as `ft.TrainSettings(rounds=5)`; keywords beside it override it
        **keywords: the training settings:
    """
    prepared = prepare(methods, federation, model, train_settings(keywords, settings))
    check_rates_used(prepared.methods, given_settings(keywords, settings))
    check_effects(prepared)
    if prepared.settings.stop is not None and prepared.settings.stop.restore_best:
        raise InputError("restore_best = True of stop needs ft.run: ft.simulate yields rounds, and takes none back")
    return _until_stop(simulate_prepared(prepared, state=state, client_states=client_states), prepared)


def _until_stop(rounds: Generator[Round, None, None], prepared: PreparedRun) -> Iterator[Round]:
    """The rounds, to the one with which the run ends early."""
    check = StopCheck(prepared.settings.stop)
    with closing(rounds):  # from Python 3.12 on, it would outlive a closed `_until_stop`, with its workers
        for round in rounds:
            yield round
            if round.validation is not None:
                check.update(round.number, {m.name: round.metrics(m.name, validation=True) for m in prepared.methods})
            if check.is_over:
                return


def simulate_prepared(
    prepared: PreparedRun,
    *,
    state: FederationState | None = None,
    client_states: ClientStates | None = None,
    notice: Callable[[str], None] | None = None,
    releases: Releases | None = None,  # counts models with secret noise; default: from those of the state on
) -> Generator[Round, None, None]:
    """`simulate` with checked inputs; `notice` is called with messages for the user, which else are warnings."""
    methods, device = prepared.methods, prepared.device
    initial = {m.name: initial_server(m, prepared.parts, prepared.federation.population, prepared.net) for m in methods}
    if state is None:
        state = FederationState(0, initial, ClientStates() if client_states is None else client_states)
    for m in methods:
        if m.name not in state.server:
            raise InputError(f"state has no method {m.name!r}; it has {', '.join(state.server)}")
        check_server(m, state.server[m.name], initial[m.name])
    state.server = {m.name: state.server[m.name].to(device) for m in methods}
    return _rounds(prepared, state, notice or (lambda text: warn([text])), releases or Releases(None, state.round))


def _rounds(
    prepared: PreparedRun, state: FederationState, notice: Callable[[str], None], releases: Releases
) -> Generator[Round, None, None]:  # fmt: skip
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
                    finished = _run_round(
                        prepared, state, executor, test, validation, triggered, collector, releases, again
                    )
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
    releases: Releases,
    again: bool,
) -> Round:
    """Train one round; one that is trained again, after a loss, is not evaluated again."""
    methods, federation, settings = prepared.methods, prepared.federation, prepared.settings
    started = time.perf_counter()
    number = state.round + 1

    # 1. select clients
    selected = settings.selected(number, federation.clients, federation.left_out)

    updated: dict[str, ServerUpdate] = {}
    mechanism, made = prepared.mechanism and prepared.mechanism.for_round(number), number
    if selected:
        updated, made = _update(prepared, state, executor, collector, releases, selected, number)
    # else all of them are left out, and the models stay as they are
    state.round = number

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
        privacy=mechanism.loss(made) if mechanism and evaluate else None,
        _net=prepared.net,
        _parts={m.name: prepared.parts.keeping(m.local_names) for m in methods},
        client_names=federation.client_names,
        _target=federation.target,
    )


def _update(
    prepared: PreparedRun, state: FederationState, executor: Executor, collector: Collector | None,
    releases: Releases, selected: list[int], number: int,
) -> tuple[dict[str, ServerUpdate], int]:  # fmt: skip
    """Train the selected clients and update the state; also returned: how many models with noise were made."""
    methods, federation, settings = prepared.methods, prepared.federation, prepared.settings

    # 2. plan their local jobs
    server = merge_equal(state.server)
    plans = plan_clients(prepared, server, state.client_states, selected, number)

    # 3. train
    updates, kept, audited = train_clients(prepared, plans, executor, number, state.client_states, collector)

    # 4. server update; the state changes only after all models have been checked
    check_finite(number, methods, server, updates, kept)
    mechanism = prepared.mechanism and prepared.mechanism.for_round(number)
    # noise of the seed is the same in a round that is repeated, so it is one model
    made = releases.add() if mechanism and mechanism.seed is None else number
    roots = train_on_root_sets(prepared, server, number)
    received = received_updates(prepared, server, updates, roots, number)
    updated = {
        m.name: server_update(
            m,
            server[m.name],
            received[m.name],
            settings,
            mechanism,
            round=number,
            root=roots.get(m.name),
            clients=federation.clients,
            left_out=federation.left_out,
            are_valid=received[m.name] is updates[m.name],
        )
        for m in methods
    }
    state.server = {name: update.state for name, update in updated.items()}
    state.round = number
    store_states(state, kept, audited)
    return updated, made


def _attack_success(methods: Sequence[Method], state: FederationState, triggered: Evaluator) -> dict[str, float]:
    counts = triggered.all_counts(methods, state)
    return {name: compute_metrics(found.evaluated, triggered.total).accuracy for name, found in counts.items()}
