"""The paper's published metrics for runs with the paper's settings, and for no others."""

import csv
import shutil
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.files import read_json, write_json
from fedtilt.report.compare import METRICS
from fedtilt.report.published import published_for

PAPER = {"rounds": 50, "participation": 0.1, "epochs": 10, "batch_size": 10, "lr": 0.01}
METHODS = [ft.fedavg(), ft.ditto(0.01, name="mine"), ft.fedtilt(50, 100, mu=0.01), ft.fedtilt(1, 1, name="other tilts")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the paper's settings on a few small images; one client and one epoch a round, to save time."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 256, (800, 1, 8, 8), generator=rng, dtype=torch.uint8), torch.arange(800) % 10
    data = ft.data.Dataset(
        name="mnist", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:], classes=10, image=True
    )
    federation = ft.Federation.build(data, clients=100, classes_per_client=2)
    path = tmp_path_factory.mktemp("paper") / "run"
    settings = PAPER | {"participation": 0.01, "epochs": 1, "workers": 0}
    ft.run(METHODS, federation, ft.models.mlp, out=path, eval_every=50, **settings)
    assert published_for(path) == {}
    change(path, train=PAPER)
    return path


def change(folder: Path, **settings: object) -> None:
    """Change the settings that a run folder records."""
    path = folder / "seed-0/fingerprint.json"
    write_json(path, read_json(path) | settings)


def test_a_run_with_the_papers_settings_has_published_metrics(folder: Path, fedtilt, tmp_path: Path) -> None:
    published = published_for(folder)
    assert list(published) == ["fedavg", "mine", "fedtilt"]
    assert list(published["mine"].values()) == [99.25, 1.27, 4.37, 4.23]
    result = fedtilt("report", str(folder), "--out", "page.html", "--csv")
    assert result.code == 0, result.err
    assert '<div class="published">98.53 (' in Path("page.html").read_text()
    with Path("page.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file) if row["models"] == "evaluated"}
    for metric in METRICS[:4]:
        assert rows["fedavg"][f"{metric.key}_published"] == str(published["fedavg"][metric.key])
    assert rows["other tilts"]["accuracy_published"] == ""


@pytest.mark.parametrize(
    "other",
    [
        {"data": "digits"},
        {"clients": 99},
        {"outliers": {"kind": "gaussian", "rate": 0.5, "strength": None, "clients": 1.0}},
        {"train": PAPER | {"lr": 0.1}},
        {"train": PAPER | {"rounds": 60}},
        {"model": {"0.weight": [100, 784], "2.weight": [10, 100]}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_run_with_other_settings_has_none(folder: Path, tmp_path: Path, other: dict) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    change(copy, **other)
    assert published_for(copy) == {}
