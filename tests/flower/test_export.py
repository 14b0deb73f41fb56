"""A federation's whole way: three sites train over loopback, server and site export, and both models predict."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtilt as ft
from examples.patients import write_patients
from fedtilt.flower import Task
from fedtilt.flower.loopback import run_loopback
from fedtilt.runs.export import export_model
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load as load_spec

SPEC = """
name = "patients"
[data]
file = "patients.csv"
target = "diagnosis"
client = "hospital"
[clients]
count = 3
[model]
name = "mlp"
hidden = [8]
[train]
rounds = 2
participation = 1.0
epochs = 1
eval_every = 2
{train}
[[methods]]
preset = "{preset}"
"""


def deployed(folder: Path, preset: str = "ditto", train: str = "", **task: object) -> dict[str, Path]:
    """The run folder of the server and the state folder of each site, which is called like its hospital."""
    write_patients(folder / "patients.csv", 240)
    lines = (folder / "patients.csv").read_text().splitlines()
    hospitals = sorted({line.rpartition(",")[2] for line in lines[1:]})
    for site, name in enumerate(hospitals):
        rows = [line for line in lines[1:] if line.endswith(f",{name}")]
        (folder / f"{site}.csv").write_text("\n".join([lines[0], *rows]) + "\n")
    (folder / "spec.toml").write_text(SPEC.format(preset=preset, train=train))
    task = Task(spec=folder / "spec.toml", table=lambda node: folder / f"{node['partition-id']}.csv", **task)
    run_loopback(task, 3, folder)
    return {"server": folder / "run"} | {name: folder / "state" / str(n) for n, name in enumerate(hospitals)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return deployed(tmp_path_factory.mktemp("deployed"))


def test_server_and_site_export_what_the_simulator_exports_and_both_predict(
    folders: dict[str, Path], fedtilt: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folders["server"].parent
    monkeypatch.chdir(home)
    run_spec(load_spec(home / "spec.toml"), tmp_path / "simulated")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text("age,sex,ward,pressure,admitted\n63,f,A,,2026-02-01\nold,m,B,110,2026-02-02\n")
    for name, client in (("server", None), ("north", "north")):
        printed = fedtilt("export", str(folders[name]), "--to", f"{name}.safetensors")
        whose = "shared model" if client is None else "personal model of client 1"
        assert printed.out.startswith(f"wrote the {whose} of ditto after round 2 ("), printed.err
        simulated = export_model(tmp_path / "simulated", "ditto", client)
        exported = ft.load(f"{name}.safetensors")
        assert exported.module is not None
        for key, value in exported.module.state_dict().items():
            torch.testing.assert_close(value, simulated.tensors[key])
        printed = fedtilt("predict", f"{name}.safetensors", "new.csv", "--to", f"{name}.csv")
        assert "1 row predicted" in printed.out
        assert "row 3: 'old' in column 'age', but the column has numbers" in printed.err
        rows = [line.split(",") for line in (tmp_path / f"{name}.csv").read_text().splitlines()]
        assert rows[0][:4] == ["row", "prediction", "probability of ill", "probability of well"]
        expected = ft.load(tmp_path / "simulated", method="ditto", client=client).predict_proba("new.csv")[0]
        np.testing.assert_allclose([float(cell) for cell in rows[1][2:4]], expected, rtol=1e-4)
        assert rows[2][1:4] == ["", "", ""]


def test_the_card_of_a_site_has_the_figures_of_its_report_alone(folders: dict[str, Path], fedtilt: Callable) -> None:
    assert fedtilt("export", str(folders["north"]), "--to", "north.safetensors").code == 0
    card = Path("north.md").read_text()
    (report,) = (json.loads(path.read_text()) for path in folders["north"].rglob("report.json"))
    total = report["accuracy"]
    assert card.startswith("# Model card: personal model of client 1 of ditto\n")
    assert f"| 1 | {total['personal']:.1f} % (" in card
    assert f"| {total['samples']} |" in card
    assert "Linear(in_features=" in card
    assert "| 0 |" not in card.split("## Performance")[1].split("\n| class")[0]
    assert fedtilt("export", str(folders["server"]), "--to", "shared.safetensors").code == 0
    assert "# Model card: shared model of ditto" in Path("shared.md").read_text()


@pytest.mark.parametrize("preset", ["fedavg", "fedper"])
def test_a_site_without_a_personal_model_exports_the_shared_one_with_its_own_parts(tmp_path: Path, preset: str) -> None:
    found = deployed(tmp_path, preset)
    site, shared = export_model(found["north"]), export_model(found["server"])
    assert not site.personal
    differs = {name for name, value in shared.tensors.items() if not torch.equal(value, site.tensors[name])}
    assert differs == ({"3.weight", "3.bias"} if preset == "fedper" else set())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("server", "--client", "1"), "the model of client 1 is on its site: run fedtilt export there"),
        (("north", "--client", "2"), "is the folder of site 1, not of 2"),
        (("north", "--round", "1"), "--round 1 has no effect on"),
        (("north", "--method", "fedavg"), "has no method 'fedavg'; it has ditto"),
        (("state", "--method", "ditto"), "has the models of 3 federations or sites; choose one of"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    folders: dict[str, Path], fedtilt: Callable, arguments: tuple[str, ...], message: str
) -> None:
    where = folders["server"].parent / "state" if arguments[0] == "state" else folders[arguments[0]]
    printed = fedtilt("export", str(where), *arguments[1:], "--to", "m.safetensors")
    assert printed.code == 2
    assert message in printed.err
    assert not list(Path().iterdir())


@pytest.mark.parametrize("command", ["report", "metrics", "audit", "check", "resume"])
def test_what_needs_the_run_folder_of_the_server_says_so_on_a_site(
    folders: dict[str, Path], fedtilt: Callable, command: str
) -> None:
    printed = fedtilt(command, str(folders["north"]))
    assert printed.code == 2
    (report,) = folders["north"].rglob("report.txt")
    assert f"is not a run folder: a site has {report}, and the server the run" in " ".join(printed.err.split())
