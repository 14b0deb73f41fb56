"""The result of a run, from its recorder: metrics, models and predictions, which are read or computed when used."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.evaluation.evaluator import group_names
from fedtilt.evaluation.method_results import MethodResult
from fedtilt.evaluation.predictions import Predictions, choose_thresholds, predict
from fedtilt.evaluation.results import Result
from fedtilt.methods import Method
from fedtilt.runs.baselines import baselines_of
from fedtilt.runs.export import export_of
from fedtilt.runs.model_card import write_export
from fedtilt.runs.trained_run import Evaluation, TrainedRun, read_trained_run
from fedtilt.state import ServerState
from fedtilt.storage.predictions import has_predictions, is_small, read_prediction, write_predictions
from fedtilt.storage.run_folder import Notice, Recorder, RunFolder

_PredictionsByMethod = Mapping[str, Callable[[], Predictions]]


def run_result(
    prepared: PreparedRun, recorder: Recorder, state: FederationState, fingerprint: Mapping[str, Any], notice: Notice
) -> Result:
    """The result of a run that ends with this state; its predictions and thresholds are recorded."""
    _store_predictions(prepared, recorder, state)
    thresholds = choose_thresholds(prepared, prepared.methods, state)
    if thresholds and isinstance(recorder, RunFolder):
        recorder.record_thresholds(state.round, thresholds)
    predictions = {m.name: _predictions_of(m, prepared, recorder, state) for m in prepared.methods}
    trained = _trained_run(recorder, state, fingerprint, predictions, thresholds)
    evaluations, compared = recorder.evaluations, partial(baselines_of, prepared, recorder, state.round, notice)
    counts, total = evaluations.counts(state.round)
    net = copy.deepcopy(prepared.net).cpu()
    groups = group_names(prepared.federation)
    return Result(
        {
            m.name: MethodResult(
                name=m.name,
                method=m,
                threshold=thresholds.get(m.name),
                history=evaluations.history[m.name],
                validation=evaluations.validation[m.name].evaluated if m.name in evaluations.validation else None,
                client_names=prepared.federation.client_names,
                fixed_shares=prepared.federation.fixed_shares(),
                group_names=groups,
                group_counts=counts[m.name].by_grouping(total, groups),
                _net=net,
                _target=prepared.federation.target,
                _parts=prepared.parts.keeping(m.local_names),
                _server=state.server[m.name].map(torch.Tensor.cpu),
                _client_states=state.client_states,
                _predict=predictions[m.name],
            )
            for m in prepared.methods
        },
        prepared.federation,
        _plot,
        partial(_export, trained, net),
        compared() if prepared.settings.baselines else compared,
    )


def _store_predictions(prepared: PreparedRun, recorder: Recorder, state: FederationState) -> None:
    """Write the predictions of all methods into the run folder, unless they are there or too large."""
    samples = sum(map(len, prepared.federation.test_index))
    if not isinstance(recorder, RunFolder) or not is_small(len(prepared.methods), samples, prepared.federation.outputs):
        return
    if not has_predictions(recorder.folder, state.round):
        write_predictions(recorder.folder, state.round, predict(prepared, prepared.methods, state))


def _predictions_of(
    method: Method, prepared: PreparedRun, recorder: Recorder, state: FederationState
) -> Callable[[], Predictions]:
    """A function that returns the predictions of a method."""
    if isinstance(recorder, RunFolder):  # not from the federation: the results of many seeds would keep their data
        return partial(read_prediction, recorder.folder, state.round, method.name)
    server = {method.name: state.server[method.name].map(torch.Tensor.cpu)}
    last = FederationState(state.round, server, state.client_states)
    return _ComputedOnce(method, prepared, last)


class _ComputedOnce:
    """The predictions of a method, computed when they are first used."""

    def __init__(self, method: Method, prepared: PreparedRun, state: FederationState) -> None:
        self._inputs, self._found = (prepared, [method], state), dict[str, Predictions]()

    def __call__(self) -> Predictions:
        self._found = self._found or predict(*self._inputs)
        (found,) = self._found.values()
        return found


def _plot(result: Result) -> Any:
    from fedtilt.report.page import plot

    return plot(result)


def _export(
    trained: Callable[[], TrainedRun], net: torch.nn.Module, path: Path, method: str | None, client: int | str | None,
    force: bool,
) -> None:  # fmt: skip
    run = trained()
    write_export(run, export_of(run, method, client), path, net, force=force)


def _trained_run(
    recorder: Recorder, state: FederationState, fingerprint: Mapping[str, Any], predictions: _PredictionsByMethod,
    thresholds: Mapping[str, Threshold],
) -> Callable[[], TrainedRun]:  # fmt: skip
    """A function that returns the run for exports."""
    if isinstance(recorder, RunFolder):  # not from memory: the results of many seeds would keep their models
        return partial(read_trained_run, recorder.folder.parent, fingerprint["train"]["seed"])
    server = {name: found.map(torch.Tensor.cpu) for name, found in state.server.items()}
    # no lambda: a result can be copied to another process
    return partial(
        _run_in_memory, recorder, server, state.client_states, state.round, fingerprint, predictions, thresholds
    )


def _run_in_memory(
    recorder: Recorder, server: Mapping[str, ServerState], states: ClientStates, round: int,
    fingerprint: Mapping[str, Any], predictions: _PredictionsByMethod, thresholds: Mapping[str, Threshold],
) -> TrainedRun:  # fmt: skip
    def evaluation(method: str) -> Evaluation:
        counts, total = recorder.evaluations.counts(round)
        return Evaluation(recorder.evaluations.history[method][-1][1], counts[method], total)

    return TrainedRun(
        source="the run",
        fingerprint=fingerprint,
        description=recorder.description(),
        constants=recorder.constants(),
        server=server,
        client_state=lambda method, client: states.get((method, client)),
        round=round,
        evaluation=evaluation,
        scores=lambda method: predictions[method]().scores,
        thresholds=thresholds,
    )
