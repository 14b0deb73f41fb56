"""All methods and baselines on federations that exist; a method has its best setting on validation data."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt.data import Dataset, Federation, Outliers
from fedtilt.data.groups import GroupColumn
from fedtilt.data.published.catalog import CATALOG
from fedtilt.engine.prepare import PreparedRun
from fedtilt.errors import InputWarning
from fedtilt.evaluation.baselines import constant_outputs, pooled_outputs
from fedtilt.evaluation.metrics import compute_metrics
from fedtilt.evaluation.predictions import Predictions, predict, predictions_of
from fedtilt.simulation import Round
from reproduction.chapter import Chapter, Table
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from reproduction.prepared import read_table
from reproduction.results import round_floats
from reproduction.training import Setting, evaluated, train_grid

BASELINES = "baselines"
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
    """One case per condition, seed, table and model, and one for its baselines; the most useful ones are first."""
    settings, result = experiment.settings, []
    for (condition, given), seed in product(settings["conditions"].items(), range(options.seeds or settings["seeds"])):
        for data, model in product(settings["data"], [*given["models"], BASELINES]):
            if model == BASELINES and "attack" in given:
                continue  # they train on rows, and the attack is on updates
            federation = {
                "data": data, "clients": settings["clients"], "outliers": given.get("outliers", "none"), "seed": seed,
            }  # fmt: skip
            if model != BASELINES:
                federation |= _training(settings, data, model, given, trials(settings, condition, model))
            words = [data, condition, model]
            what = f"{', '.join(words)}, seed {seed}"
            result.append(Case(name=f"{'-'.join(words)}-seed-{seed}", what=what, settings=federation, needs=data))
    return result


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
    dataset = read_table(settings["data"], settings["seed"], options.data_dir)
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
        return {"chosen": chosen, **_report(federation, groups, by_method)}

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


# -- the chapter -------------------------------------------------------------------------------------------------------

COLUMNS = {"accuracy": 1, "worst": 1, "client_fairness": -1, "gap": -1, "calibration": -1}  # 1: more is better
_TITLES = {
    "accuracy": "accuracy", "worst": "worst 10 %", "client_fairness": "client fairness", "gap": "group gap",
    "calibration": "calibration error",
}  # fmt: skip
Values = dict[str, dict[str, float]]  # method → column → its mean over the seeds


def cell_values(results: Results, data: str, condition: str, model: str, seeds: Sequence[int]) -> Values:
    """What the methods and baselines have in one cell, for the seeds in which both are measured."""
    found: dict[str, dict[str, list[float]]] = {}
    for seed in seeds:
        for part in (model, BASELINES):
            result = results.get(f"{data}-{condition}-{part}-seed-{seed}", {"methods": {}})
            for method, values in result["methods"].items():
                row = {**values, "gap": max(values["gaps"].values(), default=0.0)}
                for column in COLUMNS:
                    found.setdefault(method, {}).setdefault(column, []).append(row[column])
    return {method: {column: fmean(of) for column, of in columns.items()} for method, columns in found.items()}


def mean_ranks(cells: Sequence[Values], column: str = "accuracy") -> dict[str, float]:
    """Method → its mean rank over the cells, of the methods that all cells have; equal values share a rank."""
    from scipy.stats import rankdata  # slow to import

    methods = [method for method in cells[0] if all(method in cell for cell in cells)]
    ranks = np.mean([rankdata([-COLUMNS[column] * cell[m][column] for m in methods]) for cell in cells], axis=0)
    return dict(zip(methods, map(float, ranks), strict=True))


def critical_difference(methods: int, cells: int) -> float:
    """Two methods whose mean ranks differ by less are not significantly different, by Nemenyi's test at 5 %.

    (J. Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006.)

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range  # slow to import

    quantile = studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * cells)))


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """The ranking under every condition and model, and the accuracy on every table."""
    settings, parts = experiment.settings, list[Table]()
    seeds = range(settings["seeds"])
    for condition, given in settings["conditions"].items():
        for model in given["models"]:
            cells = {
                data: values for data in settings["data"]
                if (values := cell_values(results, data, condition, model, seeds))
            }  # fmt: skip
            if cells:
                parts += [_rank_table(cells, condition, model), _accuracy_table(cells, condition, model)]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts)


def _rank_table(cells: Mapping[str, Values], condition: str, model: str) -> Table:
    tables = list(cells.values())
    ranks = {column: mean_ranks(tables, column) for column in COLUMNS}
    order = sorted(ranks["accuracy"], key=lambda method: ranks["accuracy"][method])
    difference = critical_difference(len(order), len(tables))
    return Table(
        caption=f"Mean ranks, {condition}, {model}",
        columns=["method", *_TITLES.values()],
        rows=[[method, *(f"{ranks[column][method]:.1f}" for column in COLUMNS)] for method in order],
        notes=f"Over {len(tables)} federations, 1 is best. Mean ranks that differ by less than {difference:.1f} are "
        "not significantly different (Nemenyi's test at 5 %).",
    )


def _accuracy_table(cells: Mapping[str, Values], condition: str, model: str) -> Table:
    ranks = mean_ranks(list(cells.values()))
    rows: list[list[str | float]] = [
        [method, *(f"{values[method]['accuracy']:.1f} ({values[method]['worst']:.0f})" for values in cells.values())]
        for method in sorted(ranks, key=lambda method: ranks[method])
    ]
    return Table(
        caption=f"Accuracy and, in brackets, that of the worst 10 % of the clients, {condition}, {model}",
        columns=["method", *cells],
        rows=rows,
        notes="In %, mean over the clients, then over the seeds.",
        folded=True,
    )
