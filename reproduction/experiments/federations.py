"""All methods and baselines on real-world federations; a method has its best setting on validation data."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.data import Dataset, Federation, Outliers
from fedtilt.data.groups import GroupColumn
from fedtilt.data.published.catalog import CATALOG
from fedtilt.engine.prepare import PreparedRun
from fedtilt.errors import InputWarning
from fedtilt.evaluation.metrics import compute_metrics
from fedtilt.evaluation.predictions import Predictions, predict, predictions_of
from fedtilt.runs.baselines import constant_outputs, pooled_outputs
from fedtilt.simulation import Round
from reproduction.experiment import Case, Experiment, OnProgress, Options
from reproduction.experiments.leaderboard import BASELINES, chapter
from reproduction.prepared import read_table
from reproduction.results import round_floats
from reproduction.submitted import submissions
from reproduction.training import Setting, evaluated, train_grid

__all__ = ["cases", "chapter", "measure"]
_BINS = 10  # of the calibration error


def trials(settings: Mapping[str, Any], condition: str, model: str) -> dict[str, dict[str, Setting]]:
    """Method → name of a trial → its setting, of the methods that fit the condition and the model."""
    skipped = [*settings["conditions"][condition].get("without", []), *settings["models"][model].get("without", [])]
    return {
        method: {f"{method} {number}": setting for number, setting in enumerate(of_method, start=1)}
        for method, of_method in settings["methods"].items()
        if method not in skipped
    }


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per condition, seed, table and model, and one for its baselines; the most useful ones are first.

    Submitted methods follow, each in cases of its own.
    """
    settings = experiment.settings
    result, submitted = [], []
    for (condition, given), seed in product(settings["conditions"].items(), range(options.seeds or settings["seeds"])):
        for data, model in product(settings["data"], [*given["models"], BASELINES]):
            federation = {
                "data": data, "split": settings["split"], "clients": settings["clients"],
                "outliers": given.get("outliers", "none"), "seed": seed,
            }  # fmt: skip
            words = [data, condition, model]
            if model == BASELINES:
                if "attack" not in given:  # they train on rows, and the attack is on updates
                    result.append(_case(words, seed, federation))
                continue
            of_methods = trials(settings, condition, model)
            result.append(_case(words, seed, federation | _training(settings, data, model, given, of_methods)))
            for method in submissions():
                own = {method.title: {f"{method.title} {n}": s for n, s in enumerate(method.settings, start=1)}}
                training = _training(settings, data, model, given, own) | {"code": method.code}
                submitted.append(_case([*words, method.name], seed, federation | training))
    return result + submitted


def _case(words: Sequence[str], seed: int, settings: dict[str, Any]) -> Case:
    name, what = f"{'-'.join(words)}-seed-{seed}", f"{', '.join(words)}, seed {seed}"
    return Case(name=name, what=what, settings=settings, needs=settings["data"])


def _training(
    settings: Mapping[str, Any], data: str, model: str, given: Mapping[str, Any],
    of_methods: Mapping[str, Mapping[str, Setting]],
) -> dict[str, Any]:  # fmt: skip
    """The part of a case's settings that its baselines do not need."""
    sites = CATALOG[data].sites
    assert sites is not None
    train = {key: value for key, value in settings["train"].items() if key != "selected"}
    of_model = {key: value for key, value in settings["models"][model].items() if key != "without"}
    share = min(1.0, round(settings["train"]["selected"] / sites.clients, 3))
    attack = {"attack": {**given["attack"], "share": 0.5 / sites.clients}} if "attack" in given else {}
    return {
        "train": {**train, "participation": share}, **of_model, **attack,
        "methods": {name: setting for of_method in of_methods.values() for name, setting in of_method.items()},
        "trials": {method: list(names) for method, names in of_methods.items()},
    }  # fmt: skip


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train all trials of a case together, or fit its baselines."""
    settings = case.settings
    dataset = read_table(settings["data"], settings["seed"], options.data_dir, settings["split"])
    groups, plain = dataset.groups, replace(dataset, group_train=None, group_test=None, group_names=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # about small clients, of which these tables have many
        federation = _federation(plain, settings)
        if "methods" not in settings:
            return round_floats(_report(federation, groups, _baselines(federation, settings["seed"])))
        return _train(federation, groups, settings, options, on_progress)


def _federation(dataset: Dataset, settings: Mapping[str, Any]) -> Federation:
    outliers = settings["outliers"]
    return Federation.build(
        dataset, **settings["clients"], seed=settings["seed"],
        outliers=outliers if isinstance(outliers, str) else Outliers(**outliers),
    )  # fmt: skip


def _train(
    federation: Federation, groups: Mapping[str, GroupColumn], settings: Mapping[str, Any], options: Options,
    on_progress: OnProgress,
) -> dict[str, Any]:  # fmt: skip
    """The chosen trial of every method, on test data."""

    def details(prepared: PreparedRun, r: Round, found: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {
            method: max(names, key=lambda name: found[name]["validation"].evaluated.accuracy)
            for method, of_method in settings["trials"].items()
            if (names := [name for name in of_method if name in found])
        }
        of_trial = {m.name: m for m in prepared.methods}
        outputs = predict(prepared, [of_trial[name] for name in chosen.values()], r.state)
        by_method = {method: outputs[name] for method, name in chosen.items()}
        return {"chosen": chosen, **_report(prepared.federation, groups, by_method)}  # attackers have no test data

    result = train_grid(settings, options, on_progress, curves=False, federation=federation, details=details)
    validation = {name: evaluated(found, "validation")["accuracy"] for name, found in result["methods"].items()}
    return round_floats({**result["details"], "validation": validation, "diverged": result["diverged"]})


def _report(
    federation: Federation, groups: Mapping[str, GroupColumn], found: Mapping[str, Predictions]
) -> dict[str, Any]:
    """Of every method: metrics over clients, the correct predictions of each client, group gaps, calibration."""
    rows = torch.cat(list(federation.test_index))
    of_groups = {name: column.test[rows] for name, column in groups.items()}
    report, total = {}, torch.zeros(0)
    for method, predictions in found.items():
        correct, total = predictions.counts()
        summary = compute_metrics(correct, total).by_name()
        report[method] = {
            **{key: summary[key] for key in ("accuracy", "worst", "client_fairness")},
            "correct": correct.sum(1).tolist(),
            "gaps": {name: _gap(predictions, codes) for name, codes in of_groups.items()},
            "calibration": _calibration_error(predictions),
        }
    return {"methods": report, "samples": total.sum(1).tolist()}


def _gap(predictions: Predictions, groups: Tensor) -> float:
    """The difference of accuracy, in points, between the best and the worst group with 30 test samples or more."""
    right = (predictions.probabilities.argmax(1) == predictions.labels).double()
    shares = [100 * float(right[groups == g].mean()) for g in groups.unique() if int((groups == g).sum()) >= 30]
    return max(shares) - min(shares) if len(shares) > 1 else 0.0


def _calibration_error(predictions: Predictions) -> float:
    """The expected calibration error of the predicted class, in points, over ten bins of equal width."""
    confidence, predicted = predictions.probabilities.double().max(1)
    right = (predicted == predictions.labels).double()
    cell = (confidence * _BINS).long().clamp_max(_BINS - 1)
    sums = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, cell, right - confidence)
    return 100 * float(sums.abs().sum()) / len(right)


def _baselines(federation: Federation, seed: int) -> dict[str, Predictions]:
    """The majority class, pooled regressions with and without the client as a column, and a mixed-effects model."""
    x, y, client = _rows(federation, seed)
    x_test, _, client_test = federation.evaluation("test")
    scaled = federation.model_input(x_test)
    assert isinstance(scaled, Tensor)  # the columns of a table
    test = scaled.double().numpy()
    pooled = pooled_outputs(federation, seed)
    outputs = {
        "majority class": constant_outputs(federation, seed)["majority"],
        "pooled logistic": _logistic(x, y, test),
        "pooled logistic, client a column": pooled["pooled logistic"],
        "pooled boosting, client a column": pooled["pooled boosting"],
        "mixed-effects logistic": _mixed_effects(x, y, client, test, client_test.numpy(), federation.clients),
    }
    return predictions_of(federation, outputs)


def _rows(federation: Federation, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The training rows of all clients, their labels and clients."""
    train = [federation.train(client, seed=seed, round=1) for client in range(federation.clients)]
    client = np.repeat(np.arange(federation.clients), [len(y) for _, y in train])
    x = torch.cat([x for x, _ in train])  # type: ignore[misc]
    return x.double().numpy(), torch.cat([y for _, y in train]).numpy(), client


def _logistic(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> Tensor:
    from sklearn.linear_model import LogisticRegression

    return torch.from_numpy(LogisticRegression(max_iter=1000).fit(x, y).predict_proba(test)).float()


def _mixed_effects(
    x: np.ndarray, y: np.ndarray, client: np.ndarray, test: np.ndarray, client_test: np.ndarray, clients: int
) -> Tensor:
    """A logistic regression with a random intercept per client, by statsmodels' variational posterior.

    Not by the posterior mode: the mode of the variance of the intercepts is 0, whatever the data.
    """
    from scipy.sparse import csr_matrix
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    def with_constant(rows: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(rows)), rows])

    random = csr_matrix((np.ones(len(y)), (np.arange(len(y)), client)), shape=(len(y), clients))
    model = BinomialBayesMixedGLM(y, with_constant(x), random, np.zeros(clients, dtype=int))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not quite converged is as good a baseline
        fitted = model.fit_vb(mean=np.zeros(1 + x.shape[1] + 1 + clients), sd=np.full(2 + x.shape[1] + clients, 0.5))
    logit = with_constant(test) @ fitted.fe_mean + fitted.vc_mean[client_test]
    positive = torch.from_numpy(1 / (1 + np.exp(-logit))).float()
    return torch.stack([1 - positive, positive], 1)
