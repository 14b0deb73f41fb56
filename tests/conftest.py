import os

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    """Tests run on the CPU, and `auto` is the CPU, on machines that have more too; `-m cuda` runs those of CUDA."""
    if config.getoption("markexpr") != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Tests that draw from torch's global generator draw the same every time."""
    torch.manual_seed(0)
