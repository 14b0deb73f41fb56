"""Trackers write what a run records: the metrics of every evaluated round, once, also after an interruption."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from tests.helpers.callbacks import stop_after

METHODS = [ft.fedavg(), ft.fedtilt(tau=1, lam=-2, mu=0.1, name="tilted lam=-2")]
SETTINGS: dict[str, Any] = {"rounds": 4, "epochs": 1, "eval_every": 2, "workers": 0, "seed": 3}


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20, seed=0)


def train_twice(federation: ft.Federation, out: Path, tracker: Callable[[], ft.Callback]) -> ft.Result:
    """A run that is interrupted after round 3 and resumed, with a tracker each."""
    with pytest.raises(KeyboardInterrupt):
        ft.run(METHODS, federation, ft.models.mlp, out=out, callbacks=[tracker(), stop_after(3)], **SETTINGS)
    return ft.run(METHODS, federation, ft.models.mlp, out=out, callbacks=[tracker()], **SETTINGS)


def accuracies(result: ft.Result, method: str) -> list[tuple[int, float]]:
    return [(number, pytest.approx(summary.evaluated.accuracy, rel=1e-6)) for number, summary in result[method].history]


def test_tensorboard(federation: ft.Federation, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = train_twice(federation, tmp_path / "run", lambda: ft.trackers.TensorBoard(tmp_path / "logs"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "logs/seed-3")).Reload()
    for name in result:
        logged = [(event.step, event.value) for event in events.Scalars(f"{name}/accuracy")]
        assert logged == accuracies(result, name)
    assert "fedavg/shared/accuracy" not in events.Tags()["scalars"]  # it has no personal models
    (text,) = events.Tensors("settings/text_summary")
    settings = json.loads(text.tensor_proto.string_val[0].decode().strip("`\n"))
    assert settings["train"]["rounds"] == 4


def test_mlflow(federation: ft.Federation, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    place = str(tmp_path / "mlruns")
    result = train_twice(federation, tmp_path / "run", lambda: ft.trackers.MLflow(place, "trial"))
    client = mlflow.MlflowClient(tracking_uri=place)
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])  # resumed, not a second one
    assert run.info.status == "FINISHED"
    assert run.data.params["train.rounds"] == "4"
    assert run.data.params["methods.tilted lam:-2.objective.lam"] == "-2.0"
    logged = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "tilted lam:-2/accuracy")]
    assert logged == accuracies(result, "tilted lam=-2")


@pytest.mark.slow
def test_weights_and_biases_offline(federation: ft.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = ft.trackers.WandB("trial", mode="offline", dir=str(tmp_path))
    result = ft.run(METHODS, federation, ft.models.mlp, callbacks=[tracker], **SETTINGS)
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    store = DataStore()
    store.open_for_scan(str(path))
    logged = []
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        if "fedavg/accuracy" in items:
            logged.append((record.history.step.num, float(items["fedavg/accuracy"])))
    store.close()
    assert logged == accuracies(result, "fedavg")


def test_the_command_line_logs_and_resumes(fedtilt, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    small = ["--set", "train.rounds=1", "--set", "train.epochs=1", "--set", "train.workers=0", "--method", "fedavg"]
    result = fedtilt("run", *small, "--out", "run", "--log", "tensorboard:logs", "--quiet")
    assert result.code == 0, result.err
    result = fedtilt("resume", "run", "--rounds", "2", "--log", "tensorboard:logs", "--quiet")
    assert result.code == 0, result.err
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "logs/seed-0")).Reload()
    assert [event.step for event in events.Scalars("fedavg/accuracy")] == [1, 2]


def test_a_search_logs_the_scores_of_every_stage(fedtilt, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    small = ["train.rounds=2", "train.epochs=1", "train.workers=0", "clients.count=4", "clients.validation=0.3"]
    options = [part for key in small for part in ("--set", key)]
    search = ["tune", *options, "--over", "lam=-2,-1,0,1,2", "--out", "search", "--log", "tensorboard:logs", "--json"]
    result = fedtilt(*search)
    assert result.code == 0, result.err
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def logged() -> dict[str, list[tuple[int, float]]]:
        events = EventAccumulator(str(tmp_path / "logs/seed-0")).Reload()
        names = [name for name in events.Tags()["scalars"] if name.endswith("/accuracy")]
        return {name.removesuffix("/accuracy"): [(e.step, e.value) for e in events.Scalars(name)] for name in names}

    rows = json.loads(result.out)["tuning"]["settings"]
    assert {name: points[-1] for name, points in logged().items()} == {
        name: (row["rounds"], pytest.approx(row["validation"]["accuracy"], rel=1e-6)) for name, row in rows.items()
    }
    assert {len(points) for points in logged().values()} == {1, 2}  # some settings were stopped after the first stage
    before = logged()
    assert fedtilt("resume", "search", "--log", "tensorboard:logs", "--json").code == 0
    assert logged() == before  # its stages are logged again, in place of the first time


@pytest.mark.parametrize("text", ["neptune:x", "tensorboard", "mlflow:"])
def test_an_unknown_tracker_is_rejected_before_anything_is_written(fedtilt, tmp_path: Path, text: str) -> None:
    result = fedtilt("run", "--log", text)
    assert (result.code, result.out) == (2, "")
    assert result.err.strip() == (
        f"error: --log {text} is not possible; write tensorboard:FOLDER, mlflow:FOLDER or mlflow:URI, or wandb:PROJECT"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_with_its_extra(fedtilt, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    result = fedtilt("run", "--log", f"{name}:place")
    assert result.code == 2
    package = "mlflow-skinny" if name == "mlflow" else name
    start = f'error: --log {name} needs {name}, which is not installed; pip install "{package}>='
    assert result.err.startswith(start)
