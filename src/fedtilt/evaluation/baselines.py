"""Baselines without federation: one prediction for everybody, and models of scikit-learn on all clients' rows.

A federation in which rows may not be pooled cannot have the pooled models; in a simulation they say what is lost.
scikit-learn is slow to import, so functions import it themselves.
"""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.data import Federation
from fedtilt.data.inputs import Inputs, concatenate
from fedtilt.data.targets import IGNORED, TABLE_TASKS, NumericTarget, Target, TokenTarget
from fedtilt.evaluation.scores import no_sums, sample_sums
from fedtilt.evaluation.weighted_predictions import Array

MAX_WORK = 200_000_000  # samples · columns · outputs, beyond which pooled models are skipped
_MAX_CATEGORIES = 255  # of a column of HistGradientBoosting
_ITERATIONS = 1000  # of the logistic regression, at most


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


_ROWS = 128  # test samples whose outputs are in memory at a time


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
