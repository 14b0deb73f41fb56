"""A run with a loss of one's own can be resumed with that loss only."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedtilt as ft


def test_another_lambda_is_rejected(tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20)

    def run(power: float) -> ft.Result:
        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(outputs, labels, reduction="none") ** power

        return ft.run(
            [ft.fedavg()], federation, ft.models.logistic, rounds=2, epochs=1, loss=loss, out=tmp_path / "run"
        )

    assert run(2.0)["fedavg"].accuracy == run(2.0)["fedavg"].accuracy
    with pytest.raises(ft.InputError, match="was started with another loss function; restore its code, or start"):
        run(1.5)
