"""Clients with two classes each, two of ten bad: no update is like the others, and a good model is still possible."""

from functools import partial

import pytest

import fedtilt as ft
from fedtilt.methods.aggregators import RootSelected

TRAIN = {"rounds": 15, "participation": 1.0, "epochs": 2, "batch_size": 10, "lr": 0.05, "eval_every": 15, "workers": 0}


def run(attack: ft.Attack) -> ft.Result:
    federation = ft.Federation.build(ft.data.load("digits"), clients=10, classes_per_client=2)
    methods = [
        ft.fedavg(name="mean"),
        ft.fedavg(name="root", aggregator=RootSelected(bad_share=0.2)),
        ft.fedtilt(tau=1.0, lam=0.0, mu=0.01),
    ]
    return ft.run(methods, federation, partial(ft.models.mlp, hidden=(50,)), attack=attack, screen=3.0, **TRAIN)


@pytest.mark.parametrize("attack", [{"kind": "label_flip", "strength": 2.9}, {"kind": "sign_flip"}, {"kind": "mimic"}])
def test_a_root_set_or_personal_models_withstand_what_the_screened_mean_does_not(attack: dict) -> None:
    result = run(ft.Attack(share=0.2, **attack))
    assert result["root"].accuracy > 85
    assert result["root"].accuracy > result["mean"].accuracy + 8
    assert result["fedtilt"].accuracy > 98


def test_a_backdoor_is_not_in_the_personal_models() -> None:
    result = run(ft.Attack(kind="backdoor", share=0.2))
    assert result["mean"].attack_success > 60
    assert result["fedtilt"].attack_success < 10
