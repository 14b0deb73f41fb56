"""Weights to start from: all of a model or a part of it; weights of another model are refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedtilt as ft
from fedtilt.engine.initial_model import build_initial_model, load_initial_weights
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputWarning
from tests.helpers.recipe_model import RecipeModel

SHAPE, CLASSES = (4,), 3


@pytest.fixture
def trained() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    state = RecipeModel(SHAPE, CLASSES).state_dict()
    return {
        name: torch.rand(value.shape, generator=rng) if value.is_floating_point() else value + 7
        for name, value in state.items()
    }


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    save_file(tensors, folder / "w.safetensors")
    return str(folder / "w.safetensors")


def test_all_parameters_and_buffers_are_loaded(trained: dict[str, torch.Tensor], tmp_path: Path) -> None:
    net, parts = build_initial_model(RecipeModel, SHAPE, CLASSES, TrainSettings(init=write(tmp_path, trained)))
    for name, value in net.state_dict().items():
        assert torch.equal(value, trained[name])
    same, _ = build_initial_model(RecipeModel, SHAPE, CLASSES, TrainSettings(init=net))
    assert all(torch.equal(value, trained[name]) for name, value in same.state_dict().items())
    assert parts.constants != build_initial_model(RecipeModel, SHAPE, CLASSES, TrainSettings())[1].constants


def test_a_part_is_loaded_and_the_rest_is_named(trained: dict[str, torch.Tensor], tmp_path: Path) -> None:
    backbone = {name: value for name, value in trained.items() if not name.startswith("head")}
    with pytest.warns(InputWarning) as warned:
        net, _ = build_initial_model(RecipeModel, SHAPE, CLASSES, TrainSettings(init=write(tmp_path, backbone)))
    assert "has 9 of 11 tensors of the model: 'backbone.weight', 'backbone.bias', " in str(warned[0].message)
    assert "'head.weight', 'head.bias' keep the values of a new model" in str(warned[0].message)
    new, _ = build_initial_model(RecipeModel, SHAPE, CLASSES, TrainSettings())
    for name, value in net.state_dict().items():
        assert torch.equal(value, trained[name] if name in backbone else new.state_dict()[name])


def test_a_tied_parameter_may_have_one_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

    net, source = Tied(), nn.Module()
    source.second = nn.Linear(3, 3, bias=False)
    load_initial_weights(net, source)  # without a warning
    assert torch.equal(net.first.weight, source.second.weight)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"head.weight": torch.zeros(10, 8)}, "'head.weight' has shape (10, 8), and the model's has (3, 8); remove it"),
        ({"tail.weight": torch.zeros(2)}, "has 'tail.weight', which the model lacks; remove what is not of this model"),
        ({"head.bias": torch.full((3,), torch.nan)}, "'head.bias' has values that are not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    trained: dict[str, torch.Tensor], tmp_path: Path, changed: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(ft.InputError) as error:
        load_initial_weights(RecipeModel(SHAPE, CLASSES), write(tmp_path, trained | changed))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(ft.InputError, match=r"init, a Sequential, is of another model: it has '1.weight', '1.bias', "):
        load_initial_weights(RecipeModel(SHAPE, CLASSES), ft.models.mlp(SHAPE, CLASSES))


def test_a_run_does_not_go_on_with_other_weights(trained: dict[str, torch.Tensor], tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("toy-2"), clients=2, partition="iid")
    trained |= {"backbone.weight": torch.rand(12, 2), "head.weight": torch.rand(2, 8), "head.bias": torch.rand(2)}
    settings = {"rounds": 1, "epochs": 1, "workers": 0, "out": tmp_path / "run"}
    ft.run([ft.fedavg()], federation, RecipeModel, init=write(tmp_path, trained), **settings)
    for name, what in (("head.bias", "another initial model"), ("backbone.bias", "another backbone.bias, which")):
        other = write(tmp_path, trained | {name: trained[name] + 1})
        with pytest.raises(ft.InputError, match=f"was started with {what}"):
            ft.run([ft.fedavg()], federation, RecipeModel, init=other, **settings)
