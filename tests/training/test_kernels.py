"""The CUDA kernels of the stacked backend agree with the autograd loop; a stack larger than memory is split."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtilt import models
from fedtilt.training import LocalJob, fused_mlp, make_batches, stacked
from fedtilt.training.sequential import SequentialNet


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize(("size", "cases"), [("small", 5), pytest.param("large", 13, marks=pytest.mark.slow)])
def test_kernels_agree_with_the_autograd_loop(size: str, cases: int) -> None:
    script = Path(__file__).parents[1] / "helpers" / "interpreted_kernels.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": ""}
    process = subprocess.run(
        [sys.executable, script, size], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert len(results) == cases
    for name, case in results.items():
        assert case["uses kernels"], name
        assert case["moved"] > 1e-3, name
        if name.endswith("float32"):
            assert case["error"] < 1e-6, name
        else:
            assert 1e-3 < case["relative error"] < 0.3, name  # eight bits, and large steps


def _with_hook(model: nn.Sequential) -> nn.Sequential:
    model[1].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return model


def _with_forward(model: nn.Sequential) -> nn.Sequential:
    model[1].forward = types.MethodType(lambda layer, x: 2 * F.linear(x, layer.weight, layer.bias), model[1])
    return model


def _tie_weights(model: nn.Sequential) -> nn.Sequential:
    model[3].weight = model[1].weight
    return model


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 4, bias=False)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 4)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=0), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, 4))),
        _with_hook(nn.Sequential(nn.Flatten(), nn.Linear(64, 4))),
        _with_forward(nn.Sequential(nn.Flatten(), nn.Linear(64, 4))),
        _tie_weights(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        ),
        models.cnn((1, 8, 8), 4)[0],
    ],
)
def test_other_models_are_not_supported(model: nn.Module) -> None:
    assert SequentialNet.from_module(model, (1, 8, 8)) is None
    start = models.parameters_to_vector(model)
    job = LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1)
    assert fused_mlp.unsupported_reason(model, job, "cpu") is not None


def test_every_parameter_has_one_place() -> None:
    model = models.cnn((3, 9, 8), 4, channels=(5, 6))
    net = SequentialNet.from_module(model, (3, 9, 8))
    assert net is not None
    views = net.views(torch.arange(2 * net.row_length).reshape(2, -1))
    assert [view[0].numel() for view in views] == [p.numel() for p in model.parameters()]
    places = torch.cat([view.flatten() for view in views])
    assert len(places.unique()) == len(places) == 2 * sum(p.numel() for p in model.parameters())
    assert [(b.height, b.width, b.in_channels, b.out_channels) for b in net.blocks] == [
        (9, 8, 4, 5),
        (4, 4, 5, 6),
    ]  # 3 channels are padded to 4


def test_a_stack_larger_than_memory_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.mlp((4,), 2, hidden=(3,))
    received = models.parameters_to_vector(model)
    x, y = torch.randn(11, 4, generator=torch.Generator().manual_seed(0)), torch.arange(11) % 2
    batches = [make_batches(x, y, seed=0, round=1, client=c, epochs=1, batch_size=4) for c in range(7)]
    jobs = [LocalJob(start=received, anchor=received, prox=0.1, tau=1.0, lam=-1.0, lr=0.1) for _ in batches]
    whole = stacked.train(model, jobs, batches)
    sizes = []
    train_stack = stacked._train_stack

    def run_out_of_memory(model: nn.Module, jobs: list, batches: list, precision: str) -> list:
        sizes.append(len(jobs))
        if len(jobs) > 2:
            raise torch.cuda.OutOfMemoryError
        return train_stack(model, jobs, batches, precision)

    monkeypatch.setattr(stacked, "_train_stack", run_out_of_memory)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    parts = stacked.train(model, jobs, batches)
    assert all(torch.equal(a.parameters, b.parameters) for a, b in zip(whole, parts, strict=True))
    assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]  # halved until it fits, and remembered


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_less_shared_memory_gives_fewer_stages() -> None:
    from fedtilt.training.stacked.launch import Tile, _conv_operand_count, _fit_tile, _linear_operand_bytes

    def conv_tile(kernel: str, kib: int) -> Tile:
        tile = Tile(64, 128, 32, 8, 3)
        return _fit_tile(tile, lambda tile: 4 * _conv_operand_count(kernel, tile), kib * 1024, narrower=False)

    # 256 positions × 32 and 32 × 128, in float32: 48 KiB a stage
    assert [conv_tile("forward", kib).stages for kib in (200, 99, 16)] == [3, 2, 1]
    assert conv_tile("weight_grad", 99).stages == 2  # 64 × 32 and 64 × 128: 40 KiB
    # 64 samples and 128 classes × 256, in two stages: 384 KiB
    head = _fit_tile(Tile(0, 256, 0, 4, 2), lambda tile: _linear_operand_bytes("head", tile, 64, 128), 180 * 1024)
    assert (head.columns, head.stages) == (64, 2)
