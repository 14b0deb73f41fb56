"""The training settings: one list for Python, specs and docs."""

import dataclasses
import inspect

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.config.setting_fields import settings_of
from fedtilt.engine.settings import TrainSettings, train_settings

NAMES = [setting.name for setting in dataclasses.fields(TrainSettings)]


@pytest.mark.parametrize("function", [ft.run, ft.simulate])
def test_functions_list_every_setting_with_its_default_and_meaning(function) -> None:
    parameters = inspect.signature(function).parameters
    for setting in dataclasses.fields(TrainSettings):
        assert parameters[setting.name].default == setting.default
        assert f"        {setting.name}: {setting.metadata['meaning']}" in function.__doc__


OF_OTHERS = ("seed", "device", "privacy", "attack")  # tables, or keys of the spec itself


def test_the_train_table_of_a_spec_has_every_setting_but_those_of_other_tables() -> None:
    assert list(settings_of(TrainSettings)) == [name for name in NAMES if name not in OF_OTHERS]


def test_values_of_python_become_plain_ones() -> None:
    settings = ft.TrainSettings(device=torch.device("cpu"), seed=np.int64(2**60 + 1), lr=np.float32(0.5), local=["a"])  # type: ignore[arg-type]
    assert (settings.device, settings.seed, settings.lr, settings.local) == ("cpu", 2**60 + 1, 0.5, ("a",))
    assert {type(value) for value in (settings.device, settings.seed, settings.lr)} == {str, int, float}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"round": 3}, "round is not a training setting; did you mean rounds?"),
        ({"optimiser": "adam"}, "optimiser is not a training setting; did you mean optimizer?"),
        ({"zzz": 1}, "zzz is not a training setting; choose from rounds, participation, "),
        ({"rounds": 0}, "rounds must be a whole number ≥ 1, got 0"),
        ({"lr": 0}, "lr must be a number > 0, got 0"),
        ({"lr_personal": float("inf")}, "lr_personal must be a number > 0, got inf"),
        ({"participation": 1.5}, "participation must be a number > 0 and ≤ 1, got 1.5"),
        ({"lr": None}, "lr must be a number, got None"),
        ({"precision": "fp8"}, "unknown precision 'fp8'; choose one of float32, tf32, bfloat16"),
        ({"cluster": 6379}, "cluster must be text, got 6379"),
        ({"local": {"head": 1}}, "local must be a list, got {'head': 1}"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        train_settings(settings)
