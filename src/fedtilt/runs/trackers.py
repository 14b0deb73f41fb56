"""Trackers: callbacks that send the metrics of every evaluated round to TensorBoard, MLflow or Weights & Biases.

A metric is named METHOD/METRIC, such as fedtilt/accuracy, and its step is the round. Every seed is a run of its own,
and a resumed run continues where it stopped. A search is one run, with means over its seeds.
"""

import hashlib
import json
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from fedtilt.errors import InputError
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.imports import import_extra
from fedtilt.runs.callback import Callback, Callbacks, RunStart
from fedtilt.runs.predictor import Predictor, load
from fedtilt.simulation import Round
from fedtilt.storage.evaluations import Evaluations
from fedtilt.storage.fingerprint import read_fingerprint
from fedtilt.storage.provenance import flat_settings, seed_folder
from fedtilt.version import __version__

_PYFUNC = __name__  # the module whose `_load_pyfunc` loads a model for MLflow


class Tracker(Callback, ABC):
    """A callback that sends numbers to a log; a tracker of your own defines `log`."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers by name, such as fedtilt/accuracy, of one step: a round, or the last round of a stage."""

    def on_round(self, round: Round, metrics: Mapping[str, RoundMetrics] | None) -> None:
        """Log the metrics of a round, unless it was not evaluated."""
        if metrics:
            self.log(round.number, {"seconds": round.seconds, **named_values(metrics)})

    def on_scores(self, round: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Log the scores of a search."""
        self.log(
            round,
            {f"{setting}/{name}": value for setting, by_name in scores.items() for name, value in by_name.items()},
        )


class TensorBoard(Tracker):
    """Logs into a folder, which `tensorboard --logdir FOLDER` shows; each seed is one of its subfolders.

    Args:
        folder: where to write
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        import_extra("tensorboard", "--log tensorboard", "tensorboard")
        self._folder = os.fspath(folder)

    def on_start(self, run: RunStart) -> None:
        """Open the log; rounds after the last checkpoint, which are trained again, are replaced."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(os.path.join(self._folder, f"seed-{run.seed}"), purge_step=run.round + 1)
        if run.round == 0:
            self._writer.add_text("settings", f"```\n{json.dumps(_settings(run), indent=2)}\n```", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def on_end(self, error: BaseException | None) -> None:
        """Close the log."""
        self._writer.close()


class MLflow(Tracker):
    """Logs to a tracking server or into a folder.

    Args:
        uri: the address of a server, or a folder
        experiment: the name of the experiment, which is created if there is none
    """

    def __init__(self, uri: str, experiment: str = "fedtilt") -> None:
        if "://" not in uri:  # MLflow asks for consent before it uses a folder; naming one is consent
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = import_extra("mlflow", "--log mlflow", "mlflow").MlflowClient(tracking_uri=uri)
        self._experiment = experiment
        self._run: str | None = None

    def on_start(self, run: RunStart) -> None:
        """Create a run, or continue the one of the same run folder and seed."""
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        key = _key(run)
        runs = self._client.search_runs([experiment], f"tags.`fedtilt.run` = '{key}'") if run.round and key else []
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        created = self._client.create_run(experiment, run_name=_name(run), tags={"fedtilt.run": key or ""})
        self._run = created.info.run_id
        for name, value in flat_settings(_settings(run)).items():
            self._client.log_param(self._run, _mlflow_name(name), value)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the numbers."""
        named = {_mlflow_name(name): value for name, value in values.items()}
        if len(named) < len(values):
            raise InputError("two methods have the same name in MLflow, which allows no punctuation; rename one")
        for name, value in named.items():
            self._client.log_metric(self._run, name, value, step=step)

    def log_model(self, file: str | os.PathLike[str], name: str = "model") -> str:
        """Add an exported model to the run as an MLflow model, without pickle; returns its URI.

        `mlflow.pyfunc.load_model(uri).predict(data)` predicts as `ft.load(file).predict(data)` does, where fedtilt is
        installed.

        Args:
            file: a safetensors or ONNX file of `fedtilt export` or `result.export`
            name: of the model in the run
        """
        if self._run is None:
            raise InputError("there is no MLflow run to add a model to; train with this tracker first")
        load(file)  # an error now, not when it is used
        pyfunc = import_extra("mlflow.pyfunc", "log_model()", "mlflow")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            requirements = [f"fedtilt=={__version__}"]
            pyfunc.save_model(path, loader_module=_PYFUNC, data_path=os.fspath(file), pip_requirements=requirements)
            self._client.log_artifacts(self._run, str(path), name)
        return f"runs:/{self._run}/{name}"

    def on_end(self, error: BaseException | None) -> None:
        """Finish the run; it is killed if it was interrupted, and failed with another error."""
        status = "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self._run, status)


def _load_pyfunc(path: str) -> Predictor:
    """The model of `MLflow.log_model`; MLflow calls it by this name, and then `predict`."""
    file = Path(path)
    return load(next(file.iterdir()) if file.is_dir() else file)


class WandB(Tracker):
    """Logs to Weights & Biases; with WANDB_MODE=offline in the environment, into a folder.

    Args:
        project: the name of the project
        **settings: further arguments of `wandb.init`, such as entity, dir or mode
    """

    def __init__(self, project: str = "fedtilt", **settings: Any) -> None:
        self._wandb = import_extra("wandb", "--log wandb", "wandb")
        self._settings = {"project": project} | settings

    def on_start(self, run: RunStart) -> None:
        """Create a run, or continue the one of the same run folder and seed."""
        key = _key(run)
        resumed = {"id": key, "resume": "allow"} if key else {}
        self._run = self._wandb.init(name=_name(run), config=_settings(run), **resumed, **self._settings)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the numbers."""
        self._run.log(dict(values), step=step)

    def on_end(self, error: BaseException | None) -> None:
        """Finish the run."""
        self._run.finish(exit_code=0 if error is None else 1)


TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def trackers_of(texts: Iterable[str]) -> list[Tracker]:
    """The trackers that --log names: tensorboard:FOLDER, mlflow:FOLDER-OR-URI or wandb:PROJECT."""
    trackers: list[Tracker] = []
    for text in texts:
        kind, _, where = text.partition(":")
        if kind not in TRACKERS or not where:
            raise InputError(
                f"--log {text} is not possible; write tensorboard:FOLDER, mlflow:FOLDER or mlflow:URI, or wandb:PROJECT"
            )
        trackers.append(TRACKERS[kind](where))
    return trackers


def named_values(metrics: Mapping[str, RoundMetrics]) -> dict[str, float]:
    """The numbers of an evaluated round by name."""
    named: dict[str, float] = {}
    for method, summary in metrics.items():
        named |= {f"{method}/{name}": value for name, value in summary.evaluated.by_name().items()}
        if summary.personal is not None:
            named |= {f"{method}/shared/{name}": value for name, value in summary.shared.by_name().items()}
        for column, groups in summary.groups.items():
            named |= {f"{method}/{column}/{name}": value for name, value in groups.by_name().items()}
        if summary.attack_success is not None:
            named[f"{method}/attack_success"] = summary.attack_success
        if summary.privacy is not None:
            named[f"{method}/epsilon"] = summary.privacy.epsilon
    return named


class FolderLog(AbstractContextManager["FolderLog"]):
    """Logs the rounds of a run that another process trains, such as the server of a deployment, from its run folder.

    It sends every round that is evaluated from now on to trackers; leaving the context ends their logs. `back_to` is
    the round that the run goes back to; None: it continues.
    """

    def __init__(
        self, folder: Path, seed: int, rounds: int, trackers: Sequence[Tracker], back_to: int | None = None
    ) -> None:
        self._folder, self._seed, self._rounds, self._trackers = folder, seed, rounds, trackers
        self._callbacks = Callbacks(trackers)
        self._seed_folder = seed_folder(folder, seed)
        self._evaluations = Evaluations(self._seed_folder)
        before = [round for round in self._evaluations.read_lines().rounds if back_to is None or round <= back_to]
        self._last = self._first = max(before, default=0)

    def update(self, recorded: Collection[int]) -> None:
        """Log the rounds that have been evaluated since the last call, among those that the server has recorded."""
        if not self._trackers:
            return
        for round, lines in sorted(self._evaluations.read_lines().rounds.items()):
            if round <= self._last or round not in recorded:
                continue
            if self._last == self._first:
                settings = read_fingerprint(self._seed_folder / "fingerprint.json")
                self._callbacks.on_start(
                    RunStart(
                        seed=self._seed, round=self._first, rounds=self._rounds, settings=settings, folder=self._folder
                    )
                )
            self._last = round
            for tracker in self._trackers:
                tracker.log(round, named_values({method: line.summary for method, line in lines.items()}))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the logs that were started."""
        self._callbacks.on_end(error)


def _settings(run: RunStart) -> dict[str, Any]:
    """The settings of a run, without digests and shapes."""
    return {
        key: run.settings[key]
        for key in ("data", "clients", "outliers", "train", "methods", "search")
        if key in run.settings
    }


def _name(run: RunStart) -> str:
    name = run.settings["data"] if run.folder is None else run.folder.resolve().name
    return f"{name}, seed {run.seed}"


def _key(run: RunStart) -> str | None:
    """Identifies the seed of a run folder, so that a resumed run continues its log; None: nothing can be resumed."""
    if run.folder is None:
        return None
    return hashlib.sha256(f"{run.folder.resolve()}\n{run.seed}".encode()).hexdigest()[:16]


def _mlflow_name(name: str) -> str:
    """A name with the characters that MLflow allows.

    >>> _mlflow_name("fedtilt tau=1/accuracy"), _mlflow_name("größe (cm)")
    ('fedtilt tau:1/accuracy', 'größe _cm_')
    """
    return re.sub(r"[^\w\-. /:]", "_", name.replace("=", ":"))
