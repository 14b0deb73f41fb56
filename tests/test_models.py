from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedtilt import models
from fedtilt.errors import InputError
from fedtilt.files import write_tensors


def test_the_models_of_the_paper() -> None:
    linear = [(m.in_features, m.out_features) for m in models.mlp() if isinstance(m, nn.Linear)]
    assert linear == [(784, 200), (200, 200), (200, 10)]
    conv = [(m.in_channels, m.out_channels) for m in models.cnn() if isinstance(m, nn.Conv2d)]
    assert conv == [(3, 32), (32, 64), (64, 128)]
    assert models.cnn((1, 28, 28), 7)(torch.zeros(2, 1, 28, 28)).shape == (2, 7)
    assert models.mlp((64,), 3, hidden=(5,))(torch.zeros(2, 64)).shape == (2, 3)
    assert len(list(models.logistic((2,), 2).parameters())) == 2


def test_building_depends_on_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    one, same, other = (models.parameters_to_vector(models.build(models.mlp, (4,), 2, seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_is_a_module_or_a_function() -> None:
    module = nn.Linear(4, 2)
    built = models.build(module, (4,), 2, seed=0)
    assert built is not module
    assert torch.equal(models.parameters_to_vector(built), models.parameters_to_vector(module))
    assert isinstance(models.build(lambda: nn.Linear(4, 2), (4,), 2, 0), nn.Linear)
    assert models.build(lambda classes: nn.Linear(4, classes), (4,), 3, 0).out_features == 3


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm, nn.Identity()])
def test_a_model_of_the_user_stays_as_it_is(norm: Callable[[nn.Module], nn.Module]) -> None:
    """Also one that a function returns every time, and one with a weight computed from parameters."""
    own = nn.Sequential(nn.Flatten(), norm(nn.Linear(4, 1)))
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    x = torch.randn(3, 4)
    for source in (own, lambda: own):
        model = models.build(source, (4,), 2, seed=0)
        assert model(x).shape == (3, 2)
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        assert own(x).shape == (3, 1)
    for name, tensor in own.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_sizes_may_be_numpy_integers() -> None:
    assert models.mlp((4,), np.int64(2), hidden=np.array([3]))[1].out_features == 3


def test_flat_and_back() -> None:
    model = models.cnn((1, 8, 8), 3, channels=(2, 4))
    vector = torch.randn(sum(p.numel() for p in model.parameters()))
    changed = models.with_weights(model, vector)
    assert torch.equal(models.parameters_to_vector(changed), vector)
    stack = models.vector_to_parameters(model, vector.expand(3, -1))
    assert all(stack[name].shape == (3, *p.shape) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)),
            "layer '1' (BatchNorm1d) has no running statistics, so it evaluates a sample by its neighbours; build it "
            "with track_running_stats=True, or use GroupNorm",
        ),
        (lambda: nn.Flatten(), "has no parameters"),
        (lambda: nn.Linear(2, 2).double(), "float32, got torch.float64"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "has no parameters to train: all 2 are frozen"),
        (lambda: models.mlp((4,), 2, hidden=(0,)), "every size in hidden must be a whole number ≥ 1, got 0"),
        (lambda: models.mlp((4,), 2, hidden=64), "hidden must be a list of sizes, such as (64, 64), got 64"),
        (lambda: models.mlp((4,), 0), "classes must be a whole number ≥ 1, got 0"),
        (lambda: models.cnn((1, 8, 8), 2, channels=()), "channels must list a size for every block"),
        ("mlp", "model must be an nn.Module or a function such as ft.models.mlp, got 'mlp'"),
        (nn.Linear, "the model function Linear needs 'in_features', but is called with input_shape and classes only"),
        (nn.Linear, "pass a function that needs no more, such as lambda: Linear(...)"),
        (
            lambda classes, width: None,
            "<lambda> needs 'width', but is called with input_shape and classes only; give width a d",
        ),
        (lambda: None, "the model function <lambda> returned a NoneType; it must return an nn.Module"),
        (lambda: nn.DataParallel(nn.Linear(2, 2)), "a DataParallel does not take other parameters"),
        (lambda: models.cnn((4,), 2), "cnn needs images"),
        (lambda: models.cnn((1, 4, 4), 2), "too small for 3 blocks"),
    ],
)
def test_unsuitable_models_are_refused(source, message: str) -> None:
    with pytest.raises(InputError) as error:
        models.build(source, (4,), 2, seed=0)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "metadata",
    [
        "resnet",
        '"mlp"',
        '{"name": "resnet"}',
        '{"name": "mlp"}',
        '{"name": "logistic", "input_shape": [9], "classes": 2}',
    ],
)
def test_weights_that_do_not_match_their_metadata_are_refused(tmp_path: Path, metadata: str) -> None:
    write_tensors(tmp_path / "m.safetensors", models.logistic((4,), 3).state_dict(), {"model": metadata})
    with pytest.raises(InputError, match="m.safetensors do not match its metadata .*; export it again"):
        models.load(tmp_path / "m.safetensors")
