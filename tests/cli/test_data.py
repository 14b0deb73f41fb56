"""`fedtilt data`: what it prints, and its chart at several widths."""

import warnings

import pytest
import torch

from fedtilt.cli.console import Console
from fedtilt.data import Dataset, Federation, load
from fedtilt.errors import InputError

with warnings.catch_warnings():  # some typer releases warn at import with the newest click
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from fedtilt.cli.data import app
    from fedtilt.cli.show_data import ClassCountChart


@pytest.fixture
def cli(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path))
    return lambda *args: CliRunner().invoke(app, list(args))


def chart_lines(federation, width=80):
    console = Console(width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(ClassCountChart(federation))
    return capture.get().splitlines()


def test_list_shows_every_data_set_and_how_to_download_it(cli, tmp_path):
    out = cli("list").output
    for word in (
        "digits",
        "built in",
        "not downloaded",
        "fedtilt data download mnist fashion-mnist cifar10 cifar100",
        str(tmp_path),
    ):
        assert word in out
    assert max(len(line) for line in out.splitlines()[:12] if str(tmp_path) not in line) <= 80


def test_download_of_built_in_and_unknown_names(cli):
    assert "nothing to download" in cli("download", "digits").output
    result = cli("download", "digits", "imagenet")
    assert isinstance(result.exception, InputError)
    assert "nothing to download" not in result.output  # raised before the first download


def test_download_shows_what_was_downloaded(cli, tmp_path, monkeypatch):
    def fake_download(name, folder, *, force, progress):
        progress("cifar-10-binary.tar.gz", 170052171, 170052171)
        assert force
        return [tmp_path / "cifar10" / "cifar-10-binary.tar.gz"]

    monkeypatch.setattr("fedtilt.data.download", fake_download)
    assert "cifar10: verified, in" in cli("download", "cifar10", "--force").output


def test_verify(cli, tmp_path):
    assert "no data set is downloaded in" in cli("verify").output
    assert "nothing to verify" in cli("verify", "digits").output
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(b"half")
    result = cli("verify")
    assert "damaged" in result.output
    assert isinstance(result.exception, InputError)
    assert "fedtilt data download cifar10 --force" in str(result.exception)


def test_the_chart_shows_every_class_of_every_client():
    fed = Federation.build(load("digits"), clients=20, outliers="flips", outlier_clients=0.5)
    lines = chart_lines(fed)
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "20 clients" in lines[0]
    rows = {line.split()[0]: line[10:].ljust(40) for line in lines if line.startswith(" " * 7)}
    for k in range(10):
        has_samples = [rows[str(k)][2 * n] != "·" for n in range(20)]
        assert has_samples == (fed.class_counts()[:, k] > 0).tolist()
    marks = next(line for line in lines if line.startswith("outliers"))[10:].ljust(40)
    assert [marks[2 * n] == "▲" for n in range(20)] == fed.has_outliers.tolist()


@pytest.mark.parametrize("width", [24, 40, 80, 200])
@pytest.mark.parametrize("clients", [1, 9, 100, 500])
def test_the_chart_fits_any_width(width, clients):
    x, y = torch.zeros(5000, 1), torch.arange(5000) % 10
    data = Dataset(name="wide", x_train=x, y_train=y, x_test=x, y_test=y, classes=10)
    fed = Federation.build(data, clients=clients, partition="dirichlet", alpha=5.0)
    lines = chart_lines(fed, width)
    assert max(len(line.rstrip()) for line in lines) <= width
    cells = sum(len(line[10:].rstrip()) for line in lines if line.startswith(" samples  "))
    assert cells == min(clients, 300) * (2 if min(clients, 300) * 2 <= width - 10 else 1)
    assert ("first 300 of 500" in " ".join(lines[-5:])) == (clients == 500)


def test_the_chart_names_the_clients_of_a_column():
    assert "clients: 0 = 1, 1 = 2" in "\n".join(chart_lines(Federation.build(load("toy-2"), partition="column")))
