"""Fixtures for all tests."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.helpers import chromium

collect_ignore_glob = ["helpers/*"]  # no tests and no doctests; some need Flower


def pytest_configure(config: pytest.Config) -> None:
    """Hide CUDA devices, so that `auto` is the CPU on every machine; `-m cuda` runs the CUDA tests. Keep Ray local."""
    if "cuda" not in config.getoption("markexpr").replace("not cuda", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray listens on loopback alone; it reads this when imported
    os.environ["FEDTILT_ALLOW_ROOT"] = "1"  # tests may run as root, as in a container
    gc.disable()  # until the tests are collected: it would take a third of that time


def pytest_collection_finish() -> None:
    """Collect garbage again, but not what imports and the collection of tests have made."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed torch's global generator, which some tests draw from."""
    torch.manual_seed(0)


class CommandResult(NamedTuple):
    """Exit code and output of one command."""

    code: int
    out: str
    err: str


@pytest.fixture
def fedtilt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., CommandResult]:
    """Run the command line in an empty folder, with 100 columns."""
    from fedtilt import cli

    return _command(cli.main, monkeypatch, capsys, tmp_path)


@pytest.fixture
def reproduce(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., CommandResult]:
    """Run `python -m reproduction` in an empty folder, with 100 columns."""
    from reproduction import command

    return _command(command.main, monkeypatch, capsys, tmp_path)


def _command(
    main: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> Callable[..., CommandResult]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        return CommandResult(int(exit_.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    """One browser for all tests; downloads are in `window.downloads`."""
    if not (chromium.CHROMIUM and chromium.DRIVER):
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    with chromium.browser(tmp_path_factory.mktemp("downloads")) as opened:
        yield opened
