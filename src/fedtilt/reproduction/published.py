"""The paper's published metrics for runs with the paper's settings, shown next to ours in a report."""

from os import PathLike
from pathlib import Path

from fedtilt.data.outliers import Outliers
from fedtilt.engine.settings import TrainSettings
from fedtilt.report import Published
from fedtilt.report.run_reader import Run, read_run
from fedtilt.report.tuning_page import is_search
from fedtilt.reproduction.comparison.dataset_comparison import PAPER_METRICS
from fedtilt.reproduction.experiment import NAMES, Experiment, load
from fedtilt.reproduction.train_grid import ditto, fedavg, federation_settings, fedtilt, method_of
from fedtilt.storage.provenance import settings_of

_LAYER_OUTPUTS = {"mlp": [200, 200, 10], "cnn": [32, 64, 128, 10]}


def published_for(folder: str | PathLike[str]) -> Published:
    """Method → metric → the paper's value, for the methods of a run folder that have the paper's settings.

    Empty if data set, outliers, clients, model or training settings differ, if the run is not finished, or of a search.
    """
    if is_search(Path(folder)):
        return {}
    run = read_run(Path(folder))
    for name in NAMES:
        experiment = load(name)
        comparison = experiment.kind == "comparison" and run.fingerprint["data"] in experiment.published
        if comparison and _same_federation(run, experiment):
            return _published_metrics(run, experiment)
    return {}


def _same_federation(run: Run, experiment: Experiment) -> bool:
    fingerprint, data = run.fingerprint, run.fingerprint["data"]
    paper = federation_settings(experiment.settings, data, experiment.settings["outliers"])
    outliers = Outliers(kind=paper["outliers"]).to_json()
    train = {key: value for key, value in paper["train"].items() if key not in ("precision", "last_batch")}
    outputs = [shape[0] for name, shape in fingerprint["model"].items() if name.endswith("weight")]
    classes_per_client = (run.compared[0].total > 0).sum(1)  # (N,)
    return (
        run.round == run.rounds
        and fingerprint["clients"] == paper["clients"]["count"]
        and bool((classes_per_client == paper["clients"]["classes_per_client"]).all())
        and (fingerprint["outliers"] == outliers or fingerprint["outliers"]["kind"] == paper["outliers"] == "none")
        and outputs == _LAYER_OUTPUTS[paper["model"]]
        and all(fingerprint["train"].get(key) == value for key, value in train.items())
    )


def _published_metrics(run: Run, experiment: Experiment) -> Published:
    settings, data = experiment.settings, run.fingerprint["data"]
    paper = {
        "fedavg": fedavg(),
        "ditto": ditto(settings["mu"]),
        "fedtilt": fedtilt(**settings[data]["paper"], mu=settings["mu"]),
    }
    return {
        name: dict(zip((metric.key for metric in PAPER_METRICS), experiment.published[data][row], strict=True))
        for name, method_settings in run.fingerprint["methods"].items()
        for row, (_, setting) in paper.items()
        if settings_of([method_of(name, setting)], TrainSettings())["methods"][name] == method_settings
    }
