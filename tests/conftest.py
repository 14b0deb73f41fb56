import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Tests that draw from torch's global generator draw the same every time."""
    torch.manual_seed(0)
