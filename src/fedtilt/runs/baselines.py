"""What a run is compared with: computed once at its end, and stored like an evaluated round, in seed-N/baselines/.

Without federation: one prediction for everybody, every client alone, and models of scikit-learn on all clients' rows. A
federation in which rows may not be pooled cannot have the pooled models; in a simulation they say what is lost.
scikit-learn is slow to import, so functions import it themselves.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.data import Federation
from fedtilt.data.inputs import Inputs, concatenate
from fedtilt.data.targets import IGNORED, TABLE_TASKS, NumericTarget, Target, TokenTarget
from fedtilt.engine.client_states import ClientStates
from fedtilt.engine.prepare import PreparedRun, backend_for, example_jobs
from fedtilt.evaluation.evaluator import group_names
from fedtilt.evaluation.method_results import Baselines, EvaluatedResult
from fedtilt.evaluation.metrics import Counts, GroupCounts, counts_of_chance
from fedtilt.evaluation.predictions import Predictions, predict, predictions_of
from fedtilt.evaluation.round_metrics import metrics_by_method
from fedtilt.evaluation.scores import no_sums, sample_sums
from fedtilt.evaluation.weighted_predictions import Array
from fedtilt.methods import Method, local
from fedtilt.methods.personal import Personal
from fedtilt.runs.checkpointing import MEMORY_LIMIT
from fedtilt.simulation import simulate_prepared
from fedtilt.storage.evaluations import EvaluationHistory, Evaluations
from fedtilt.storage.predictions import is_small, read_prediction, write_predictions
from fedtilt.storage.run_folder import Notice, Recorder, RunFolder, baselines_folder

MAX_WORK = 200_000_000  # samples · columns · outputs, beyond which pooled models are skipped
_MAX_CATEGORIES = 255  # of a column of HistGradientBoosting
_ITERATIONS = 1000  # of the logistic regression, at most
_ROWS = 128  # test samples whose outputs are in memory at a time


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


# -- the models --------------------------------------------------------------------------------------------------------


def constant_outputs(federation: Federation, seed: int) -> dict[str, Tensor]:
    """One prediction for every test sample: the majority class of all training samples, their mean, or frequencies.

    Tokens and labels have their frequency in the training data as their probability.
    """
    samples = sum(map(len, federation.test_index))
    y = torch.cat([federation.train(client, seed=seed, round=1)[1] for client in range(federation.clients)])
    target = federation.target
    if isinstance(target, NumericTarget):
        return {"mean": target.predictions(y.mean().reshape(1, 1)).expand(samples).clone()}
    if target is not None:
        parts = federation.evaluation("test")[1].split(_ROWS)
        found = [sample_sums(target, _frequency_logits(target, y, part), part) for part in parts]
        return {"frequencies": torch.cat([no_sums(target, 0), *found])}
    shares = y.bincount(minlength=federation.classes) / len(y)
    return {"majority": shares.float().expand(samples, -1).clone()}


def _frequency_logits(target: Target, y: Tensor, like: Tensor) -> Tensor:
    """The outputs of a model that knows the frequencies in y alone, for these targets; each is counted once more."""
    if isinstance(target, TokenTarget):
        counts = y[y != IGNORED].bincount(minlength=target.vocabulary) + 1
        return (counts / counts.sum()).log().expand(*like.shape, -1)
    return ((y.sum(0) + 1) / (len(y) + 2)).logit().expand_as(like)


def pooled_problem(federation: Federation) -> str:
    """Why there are no pooled models; empty: there are."""
    data = federation.dataset
    if data.task not in TABLE_TASKS:
        return "they predict a class or a number"
    if data.image or not isinstance(data.x_train, Tensor) or not data.x_train.is_floating_point():
        return "they take tables of numbers"
    columns = int(np.prod(data.x_train.shape[1:])) + federation.clients
    if federation.target is None and len(data.y_train.unique()) < 2:
        return "all training samples are of one class"
    work = len(data.y_train) * columns * federation.outputs
    if work > MAX_WORK:
        return f"{len(data.y_train):,} rows of {columns:,} columns, the clients among them, are too many"
    return ""


def pooled_outputs(federation: Federation, seed: int) -> dict[str, Tensor]:
    """What models on all clients' training rows predict on the test rows; the client is one of the columns.

    A logistic or linear regression, with a column per client, and gradient boosting, with the client as a category.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn needs it

    clients, is_class = federation.clients, federation.target is None
    train = [federation.train(client, seed=seed, round=1) for client in range(clients)]
    weights = [federation.train_weights(client) for client in range(clients)]
    x_test, _, test_client = federation.evaluation("test")
    x = [_columns(concatenate([x for x, _ in train])), _columns(federation.model_input(x_test))]  # training, test
    y = torch.cat([y for _, y in train]).numpy()
    client = [np.repeat(np.arange(clients), [len(y) for _, y in train]), test_client.numpy()]
    weight = None if weights[0] is None else torch.cat([w for w in weights if w is not None]).numpy()
    mean, deviation = x[0].mean(0), x[0].std(0)
    one_hot, scale = np.eye(clients), np.where(deviation > 0, deviation, 1.0)
    linear = LogisticRegression(max_iter=_ITERATIONS) if is_class else Ridge()
    boosting = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    category = [x[0].shape[1]] if clients <= _MAX_CATEGORIES else None
    scaled = [np.hstack([(rows - mean) / scale, one_hot[c]]) for rows, c in zip(x, client, strict=True)]
    numbered = [np.column_stack([rows, c]) for rows, c in zip(x, client, strict=True)]
    models: dict[str, tuple[Any, list[Array]]] = {
        f"pooled {'logistic' if is_class else 'linear'}": (linear, scaled),
        "pooled boosting": (boosting(categorical_features=category, random_state=seed % 2**32), numbered),
    }
    outputs = {}
    for name, (model, (train_rows, test_rows)) in models.items():
        # one thread: on small tables, several wait for each other more than they work
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a regression that has not quite converged is as good a baseline
            outputs[name] = _outputs(federation, model.fit(train_rows, y, sample_weight=weight), test_rows)
    return outputs


def _columns(x: Inputs) -> Array:
    assert isinstance(x, Tensor)  # see `pooled_problem`
    return x.flatten(1).double().numpy()


def _outputs(federation: Federation, model: Any, rows: Array) -> Tensor:
    """Probabilities of all classes, those without a training sample included, or numbers in their unit."""
    if isinstance(federation.target, NumericTarget):
        return federation.target.predictions(torch.from_numpy(model.predict(rows))[:, None])
    probabilities = torch.zeros(len(rows), federation.classes)
    probabilities[:, torch.from_numpy(model.classes_)] = torch.from_numpy(model.predict_proba(rows)).float()
    return probabilities
