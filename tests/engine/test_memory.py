"""A run that does not fit is refused with the figures; the estimate counts the models of a round."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fedtilt as ft
from fedtilt.engine import prepare
from fedtilt.engine.settings import TrainSettings
from tests.helpers import plain_loop


@pytest.mark.parametrize(
    ("methods", "settings", "clients", "workers", "expected"),
    [
        # initial + server + results of the clients + parameters and gradients in training
        ([ft.fedavg()], {}, 1, 0, 1 + 1 + 1 + 2),
        ([ft.fedavg()], {}, 10, 0, 1 + 1 + 10 + 2),
        ([ft.fedavg(), ft.ditto()], {}, 10, 0, 1 + 2 + 30 + 2),
        ([ft.fedavg()], {"momentum": 0.9}, 1, 0, 1 + 1 + 1 + 3),
        ([ft.fedavg()], {"optimizer": "adam"}, 1, 0, 1 + 1 + 1 + 4),
        ([ft.fedavg()], {"server_optimizer": "adam"}, 1, 0, 1 + 3 + 1 + 2),
        (
            [ft.fedavg(optimizer="adam"), ft.fedprox(optimizer="sgd"), ft.methods.scaffold()],
            {},
            1,
            0,
            1 + 3 + 2 + 1 + 4 + 2,
        ),
        # every worker has the jobs of a client in shared memory, too
        ([ft.ditto()], {}, 4, 2, 1 + 1 + 8 + 2 * (2 + 2)),
    ],
)
def test_models_of_a_round(methods: list, settings: dict, clients: int, workers: int, expected: int) -> None:
    assert prepare.models_kept(methods, TrainSettings(**settings), clients=clients, workers=workers) == expected


def test_a_run_that_does_not_fit_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = plain_loop.federation()
    fits = 4 * (6 * 650 + 650)  # one network, and with one client at a time six trained models of 650 parameters
    settings = {"rounds": 1, "epochs": 1, "participation": 0.1, "workers": 0, "momentum": 0.5}
    for source in (ft.models.logistic, nn.Sequential(nn.Flatten(), nn.Linear(64, 10))):
        monkeypatch.setattr(prepare, "available_bytes", lambda device: fits)
        ft.run([ft.fedavg()], fed, source, **settings)
        monkeypatch.setattr(prepare, "available_bytes", lambda device: fits - 1)
        with pytest.raises(ft.InputError, match=r"the run keeps 7 models of 650 parameters, about 0.0 GB, and 0.0 GB"):
            ft.run([ft.fedavg()], fed, source, **settings)


def test_a_frozen_part_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1000).requires_grad_(False), nn.Linear(1000, 10))
    monkeypatch.setattr(prepare, "available_bytes", lambda device: 4 * (65_000 + 10_010 * 6))
    call = {"clients": 1, "workers": 0, "device": torch.device("cpu")}
    prepare.check_memory(model, [ft.fedavg()], TrainSettings(), **call)
    with pytest.raises(ft.InputError, match="the run keeps 6 models of 75,010 parameters"):
        prepare.check_memory(model.requires_grad_(True), [ft.fedavg()], TrainSettings(), **call)


def test_the_size_of_a_built_in_model_is_known_before_it_is_built() -> None:
    template = ft.models.build_without_storage(ft.models.mlp, (1, 28, 28), 10)
    assert template is not None
    assert sum(p.numel() for p in template.parameters()) == 199_210
    assert {p.device.type for p in template.parameters()} == {"meta"}
    assert ft.models.build_without_storage(lambda: nn.Linear(2, 2), (2,), 2) is None
    assert ft.models.build_without_storage(nn.Linear(2, 2), (2,), 2) is None


def test_available_memory_is_what_the_system_says(tmp_path: Path) -> None:
    available = prepare.available_bytes(torch.device("cpu"))
    assert available is None or 2**20 < available < 2**50
    (tmp_path / "memory.max").write_text("1048576\n")
    assert prepare._limit_of_container(tmp_path / "memory.max") == 2**20
    (tmp_path / "memory.max").write_text("max\n")
    assert prepare._limit_of_container(tmp_path / "memory.max") is None
    assert prepare._limit_of_container(tmp_path / "none") is None
