"""What the way of drawing test rows does to the comparison of methods: on coins, and on tables of real sites."""

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.errors import InputWarning
from fedtilt.evaluation.predictions import predictions_of
from fedtilt.runs.baselines import pooled_outputs
from reproduction.chapter import Chapter, Table
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results, by_seed
from reproduction.prepared import read_table
from reproduction.training import evaluated, train_grid

SPLITS = ("random", "proportional")
MAJORITY = "majority of the client"
CLIENT_COLUMN = "pooled logistic, client a column"


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per split, seed, and number of coins of a client or table."""
    settings = experiment.settings
    common = {key: settings[key] for key in ("model", "train", "methods")}
    found = [
        _case(f"coins-{rows}", split, seed, common | {"coins": {**settings["coins"], "rows": rows}})
        for seed, rows, split in product(
            range(options.seeds or settings["coin_seeds"]), settings["coins"]["rows"], SPLITS
        )
    ]
    return found + [
        _case(data, split, seed, common | {"data": data}, needs=data)
        for seed, data, split in product(range(options.seeds or settings["seeds"]), settings["data"], SPLITS)
    ]


def _case(what: str, split: str, seed: int, settings: dict[str, Any], needs: str | None = None) -> Case:
    return Case(
        name=f"{what}-{split}-seed-{seed}", what=f"{what}, {split} rows, seed {seed}",
        settings=settings | {"split": split, "seed": seed}, needs=needs, parts=("accuracy",),
    )  # fmt: skip


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """The accuracy of every method, the mean over clients."""
    settings = case.settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # about small clients, the subject of this experiment
        if "coins" in settings:
            federation = coins(**settings["coins"], split=settings["split"], seed=settings["seed"])
            others = {MAJORITY: majority_accuracy(federation)}
        else:
            data = read_table(settings["data"], settings["seed"], options.data_dir, settings["split"])
            federation = Federation.build(data, seed=settings["seed"])
            outputs = pooled_outputs(federation, settings["seed"])["pooled logistic"]
            correct, total = predictions_of(federation, {CLIENT_COLUMN: outputs})[CLIENT_COLUMN].counts()
            shares = correct.sum(1) / total.sum(1)
            others = {CLIENT_COLUMN: 100 * float(shares[total.sum(1) > 0].double().mean())}
        found = train_grid(settings, options, on_progress, curves=False, federation=federation)
    accuracy = {name: evaluated(values)["accuracy"] for name, values in found["methods"].items()}
    return {"accuracy": {**accuracy, **{name: round(value, 4) for name, value in others.items()}}}


def coins(clients: int, columns: int, rows: int, split: str, seed: int) -> Federation:
    """Clients whose labels are fair coins, and whose columns say nothing about them."""
    rng = seeds.generator(seeds.key(seed, "coins"))
    data = [(rng.normal(size=(rows, columns)).astype(np.float32), rng.integers(0, 2, rows)) for _ in range(clients)]
    return Federation.from_clients(data, name="coins", class_names=["heads", "tails"], split=split, seed=seed)


def majority_accuracy(federation: Federation) -> float:
    """The accuracy of predicting the more frequent class of each client's training rows, in percent."""
    train, test = federation.class_counts("train"), federation.class_counts("test")
    predicted = train.argmax(1)
    ties = train[:, 0] == train[:, 1]  # half of these test rows are right, whatever is predicted
    right = torch.where(ties, test.sum(1) / 2, test.gather(1, predicted[:, None])[:, 0].double())
    return 100 * float((right / test.sum(1)).mean())


# -- the report --------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Results, *_: tuple[Experiment, Results]) -> Chapter:
    """Accuracy on coins by rows and split, and the gain over FedAvg on tables under both."""
    parts = [
        part for part in (_coins_table(experiment, results), _gains_table(experiment, results)) if part is not None
    ]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts)


def _values(results: Results, what: str, split: str) -> list[Mapping[str, float]]:
    return [result["accuracy"] for result in by_seed(results, f"{what}-{split}").values()]


def _coins_table(experiment: Experiment, results: Results) -> Table | None:
    names = [MAJORITY, *experiment.settings["methods"]]
    rows: list[list[str | float]] = []
    for count, split in product(experiment.settings["coins"]["rows"], SPLITS):
        if found := _values(results, f"coins-{count}", split):
            rows.append([f"{count}", split, *(mean_and_error([of[name] for of in found]) for name in names)])
    if not rows:
        return None
    return Table(
        caption="Accuracy on coins, %; the truth is 50",
        columns=["rows of a client", "split", *names],
        rows=rows,
        notes="Mean over seeds, which draw new coins, ± its standard error. A quarter of the rows are test rows.",
    )


def _gains_table(experiment: Experiment, results: Results) -> Table | None:
    names = [CLIENT_COLUMN, *(name for name in experiment.settings["methods"] if name != "FedAvg")]
    gains: dict[tuple[str, str], dict[str, float]] = {}
    for data, split in product(experiment.settings["data"], SPLITS):
        if found := _values(results, data, split):
            gains[data, split] = {name: fmean(of[name] - of["FedAvg"] for of in found) for name in names}
    tables = [data for data in experiment.settings["data"] if all((data, split) in gains for split in SPLITS)]
    if not tables:
        return None
    rows: list[list[str | float]] = [
        [name, *(f"{gains[data, split][name]:+.1f}".replace("-", "−") for data in tables for split in SPLITS)]
        for name in names
    ]
    for row, name in zip(rows, names, strict=True):
        row += [mean_and_error([gains[data, split][name] for data in tables], signed=True) for split in SPLITS]
    columns = [f"{data}, {split}" for data in [*tables, "all"] for split in SPLITS]
    by_table = [[column, *(row[i + 1] for row in rows)] for i, column in enumerate(columns)]
    return Table(
        caption="Accuracy minus that of FedAvg, points, on real tables under both splits",
        columns=["table, split", *names],
        rows=by_table,
        notes=f"Mean over {experiment.settings['seeds']} seeds, which split the same rows again; *all*: mean over "
        f"{len(tables)} tables ± its standard error.",
    )


def mean_and_error(values: Sequence[float], *, signed: bool = False) -> str:
    """A mean and its standard error.

    >>> mean_and_error([1.0, 3.0], signed=True)
    '+2.0 ± 1.0'
    """
    error = f" ± {stdev(values) / math.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):{'+' if signed else ''}.1f}{error}".replace("-", "−")
