"""A run says which backend trained it, and why a faster one did not: in its folder, its report and with --verbose."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fedtilt as ft
from fedtilt import report
from fedtilt.files import read_json
from tests.helpers.recipe_model import RecipeModel

SETTINGS = ["--set", "train.rounds=1", "--set", "train.epochs=1", "--set", "clients.count=3", "--method", "fedavg"]


def test_a_run_folder_and_its_report_have_the_backend(tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=3, max_train=10)
    ft.run([ft.fedavg()], federation, RecipeModel, rounds=1, epochs=1, workers=0, device="cpu", out=tmp_path)
    (last,) = ft.simulate([ft.fedavg()], federation, RecipeModel, rounds=1, epochs=1, workers=0, device="cpu")
    assert last.backend.name == "autograd"
    assert last.backend.reasons.keys() == {"native", "fused"}
    line = read_json(tmp_path / "seed-0/backend.json")["backend"]
    assert line == last.backend.describe()
    assert line.startswith("autograd (not native: ")
    page = report.write([tmp_path], tmp_path / "report.html").read_text()
    assert "<dt>backend</dt><dd>autograd (not native: " in page


@pytest.mark.parametrize("model", ["mlp", "tests.helpers.recipe_model:RecipeModel"])
def test_verbose_prints_the_backend_once(fedtilt: Callable, model: str) -> None:
    command = ["run", "digits", *SETTINGS, "--set", f"model.name={model}", "--device", "cpu"]
    lines = fedtilt(*command, "--out", "verbose", "--verbose").err.splitlines()
    line = f"backend: {read_json(Path('verbose/seed-0/backend.json'))['backend']}"
    assert lines.count(line) == 1
    assert ("(not native: " in line) == (model != "mlp")
    assert "backend:" not in fedtilt(*command, "--out", "plain").err
