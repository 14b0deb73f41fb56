"""What the last models of a run predict on the test data: stored in the run folder, or computed when asked for."""

from collections.abc import Callable
from functools import partial

from fedtilt.engine.client_states import FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.evaluation.predictions import Predictions, predict
from fedtilt.methods import Method
from fedtilt.storage.in_memory_run import InMemoryRun
from fedtilt.storage.predictions import has_predictions, is_small, read_prediction, write_predictions
from fedtilt.storage.run_folder import RunFolder


def store_predictions(prepared: PreparedRun, recorder: RunFolder | InMemoryRun, state: FederationState) -> None:
    """Write the predictions of all methods into the run folder, unless they are there or too large."""
    samples = sum(map(len, prepared.federation.test_index))
    if not isinstance(recorder, RunFolder) or not is_small(len(prepared.methods), samples, prepared.federation.outputs):
        return
    if not has_predictions(recorder.folder, state.round):
        write_predictions(recorder.folder, state.round, predict(prepared, prepared.methods, state))


def predictions_of(
    method: Method, prepared: PreparedRun, recorder: RunFolder | InMemoryRun, state: FederationState
) -> Callable[[], Predictions]:
    """A function that returns the predictions of a method."""
    if isinstance(recorder, RunFolder):  # not from the federation: the results of many seeds would keep their data
        return partial(read_prediction, recorder.folder, state.round, method.name)
    server = {method.name: {name: tensor.cpu() for name, tensor in state.server[method.name].items()}}
    return partial(_predict, method, prepared, FederationState(state.round, {**server}, state.client_states))


def _predict(method: Method, prepared: PreparedRun, state: FederationState) -> Predictions:
    return predict(prepared, [method], state)[method.name]
