"""What a run is compared with: computed once at its end, and stored like an evaluated round, in seed-N/baselines/."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch

from fedtilt.engine.client_states import ClientStates
from fedtilt.engine.prepare import PreparedRun, backend_for, example_jobs
from fedtilt.evaluation.baselines import constant_outputs, pooled_outputs, pooled_problem
from fedtilt.evaluation.evaluator import group_names
from fedtilt.evaluation.method_results import Baselines, EvaluatedResult
from fedtilt.evaluation.metrics import Counts, GroupCounts, counts_of_chance
from fedtilt.evaluation.predictions import Predictions, predict, predictions_of
from fedtilt.evaluation.round_metrics import metrics_by_method
from fedtilt.methods import Method, local
from fedtilt.methods.personal import Personal
from fedtilt.runs.checkpointing import MEMORY_LIMIT
from fedtilt.simulation import simulate_prepared
from fedtilt.storage.evaluations import EvaluationHistory, Evaluations
from fedtilt.storage.predictions import is_small, read_prediction, write_predictions
from fedtilt.storage.run_folder import Notice, Recorder, RunFolder, baselines_folder


def baselines_of(prepared: PreparedRun, recorder: Recorder, round: int, notice: Notice) -> Baselines:
    """The baselines of a run after its last round, computed unless its folder has them."""
    folder = baselines_folder(recorder.folder) if isinstance(recorder, RunFolder) else None
    if folder is None:
        evaluations, found = EvaluationHistory(), _compute(prepared, round, notice)
        _record(prepared, evaluations, round, found)
        return _results(prepared, evaluations, round, {name: partial(_identity, p) for name, p in found.items()})
    stored = Evaluations(folder)
    lines = stored.read_lines()
    names = list(lines.rounds.get(round, {}))
    if lines.damaged or not names or round in stored.problems(lines, names):
        stored.restore(0, [], lambda _: False, notice)  # of fewer rounds, or damaged
        found = _compute(prepared, round, notice)
        _record(prepared, stored, round, found)
        samples = sum(map(len, prepared.federation.test_index))
        if is_small(len(found), samples, prepared.federation.outputs):
            write_predictions(folder, round, found)
    else:
        stored.restore(round, names, lambda _: True, notice)
    read = {name: partial(read_prediction, folder, round, name) for name in stored.history}
    return _results(prepared, stored, round, read)


def _identity(predictions: Predictions) -> Predictions:
    return predictions


def _compute(prepared: PreparedRun, round: int, notice: Notice) -> dict[str, Predictions]:
    federation, seed = prepared.federation, prepared.settings.seed
    outputs = constant_outputs(federation, seed)
    problem = pooled_problem(federation)
    if problem:
        notice(f"no pooled baselines: {problem}")
    found = predictions_of(federation, outputs | ({} if problem else pooled_outputs(federation, seed)))
    return found if any(map(_is_local, prepared.methods)) else _train_alone(prepared, round, notice) | found


def _is_local(method: Method) -> bool:
    """Whether the clients of a method train alone."""
    personal = method.personal
    return isinstance(personal, Personal) and personal.mu == 0 and personal.start == "initial"


def _train_alone(prepared: PreparedRun, round: int, notice: Notice) -> dict[str, Predictions]:
    """Every client alone: from the initial model, with the settings of the run and as many steps as it has on average.

    All train in every round, in as many rounds as a client is selected on average until `round`, the last of the run.
    Of a run that ends early, the learning rates of the schedule are those until then.
    """
    settings, method = prepared.settings, local()
    rounds, end = (max(1, int(r * settings.participation + 0.5)) for r in (settings.rounds, round))
    schedule = settings.schedule.with_settings(warmup_rounds=min(settings.schedule.warmup_rounds, rounds - 1))
    alone = replace(
        settings, rounds=rounds, eval_every=rounds, participation=1.0, schedule=schedule, privacy=None, attack=None,
        audit=False, screen=None, server_optimizer=None, stop=None,
    )  # fmt: skip
    federation = prepared.federation
    jobs = example_jobs([method], prepared.net, prepared.parts, alone, federation)
    backend = backend_for(jobs, prepared.net, alone, federation, prepared.device)
    trained = prepared._replace(methods=[method], settings=alone, backend=backend, mechanism=None)
    simulation = simulate_prepared(trained, client_states=ClientStates(None, MEMORY_LIMIT), notice=notice)
    with closing(simulation):
        state = next(last.state for last in simulation if last.number == end)
    return predict(trained, [method], state)


def _record(prepared: PreparedRun, evaluations: EvaluationHistory, round: int, found: dict[str, Predictions]) -> None:
    """Record the sums and metrics of the baselines as those of methods without personal models."""
    federation, groups = prepared.federation, group_names(prepared.federation)
    counts = {}
    for name, predictions in found.items():
        (sums, total), *others = [predictions.counts(group) for group in groups]
        never_selected = torch.zeros(len(total), dtype=torch.bool)
        of_groups = tuple(GroupCounts(*other) for other in others)
        counts[name] = Counts(sums, None, never_selected, of_groups)
        if federation.fixed_shares():
            chance = counts_of_chance(counts[name].by_grouping(total, groups), fixed_shares=True)
            counts[name] = counts[name]._replace(chance=(chance, chance))
    summaries = metrics_by_method(counts, total, federation.has_outliers, None, groups)
    evaluations.record(round, summaries, counts, total)


def _results(
    prepared: PreparedRun,
    evaluations: EvaluationHistory,
    round: int,
    predictions: Mapping[str, Callable[[], Predictions]],
) -> Baselines:
    groups = group_names(prepared.federation)
    counts, total = evaluations.counts(round)
    return {
        name: EvaluatedResult(
            name=name,
            history=history,
            client_names=prepared.federation.client_names,
            fixed_shares=prepared.federation.fixed_shares(),
            group_names=groups,
            group_counts=counts[name].by_grouping(total, groups),
            _predict=predictions[name],
        )
        for name, history in evaluations.history.items()
    }
