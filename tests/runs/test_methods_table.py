"""One table, all methods × all attacks: each runs, stays finite, repeats its bits and resumes."""

from functools import partial
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.attacks.attack import KINDS
from fedtilt.engine.client_states import FederationState
from fedtilt.methods import PRESETS
from fedtilt.runs.export import export_model

FED = ft.Federation.build(
    ft.data.load("digits"), clients=6, classes_per_client=4, max_train=20, outliers="flips", seed=0
)
MODEL = partial(ft.models.mlp, hidden=(6,))
REQUIRED = {"fedtilt": {"tau": 2.0, "lam": -1.0}, "term": {"t": 2.0}, "fedrep": {"head_epochs": 1}}
REQUIRED |= {"fedminmax": {"weighting": "equal"}, "fedas": {"weighting": "equal"}}  # attackers claim any weight
METHODS = {name: preset(**REQUIRED.get(name, {})) for name, preset in PRESETS.items()}
FEW = ("none", "alie", "backdoor")  # nothing, forged updates from the honest ones, and poisoned data
RECIPE = {"rounds": 3, "participation": 0.5, "epochs": 1, "lr": 0.05, "workers": 0}


def states(state: FederationState) -> dict[str, torch.Tensor]:
    """All tensors of a federation by name."""
    tensors = {f"{method}/{name}": t for method, kept in state.server.items() for name, t in kept.to_tensors().items()}
    for method, client in state.client_states.owners():
        kept = state.client_states.get((method, client))
        tensors |= {f"{method}/{client}/{name}": t.clone() for name, t in kept.to_tensors().items()}
    return tensors


def attacked(kind: str) -> dict:
    return {} if kind == "none" else {"attack": ft.Attack(kind=kind, share=0.2)}


def check_table(kind: str) -> None:
    """All methods together, to the end, and again from a state between two rounds."""
    methods, recipe = list(METHODS.values()), RECIPE | attacked(kind)
    *_, last = ft.simulate(methods, FED, MODEL, **recipe)
    expected = states(last.state)
    assert {name.split("/")[0] for name in expected} == set(METHODS)
    assert all(tensor.isfinite().all() for tensor in expected.values())
    first = next(iter(ft.simulate(methods, FED, MODEL, **recipe)))
    *_, resumed = ft.simulate(methods, FED, MODEL, state=first.state, **recipe)
    again = states(resumed.state)
    assert again.keys() == expected.keys()
    different = [name for name, tensor in expected.items() if not torch.equal(tensor, again[name])]
    assert different == []


@pytest.mark.parametrize("kind", FEW)
def test_methods_and_attacks(kind: str) -> None:
    check_table(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FEW])
def test_methods_and_other_attacks(kind: str) -> None:
    check_table(kind)


def test_a_method_alone_has_the_bits_that_it_has_beside_others() -> None:
    *_, together = ft.simulate(list(METHODS.values()), FED, MODEL, **RECIPE)
    for name in ("scaffold", "afl", "fedrep", "pfedme"):
        *_, alone = ft.simulate([METHODS[name]], FED, MODEL, **RECIPE)
        expected = {key: t for key, t in states(together.state).items() if key.startswith(f"{name}/")}
        assert all(torch.equal(t, expected[key]) for key, t in states(alone.state).items())


def test_a_run_folder_of_all_methods_is_resumed_and_exported(tmp_path: Path) -> None:
    methods = list(METHODS.values())
    ft.run(methods, FED, MODEL, out=tmp_path / "whole", **RECIPE)
    ft.run(methods, FED, MODEL, out=tmp_path / "parts", **(RECIPE | {"rounds": 2}))
    result = ft.run(methods, FED, MODEL, out=tmp_path / "parts", **(RECIPE | {"rounds": 3, "workers": 2}))
    for name in ("scaffold", "fedper", "pfedme"):
        client = next(n for n in range(6) if export_model_or_none(tmp_path / "whole", name, n))
        whole, parts = (export_model(tmp_path / run, name, client).tensors for run in ("whole", "parts"))
        assert all(torch.equal(tensor, parts[key]) for key, tensor in whole.items())
        model = result[name].model(client).state_dict()
        assert all(torch.equal(tensor, model[key]) for key, tensor in whole.items())
    shared = export_model(tmp_path / "whole", "fedper")
    assert shared.sources == {"local_parameters": "initial"}
    assert shared.tensors.keys() == result["fedper"].shared.state_dict().keys()


def export_model_or_none(folder: Path, method: str, client: int) -> dict | None:
    try:
        return export_model(folder, method, client).tensors
    except ft.InputError:
        return None  # it was never selected
