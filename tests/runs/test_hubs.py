"""Models and data go to other libraries and come back: MLflow, the Hugging Face Hub, Lightning, datasets."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedtilt as ft
from fedtilt.errors import InputWarning
from fedtilt.files import read_tensors

SETTINGS: dict[str, Any] = {"rounds": 2, "epochs": 1, "workers": 0, "participation": 1.0}


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=3, max_train=20, seed=0)


def test_mlflow_loads_the_model_and_predicts_the_same(federation: ft.Federation, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    place = str(tmp_path / "mlruns")
    tracker = ft.trackers.MLflow(place, "trial")
    with pytest.raises(ft.InputError, match="there is no MLflow run to add a model to"):
        tracker.log_model(tmp_path / "model.safetensors")
    result = ft.run([ft.fedavg()], federation, ft.models.logistic, callbacks=[tracker], **SETTINGS)
    result.export(tmp_path / "model.safetensors")
    import mlflow

    mlflow.set_tracking_uri(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, when it is imported
        uri = tracker.log_model(tmp_path / "model.safetensors")
        model = mlflow.pyfunc.load_model(uri)
    images = federation.dataset.x_test[:20].numpy()
    expected = ft.load(tmp_path / "model.safetensors").predict(images)
    assert list(model.predict(images)) == list(expected)
    assert len(set(expected)) > 1
    files = [path.name for path in (tmp_path / "mlruns").rglob("*") if path.is_file()]
    assert not [name for name in files if name.endswith((".pkl", ".pickle"))]


def test_a_folder_for_the_hub(federation: ft.Federation, tmp_path: Path, fedtilt: Any) -> None:
    hub = pytest.importorskip("huggingface_hub")
    ft.run([ft.fedavg()], federation, ft.models.logistic, out=tmp_path / "run", **SETTINGS)
    done = fedtilt("export", str(tmp_path / "run"), "--to", str(tmp_path / "hub"))
    assert done.code == 0, done.err
    folder = tmp_path / "hub"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    card = hub.ModelCard.load(folder / "README.md")
    data = card.data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == ("fedtilt", "image-classification")
    assert "federated-learning" in data["tags"]
    assert "## Performance" in card.text
    assert "## Limits" in card.text
    assert json.loads((folder / "config.json").read_text())["class_names"] == list(federation.class_names)
    images = federation.dataset.x_test[:20].numpy()
    run = ft.load(tmp_path / "run")
    assert list(ft.load(folder / "model.safetensors").predict(images)) == list(run.predict(images))
    assert set(read_tensors(folder / "model.safetensors")) == set(run.module.state_dict())
    again = fedtilt("export", str(tmp_path / "run"), "--to", str(folder))
    assert (again.code, "is not empty; choose a new folder" in again.err) == (2, True)
    forced = fedtilt("export", str(tmp_path / "run"), "--to", str(tmp_path / "new"), "--force")
    assert (forced.code, "--force has no effect on a folder" in forced.err) == (2, True)


@pytest.mark.slow  # to import Lightning takes as long as all the others
def test_a_lightning_module_trains_as_its_forward(federation: ft.Federation) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("pytorch_lightning")

    class Net(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1))

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            raise AssertionError("is not used")

        def configure_optimizers(self) -> Any:
            raise AssertionError("is not used")

    torch.manual_seed(0)
    net = Net()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    plain.load_state_dict({"1.weight": net.layer.weight.detach(), "1.bias": net.layer.bias.detach()})
    with pytest.warns(InputWarning, match="configure_optimizers, training_step of Net have no effect"):
        model = ft.models.from_lightning(net)
    ours = ft.run([ft.fedavg()], federation, model, **SETTINGS)["fedavg"]
    expected = ft.run([ft.fedavg()], federation, plain, **SETTINGS)["fedavg"]
    torch.testing.assert_close(ours.shared.layer.weight, expected.shared[1].weight)
    assert ours.accuracy == expected.accuracy
    with pytest.raises(ft.InputError, match="Linear is no LightningModule; give any other nn.Module as it is"):
        ft.models.from_lightning(nn.Linear(1, 1))

    class NoForward(lightning.LightningModule):  # type: ignore[misc,name-defined]
        pass

    with pytest.raises(ft.InputError, match="NoForward has no forward"):
        ft.models.from_lightning(NoForward())


def image_data() -> ft.data.Dataset:
    draw = np.random.default_rng(0)
    x = torch.tensor(draw.integers(0, 256, (40, 1, 4, 4)), dtype=torch.uint8)
    y = torch.tensor(draw.permutation(np.arange(40) % 3))
    owner = torch.arange(40) % 2
    return ft.data.Dataset(
        name="mine", x_train=x, y_train=y, x_test=x.flip(0), y_test=y.flip(0), class_names=("a", "b", "c"), classes=3,
        image=True, client_train=owner, client_test=owner, client_names=("north", "south"),
    )  # fmt: skip


def test_datasets_out_of_a_federation_and_back() -> None:
    pytest.importorskip("datasets")
    first = ft.Federation.build(image_data(), partition="column")
    written = first.to_datasets()
    assert list(written) == ["north", "south"]
    assert written["north"]["train"].features["label"].names == ["a", "b", "c"]
    again = ft.Federation.from_clients(written)
    assert (again.client_names, again.class_names) == (first.client_names, first.class_names)
    assert again.dataset.image
    for side in ("train", "test"):
        for rows, others in zip(getattr(first, f"{side}_index"), getattr(again, f"{side}_index"), strict=True):
            for key in ("x", "y"):
                torch.testing.assert_close(
                    getattr(first.dataset, f"{key}_{side}")[rows], getattr(again.dataset, f"{key}_{side}")[others]
                )


def test_datasets_of_arrays_have_a_validation_split() -> None:
    pytest.importorskip("datasets")
    x, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    data = ft.data.Dataset(name="mine", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)
    federation = ft.Federation.build(data, clients=2, partition="iid", validation=0.2)
    written = federation.to_datasets()["0"]
    rows = federation.validation_index[0]
    np.testing.assert_array_equal(written["validation"].with_format("numpy")["x"][:], x[rows].numpy())
    assert len(written["train"]) == len(federation.train_index[0])


def test_what_datasets_cannot_have_is_rejected(federation: ft.Federation) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(ft.InputError, match="the images of 'digits' are float32"):
        federation.to_datasets()
    flipped = ft.Federation.build(image_data(), partition="column", outliers="flips")
    with pytest.raises(ft.InputError, match="outliers of kind 'flips' are drawn in training and are no data"):
        flipped.to_datasets()
