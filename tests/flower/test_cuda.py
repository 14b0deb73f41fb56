"""Sites with a GPU train on it, and get the simulator's models."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.flower import Task
from fedtilt.models import ModelSource
from fedtilt.spec import federation_of, load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")]


class FunctionalDropout(nn.Module):
    """Dropout without a layer: models of this kind cannot be stacked."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(*input_shape, 16), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.hidden(x).relu(), 0.2, self.training))


@pytest.mark.parametrize("model", [None, FunctionalDropout])
def test_sites_train_on_the_gpu(model: ModelSource | None, spec: Path, tmp_path: Path) -> None:
    assert torch.cuda.is_available(), "this test needs a CUDA device"
    Deployment(Task(spec=spec, model=model), tmp_path).run()
    deployed, loaded = RunFolder(tmp_path / "run/seed-0").latest(), load(spec)
    *_, simulated = ft.simulate(
        [m.to_method() for m in loaded.methods], federation_of(loaded, 0),
        model or (lambda input_shape, classes: ft.models.mlp(input_shape, classes, hidden=(8,))),
        device="cuda", rounds=2, participation=1.0, epochs=2, lr=0.1,
    )  # fmt: skip
    assert deployed is not None
    torch.testing.assert_close(
        deployed.server["fedtilt"].parameters,
        simulated.state.server["fedtilt"].parameters.cpu(),
        rtol=1e-4,
        atol=1e-6,
    )
    for site in (0, 1):
        (path,) = (tmp_path / "state" / str(site)).rglob("round-00002.safetensors")
        personal = simulated.state.client_states.get(("fedtilt", site)).personal
        torch.testing.assert_close(load_file(path)["personal"], personal.cpu(), rtol=1e-4, atol=1e-6)
