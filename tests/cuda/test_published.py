"""Published methods on a GPU: bit-identical twice, and the models of the CPU up to rounding."""

import functools
from collections.abc import Callable

import pytest
import torch

import fedtilt as ft
from tests.methods.published.test_all import FED, METHODS, MODEL, RECIPE, normalised

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("key", METHODS)
@pytest.mark.parametrize("model", [MODEL, normalised], ids=["mlp", "normalised"])
def test_a_gpu_gives_the_same_bits_twice_and_the_models_of_the_cpu(key: str, model: Callable[..., object]) -> None:
    method = METHODS[key]()
    run = functools.partial(ft.simulate, [method], FED, model, **(RECIPE | {"lr": 0.02}))
    first, second = (list(run(device="cuda"))[-1].state for _ in range(2))
    for name, tensor in first.server[method.name].to_tensors().items():
        assert torch.equal(second.server[method.name].to_tensors()[name], tensor), name
        assert tensor.isfinite().all()
    if model is MODEL:  # dropout draws other numbers on a GPU
        expected = list(run(device="cpu"))[-1].state.server[method.name].parameters
        torch.testing.assert_close(first.server[method.name].parameters.cpu(), expected, rtol=1e-2, atol=1e-3)
