"""The CUDA kernels of the stacked way agree with the loop; a stack that does not fit is split, to the same bits."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedtilt import models
from fedtilt.training import LocalJob, fused_mlp, make_batches, stacked
from fedtilt.training.sequential import SequentialNet


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_kernels_agree_with_the_loop() -> None:
    script = Path(__file__).parents[1] / "helpers" / "interpreted_kernels.py"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 13
    for name, case in found.items():
        assert case["by kernels"], name
        assert case["moved"] > 1e-3, name
        if name.endswith("float32"):
            assert case["error"] < 1e-6, name
        else:
            assert 1e-3 < case["drift"] < 0.3, name  # of the way a model went: eight bits, and large steps


def _hooked(model: nn.Sequential) -> nn.Sequential:
    model[1].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return model


def _tied(model: nn.Sequential) -> nn.Sequential:
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
        _hooked(nn.Sequential(nn.Flatten(), nn.Linear(64, 4))),
        _tied(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        ),
        models.cnn((1, 8, 8), 4)[0],
    ],
)
def test_what_is_no_chain_is_not_taken_for_one(model: nn.Module) -> None:
    assert SequentialNet.of(model, (1, 8, 8)) is None
    assert not fused_mlp.supports(model)


def test_a_chain_places_every_parameter_once() -> None:
    model = models.cnn((3, 9, 8), 4, channels=(5, 6))
    chain = SequentialNet.of(model, (3, 9, 8))
    assert chain is not None
    assert len(chain.place.unique()) == len(chain.place) == sum(p.numel() for p in model.parameters())
    assert chain.place.max() < chain.length
    assert [(b.height, b.width, b.fan_in, b.fan_out) for b in chain.blocks] == [
        (9, 8, 4, 5),
        (4, 4, 5, 6),
    ]  # 3 channels and one of zeros


def test_a_stack_that_does_not_fit_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.mlp((4,), 2, hidden=(3,))
    received = models.flat(model)
    x, y = torch.randn(11, 4, generator=torch.Generator().manual_seed(0)), torch.arange(11) % 2
    feeds = [make_batches(x, y, seed=0, round=1, client=c, epochs=1, batch_size=4) for c in range(7)]
    jobs = [LocalJob(start=received, anchor=received, prox=0.1, tau=1.0, lam=-1.0, lr=0.1) for _ in feeds]
    whole = stacked.train(model, jobs, feeds)
    sizes = []
    together = stacked._together

    def little_memory(model: nn.Module, jobs: list, batches: list, precision: str) -> list:
        sizes.append(len(jobs))
        if len(jobs) > 2:
            raise torch.cuda.OutOfMemoryError
        return together(model, jobs, batches, precision)

    monkeypatch.setattr(stacked, "_together", little_memory)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    parts = stacked.train(model, jobs, feeds)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
    assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]  # halved until it fits, and remembered


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_a_chip_with_less_shared_memory_gets_fewer_stages() -> None:
    from fedtilt.training.stacked.launch import Tile, _block_values, _fitted, _layer_bytes

    def block(kernel: str, kib: int) -> Tile:
        tile = Tile(64, 128, 32, 8, 3)
        return _fitted(tile, lambda tile: 4 * _block_values(kernel, tile), kib * 1024, narrower=False)

    # 256 positions × 32 and 32 × 128, in float32: 48 KiB a stage
    assert [block("forward", kib).stages for kib in (200, 99, 16)] == [3, 2, 1]
    assert block("slope", 99).stages == 2  # 64 × 32 and 64 × 128: 40 KiB
    # 64 samples and 128 classes × 256, in two stages: 384 KiB
    head = _fitted(Tile(0, 256, 0, 4, 2), lambda tile: _layer_bytes("head", tile, 64, 128), 180 * 1024)
    assert (head.columns, head.stages) == (64, 2)
