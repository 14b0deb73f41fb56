"""The card beside an export has the figures of the exported model, the schema and the limits, and no data."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.evaluation.weighted_predictions import clopper_pearson
from fedtilt.runs.export import export_of
from fedtilt.runs.model_card import model_card
from fedtilt.runs.trained_run import read_trained_run

pandas = pytest.importorskip("pandas")
SETTINGS = {"rounds": 1, "epochs": 1, "participation": 1.0, "workers": 0}


def patients(path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "age": rng.normal(50, 10, 240).round(),
            "ward": rng.choice(["secret ward", "children"], 240),
            "sex": rng.choice(["f", "m"], 240),
            "hospital": rng.choice(["no|rth", "south"], 240),
            "diagnosis": rng.choice(["ill", "well"], 240),
            "score": rng.normal(0, 1, 240),
        }
    )
    frame.to_csv(path, index=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ft.Result]:
    folder = tmp_path_factory.mktemp("card")
    patients(folder / "patients.csv")
    data = ft.data.table(folder / "patients.csv", target="diagnosis", client="hospital", group="sex")
    methods = [ft.fedavg(), ft.fedtilt(tau=1, lam=-2, mu=0.1)]
    federation = ft.Federation.build(data, seed=0)
    return folder / "run", ft.run(methods, federation, ft.models.mlp, out=folder / "run", **SETTINGS)


def card(folder: Path, method: str, client: str | None = None) -> str:
    run = read_trained_run(folder)
    return model_card(run, export_of(run, method, client))


def row(name: str, correct: int, total: int) -> str:
    low, high = clopper_pearson(correct, total, 0.95)
    return f"| {name} | {100 * correct / total:.1f} % ({100 * low:.1f} to {100 * high:.1f}) | {total} |"


def test_the_card_of_a_shared_model_has_clients_classes_and_groups(run: tuple[Path, ft.Result]) -> None:
    folder, result = run
    text, found = card(folder, "fedavg"), result["fedavg"]
    for i, name in enumerate(["no\\|rth", "south"]):
        assert row(name, int(found.sums[i].sum()), int(found.total[i].sum())) in text
    for column, names in (("class", ["ill", "well"]), ("sex", ["f", "m"])):
        sums, total = found.group_counts[column]
        for k, name in enumerate(names):
            assert row(name, int(sums[:, k].sum()), int(total[:, k].sum())) in text
    statement = str(found.certificate(by="sex"))
    assert statement[1:] in text
    assert "method." not in text  # FedAvg has all defaults
    personal = card(folder, "fedtilt")
    assert '| method.objective | { rule = "tilted", tau = 1.0, lam = -2.0 } |' in personal
    assert '| method.personal | { rule = "proximal", mu = 0.1 } |' in personal


def jitter(x: torch.Tensor) -> torch.Tensor:
    return x + 0.01 * torch.randn_like(x)


def test_the_card_has_every_setting_that_is_not_the_default(tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=3, max_train=20, validation=0.2)
    given = {"local": ["2.*"], "transform": jitter, "micro_batch_size": 4, "momentum": 0.9}
    given |= {"stop": ft.stopping.Patience(rounds=2), "privacy": ft.Privacy(clip=1.0, noise=0.5, delta=1e-3)}
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Linear(8, 10))
    result = ft.run([ft.fedavg()], federation, model, **SETTINGS | {"epochs": 2}, **given)
    result.export(tmp_path / "m.safetensors")
    listed = (tmp_path / "m.md").read_text().split("## Training\n")[1].split("Settings that are not listed")[0]
    rows = dict(line.strip("| ").split(" | ") for line in listed.replace("\\", "").strip().splitlines()[2:])
    assert rows == {
        "rounds": "1", "participation": "1.0", "epochs": "2", "batch_size": "10", "lr": "0.01", "optimizer": "sgd",
        "schedule": "constant", "loss": "cross_entropy", "seed": "0", "micro_batch_size": "4", "momentum": "0.9",
        "local": '["2.*"]', "transform": f"{__name__}:jitter",
        "stop": "patience, rounds = 2, by = mean", "privacy": "clip = 1.0, noise = 0.5, delta = 0.001",
    }  # fmt: skip


def test_the_card_has_the_schema_and_no_values(run: tuple[Path, ft.Result]) -> None:
    text = card(run[0], "fedavg")
    assert "| ward | category |" in text
    assert "secret ward" not in text
    assert "Target: diagnosis." in text


def test_the_card_of_a_client_is_about_that_client_alone(run: tuple[Path, ft.Result]) -> None:
    folder, result = run
    text, found = card(folder, "fedtilt", "south"), result["fedtilt"]
    assert row("south", int(found.sums[1].sum()), int(found.total[1].sum())) in text
    assert "rth" not in text.split("## Performance")[1]
    assert "personal model of client south" in text
    assert "A client's model is fitted to its data" in text
    assert "this is the model that they share" in card(folder, "fedtilt")


def test_a_model_of_numbers_has_errors_and_no_certificate(tmp_path: Path) -> None:
    patients(tmp_path / "patients.csv")
    data = ft.data.table(tmp_path / "patients.csv", target="score", client="hospital", task="regression")
    federation = ft.Federation.build(data, seed=0)
    result = ft.run([ft.fedavg()], federation, ft.models.mlp, out=tmp_path / "run", **SETTINGS)
    text, found = card(tmp_path / "run", "fedavg"), result["fedavg"]
    samples = found.total[1].sum()
    mae, mse = found.sums[1].sum(0) / samples
    assert f"| south | {mae:.4g} | {mse.sqrt():.4g} | {int(samples)} |" in text
    assert "Certificate" not in text


def test_the_command_writes_card_and_onnx(run: tuple[Path, ft.Result], fedtilt, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder, result = run
    export = ["export", str(folder), "--method", "fedtilt", "--client", "south"]
    written = fedtilt(*export, "--to", "model.onnx")
    assert written.code == 0, written.err
    assert "ONNX Runtime differs from PyTorch by" in written.out
    assert (tmp_path / "model.md").read_text() == card(folder, "fedtilt", "south")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert "schema" in session.get_modelmeta().custom_metadata_map
    x = torch.randn(11, 6)
    x = x[:, : session.get_inputs()[0].shape[1]]
    expected = result["fedtilt"].personal("south")(x)
    (found,) = session.run(None, {"input": x.numpy()})
    assert torch.allclose(torch.from_numpy(found), expected, atol=1e-5)
    assert fedtilt(*export, "--to", "model.safetensors").code == 0  # the same model, with the same card
    again = fedtilt(*export, "--to", "model.safetensors")
    assert again.err.strip() == "error: model.safetensors already exists; force=True (--force) replaces it"
    (tmp_path / "notes.md").write_text("my notes")
    notes = fedtilt(*export, "--to", "notes.safetensors")
    assert "notes.md is not the card of this model" in notes.err
    assert not (tmp_path / "notes.safetensors").exists()
    other = fedtilt(*export, "--to", "model.pt")
    assert "ends neither in .safetensors nor in .onnx" in other.err


@pytest.mark.slow
def test_a_model_that_onnx_changes_is_not_written(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from fedtilt.errors import InputError
    from fedtilt.runs.export import write_onnx

    class Stateful(torch.nn.Module):  # its answers change between calls, so an export cannot agree with it
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    with pytest.raises(InputError, match="ONNX Runtime differs from PyTorch by .* was not written"):
        write_onnx(tmp_path / "model.onnx", Stateful(), torch.ones(2, 3))
    assert not (tmp_path / "model.onnx").exists()
