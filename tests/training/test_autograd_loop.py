"""The autograd loop: mixed precision for any model, and no copy of what it does not train."""

import torch
from torch import Tensor, nn

from fedtilt.models import parameters_to_vector
from fedtilt.optimizers import SGD
from fedtilt.parts import buffers_to_vector
from fedtilt.training import LocalJob, autograd_loop, make_batches


class Net(nn.Module):
    """A frozen layer, a normalisation over the batch and a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 24).requires_grad_(False)
        self.norm, self.lstm, self.head = nn.BatchNorm1d(24), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.frozen(x.flatten(1))
        return self.head(self.lstm(self.norm(features).reshape(-1, 3, 8))[0][:, -1])


NAMES = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")


def trained(model: Net, precision: str) -> tuple[Tensor, Tensor]:
    x, y = torch.randn(40, 1, 8, 8), torch.arange(40) % 4
    batches = make_batches(x, y, seed=0, round=1, client=0, epochs=2, batch_size=10)
    seen_by_loss = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen_by_loss.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    start = parameters_to_vector(model)
    job = LocalJob(
        start=start, anchor=start, prox=0.1, tau=1.0, lam=-1.0, lr=0.05, buffer_names=NAMES,
        buffers=buffers_to_vector(model, NAMES), optimizer=SGD(momentum=0.9), loss=loss,
    )  # fmt: skip
    (result,) = autograd_loop.train(model, [job], [batches], precision=precision)
    assert result.parameters.dtype == torch.float32
    assert set(seen_by_loss) == {torch.float32}
    return result.parameters, result.buffers


def test_bfloat16_is_for_products_and_the_rest_is_float32() -> None:
    """On the CPU here; a run allows it on CUDA alone, by the same context."""
    results = {}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        results[precision] = trained(Net(), precision)
    parameters, buffers = results["float32"]
    half, half_buffers = results["bfloat16"]
    assert 1e-5 < (half - parameters).abs().max() < 0.05
    assert 1e-5 < (half_buffers - buffers).abs().max() < 0.05
    assert half_buffers.dtype == torch.float32


def test_frozen_parameters_are_not_copied_and_the_model_does_not_change() -> None:
    torch.manual_seed(0)
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    types_and_storage: list = []
    model.frozen.register_forward_hook(
        lambda layer, _, output: types_and_storage.append((output.dtype, layer.weight.data_ptr()))
    )
    trained(model, "bfloat16")
    assert set(types_and_storage) == {(torch.bfloat16, model.frozen.weight.data_ptr())}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
