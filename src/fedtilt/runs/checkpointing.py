"""The loop that trains rounds and writes checkpoints: of a run, of the stages of a search, and of reproductions."""

import contextlib
import time
from collections.abc import Callable, Mapping

from fedtilt.cluster.remote_tensor import LostTensorError
from fedtilt.engine.client_states import FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.simulation import Round, simulate_prepared
from fedtilt.storage.releases import Releases
from fedtilt.storage.run_folder import Notice, Recorder

CHECKPOINT_SECONDS = 10.0  # the least time between two checkpoints
MEMORY_LIMIT = 2 * 2**30  # bytes of client states in memory, beyond which they are stored in files

Summaries = Mapping[str, RoundMetrics]  # method → metrics


def train_rounds(
    prepared: PreparedRun,
    recorder: Recorder,
    state: FederationState | None,
    *,
    on_round: Callable[[Round, Summaries | None], bool | None],
    notice: Notice,
    record: Callable[[Round], Summaries | None] = lambda _: None,
    kept_round: Callable[[], int | None] = lambda: None,
    until: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    releases: Releases | None = None,
) -> Round | None:
    """Train from a state to the end of a round, by default the last, and return it; None if nothing was left to train.

    `record` is called before the checkpoint of a round, and `on_round` after it, with what `record` returned. If it
    returns True, the round is the last; if it raises, the round has a checkpoint. That of `kept_round` is kept.
    """
    last = prepared.settings.rounds if until is None else until
    saved_at, saved_round = time.monotonic(), 0
    rounds = simulate_prepared(
        prepared, state=state, client_states=recorder.client_states, notice=notice, releases=releases
    )
    with contextlib.closing(rounds):
        for r in rounds:
            summaries = record(r)
            kept = [] if (best := kept_round()) is None else [best]
            if r.number in (last, best) or time.monotonic() - saved_at >= checkpoint_seconds:
                with contextlib.suppress(LostTensorError):  # the next round goes back to an earlier state
                    recorder.checkpoint(r.state, keep=kept)
                    saved_at, saved_round = time.monotonic(), r.number
            is_last = r.number == last
            try:
                is_last = bool(on_round(r, summaries)) or is_last
            except BaseException:
                if saved_round < r.number:
                    recorder.checkpoint(r.state, keep=kept)
                raise
            if is_last:
                if saved_round < r.number:
                    recorder.checkpoint(r.state, keep=kept)
                return r
    return None
