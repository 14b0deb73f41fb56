import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    """Tests run on the CPU, and `auto` is the CPU, on machines that have more too; `-m cuda` runs those of CUDA."""
    if "cuda" not in config.getoption("markexpr").replace("not cuda", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Tests that draw from torch's global generator draw the same every time."""
    torch.manual_seed(0)


class Said(NamedTuple):
    """Exit code and output of one call of the command line."""

    code: int
    out: str
    err: str


@pytest.fixture
def fedtilt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Said]:
    """The command line, in an empty folder and on a terminal of 100 columns."""
    from fedtilt import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["fedtilt", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return Said(int(end.value.code or 0), printed.out, printed.err)

    return call
