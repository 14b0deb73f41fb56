"""The paper's figures for a run that trained as the paper did, to stand beside ours in a report."""

from dataclasses import asdict
from os import PathLike
from pathlib import Path

from fedtilt.data.outliers import Outliers
from fedtilt.report import Published
from fedtilt.report.read_run import Run, read_run
from fedtilt.reproduction.comparison.standings import METRICS
from fedtilt.reproduction.experiment import NAMES, Experiment, load
from fedtilt.reproduction.train_grid import ditto, fedavg, federation_settings, fedtilt, method_of
from fedtilt.rounds.settings import TrainSettings
from fedtilt.storage.provenance import settings_of

_MODELS = {"mlp": [200, 200, 10], "cnn": [32, 64, 128, 10]}  # outputs of the layers


def published_for(folder: str | PathLike[str]) -> Published:
    """Method → metric → the paper's figure, for the methods of a run folder that have the paper's settings.

    Empty where the data set, the outliers, the clients, the model or the training are others, or not all rounds are in.
    """
    run = read_run(Path(folder))
    for name in NAMES:
        experiment = load(name)
        comparison = experiment.kind == "comparison" and run.job["data"] in experiment.published
        if comparison and _same_federation(run, experiment):
            return _figures(run, experiment)
    return {}


def _same_federation(run: Run, experiment: Experiment) -> bool:
    job, data = run.job, run.job["data"]
    paper = federation_settings(experiment.settings, data, experiment.settings["outliers"])
    outliers = asdict(Outliers(kind=paper["outliers"]))
    train = {key: value for key, value in paper["train"].items() if key != "precision"}
    outputs = [shape[0] for name, shape in job["model"].items() if name.endswith("weight")]
    held = (run.compared[0].total > 0).sum(1)
    return (
        run.round == run.rounds
        and job["clients"] == paper["clients"]["count"]
        and bool((held == paper["clients"]["classes_per_client"]).all())
        and (job["outliers"] == outliers or job["outliers"]["kind"] == paper["outliers"] == "none")
        and outputs == _MODELS[paper["model"]]
        and all(job["train"].get(key) == value for key, value in train.items())
    )


def _figures(run: Run, experiment: Experiment) -> Published:
    settings, data = experiment.settings, run.job["data"]
    asked = {
        "fedavg": fedavg(),
        "ditto": ditto(settings["mu"]),
        "fedtilt": fedtilt(**settings[data]["paper"], mu=settings["mu"]),
    }
    return {
        name: dict(zip((metric.key for metric in METRICS), experiment.published[data][row], strict=True))
        for name, recorded in run.job["methods"].items()
        for row, (_, setting) in asked.items()
        if settings_of([method_of(name, setting)], TrainSettings())["methods"][name] == recorded
    }
