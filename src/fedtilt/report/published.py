"""The paper's published metrics for runs with the paper's settings, shown next to ours in a report."""

import tomllib
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from fedtilt.data.outliers import Outliers
from fedtilt.engine.settings import TrainSettings
from fedtilt.methods import ditto, fedavg, fedtilt
from fedtilt.report.compare import METRICS, Published
from fedtilt.report.run_reader import Run, read_run
from fedtilt.report.tuning_page import is_search
from fedtilt.storage.provenance import recorded_settings

PAPER_METRICS = METRICS[:4]
_CLIENTS, _CLASSES_PER_CLIENT, _MU = 100, 2, 0.01
_TRAIN = {"participation": 0.1, "epochs": 10, "batch_size": 10, "lr": 0.01}
_MLP, _CNN = (50, [200, 200, 10]), (500, [32, 64, 128, 10])  # rounds, outputs of the layers
_MODELS = {"mnist": _MLP, "fashion-mnist": _MLP, "cifar10": _CNN}


@cache
def published_tables() -> dict[str, dict[str, dict[str, Any]]]:
    """Outliers → data set → FedTilt's `tilts`, and the `metrics` of every method in the order of `PAPER_METRICS`."""
    return tomllib.loads((resources.files("fedtilt.report") / "published.toml").read_text("utf-8"))


def published_for(folder: str | PathLike[str]) -> Published:
    """Method → metric → the paper's value, for the methods of a run folder that have the paper's settings.

    Empty if data set, outliers, clients, model or training settings differ, if the run is not finished, or of a search.
    """
    if is_search(Path(folder)):
        return {}
    run = read_run(Path(folder))
    fingerprint, data = run.fingerprint, run.fingerprint["data"]
    kind = fingerprint["outliers"]["kind"]
    table = published_tables().get(kind, {}).get(data)
    if table is None or not _has_paper_settings(run):
        return {}
    methods = {"fedavg": fedavg(), "ditto": ditto(_MU), "fedtilt": fedtilt(**table["tilts"], mu=_MU)}
    rows = recorded_settings(list(methods.values()), TrainSettings())["methods"]
    return {
        name: dict(zip((metric.key for metric in PAPER_METRICS), table["metrics"][row], strict=True))
        for name, settings in fingerprint["methods"].items()
        for row in methods
        if rows[row] | {"name": name} == settings
    }


def _has_paper_settings(run: Run) -> bool:
    fingerprint = run.fingerprint
    rounds, layer_outputs = _MODELS[fingerprint["data"]]
    kind = fingerprint["outliers"]["kind"]
    outputs = [shape[0] for name, shape in fingerprint["model"].items() if name.endswith("weight")]
    classes_per_client = (run.compared[0].total > 0).sum(1)  # (N,)
    return (
        run.round == run.rounds
        and fingerprint["clients"] == _CLIENTS
        and bool((classes_per_client == _CLASSES_PER_CLIENT).all())
        and (kind == "none" or fingerprint["outliers"] == Outliers(kind=kind).to_json())
        and outputs == layer_outputs
        and all(fingerprint["train"].get(key) == value for key, value in {**_TRAIN, "rounds": rounds}.items())
    )
