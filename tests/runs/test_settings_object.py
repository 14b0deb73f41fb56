"""Training settings as an object that is built once, shared and printed; keywords beside it override it."""

import dataclasses
from typing import Any

import pytest
import torch

import fedtilt as ft

SETTINGS = ft.TrainSettings(rounds=2, participation=0.5, epochs=1, lr=0.05, workers=0, device="cpu")


def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20)


def trained(**settings: Any) -> torch.Tensor:
    *_, last = ft.simulate([ft.fedavg()], federation(), ft.models.mlp, **settings)
    (model,) = last.state.shared.values()
    return model


def keywords(settings: ft.TrainSettings) -> dict[str, Any]:
    given = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {
        field.name: given[field.name] for field in dataclasses.fields(settings) if given[field.name] != field.default
    }


def test_an_object_trains_bit_identical_models_to_keywords() -> None:
    assert torch.equal(trained(settings=SETTINGS), trained(**keywords(SETTINGS)))


def test_a_keyword_beside_it_overrides_it() -> None:
    overridden = trained(settings=SETTINGS, lr=0.1, rounds=1)
    assert torch.equal(overridden, trained(settings=dataclasses.replace(SETTINGS, lr=0.1, rounds=1)))
    assert not torch.equal(overridden, trained(settings=SETTINGS, rounds=1))
    with pytest.raises(ft.InputError, match="rounds must be a whole number ≥ 1, got 0"):
        trained(settings=SETTINGS, rounds=0)


def test_run_takes_it_and_its_result_is_that_of_keywords() -> None:
    results = [
        ft.run([ft.fedavg()], federation(), ft.models.mlp, progress=False, **settings)
        for settings in ({"settings": SETTINGS, "rounds": 1}, keywords(SETTINGS) | {"rounds": 1})
    ]
    assert results[0]["fedavg"].accuracy == results[1]["fedavg"].accuracy
    assert "rounds=2, participation=0.5" in repr(SETTINGS)


def test_tune_takes_it_and_recommends_it_with_its_setting() -> None:
    data = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20, validation=0.3)
    tuned, expected = (
        ft.tune([ft.fedavg()], data, ft.models.mlp, over={"batch_size": [5]}, **settings)
        for settings in ({"settings": SETTINGS, "rounds": 1}, keywords(SETTINGS) | {"rounds": 1})
    )
    assert tuned.settings == expected.settings
    assert tuned.train == expected.train
    assert {"rounds": 1, "lr": 0.05, "workers": 0}.items() <= tuned.train.items()
    with pytest.raises(ft.InputError, match="lr has no effect: no method of this run takes it"):
        ft.tune([ft.fedavg(lr=0.1)], data, ft.models.mlp, over={"batch_size": [5]}, settings=SETTINGS)


def test_what_is_no_such_object_and_what_has_no_effect_is_rejected() -> None:
    with pytest.raises(ft.InputError, match="settings must be an ft.TrainSettings, got {'rounds': 5}; give others as"):
        trained(settings={"rounds": 5})
    with pytest.raises(ft.InputError, match="lr has no effect: no method of this run takes it"):
        ft.simulate([ft.fedavg(lr=0.1)], federation(), ft.models.mlp, settings=SETTINGS)
    *_, last = ft.simulate(
        [ft.fedavg(lr=0.1)], federation(), ft.models.mlp, settings=dataclasses.replace(SETTINGS, lr=0.01)
    )
    assert last.number == 2
