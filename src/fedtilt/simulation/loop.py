"""Simulate a federation on one machine, round by round: every method on the same clients, batches and outliers.

All inputs are checked before anything is trained or written (`fedtilt.engine.prepare`). Jobs are trained by an
executor (`make_executor` says which), with one of the `BACKENDS` of `fedtilt.training`.
"""

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from fedtilt.cluster.remote_tensor import LostTensorError
from fedtilt.data import Federation
from fedtilt.data.data_warnings import warn
from fedtilt.engine.client_states import ClientStates, FederationState, Owner, StoredState
from fedtilt.engine.prepare import PreparedRun, check_effects, prepare
from fedtilt.engine.settings import TrainSettings, given_settings, takes_train_settings, train_settings
from fedtilt.engine.state import check_server, initial_server
from fedtilt.errors import InputError
from fedtilt.evaluation.round_metrics import StopCheck
from fedtilt.executors.in_process import one_thread
from fedtilt.methods import Method, check_rates_used
from fedtilt.models import ModelSource
from fedtilt.simulation.round import Round
from fedtilt.simulation.simulator import Simulator
from fedtilt.state import ServerState
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


_ROUNDS = 10  # between two restart points, where models stay on the nodes
_MAX_LOSSES = 3  # after one restart point


class RestartPoint:
    """The last state of a federation that this process and its files have in full.

    The rounds since then are trained again, bit-identical: all that is random depends on the numbers of rounds.
    """

    def __init__(self) -> None:
        self._round = 0
        self._server: dict[str, ServerState] = {}
        self._stored: dict[Owner, StoredState] | None = None  # None: no model was on a node
        self._losses = 0

    def save(self, state: FederationState, *, on_nodes: bool) -> None:
        """Make this state the restart point, if one is due; `on_nodes`: the next models stay on the nodes."""
        is_due = self._stored is None or state.round >= self._round + _ROUNDS or state.client_states.is_saved
        if on_nodes and not is_due:
            return
        self._stored = state.client_states.save_all() if on_nodes else None
        if state.round > self._round:
            self._losses = 0
        self._round, self._server = state.round, state.server

    def restore(self, state: FederationState) -> str:
        """Go back, and say so; raises `LostTensorError` if that has not helped before."""
        self._losses += 1
        if self._losses > _MAX_LOSSES:
            raise LostTensorError
        if self._stored is not None:
            state.client_states.restore(self._stored)
        state.round, state.server = self._round, self._server
        return f"a node died with models that were only there; the rounds after {self._round} are trained again"


def _rounds(
    prepared: PreparedRun, state: FederationState, notice: Callable[[str], None], releases: Releases
) -> Generator[Round, None, None]:  # fmt: skip
    rounds, device = prepared.settings.rounds, prepared.device
    prepared.net.to(device)
    if state.round >= rounds:  # nothing is left to train, and no worker to start
        return
    with fp32_deterministic(device):
        simulator = Simulator(prepared, state, notice, releases)
    # also for rounds that a program holds until its end, when modules are no more
    close = weakref.finalize(simulator, simulator.executor.close)
    restart, yielded = RestartPoint(), state.round
    try:
        while state.round < rounds:
            # one thread: on small tensors, several threads wait for each other more than they work
            with one_thread(device), fp32_deterministic(device):
                try:
                    restart.save(state, on_nodes=simulator.executor.on_nodes)
                    finished = simulator.run_round(evaluate=state.round >= yielded)
                    if state.round == rounds:
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
            close()
