"""Exports hold the whole model or the trained part alone, and say where local parts and buffers come from."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import fedtilt as ft
from fedtilt.runs.export import export_model, write_onnx
from tests.helpers.recipe_model import RecipeModel

FROZEN = {"backbone.weight", "backbone.bias"}
SHARED = {"body.weight", "body.bias", "norm.weight", "norm.bias"}
HEAD = {"head.weight", "head.bias"}
BUFFERS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
CASES = [  # settings; where local parts and buffers come from in the server's export, in that of FedAvg's client 0
    ({}, {"buffers": "initial"}, {"buffers": "of the client"}),
    ({"buffers": "average"}, {"buffers": "averaged"}, None),
    ({"buffers": "frozen"}, {"buffers": "initial"}, None),
    (
        {"local": ["head.*"]},
        {"local_parameters": "initial", "buffers": "initial"},
        {"local_parameters": "of the client", "buffers": "of the client"},
    ),
    (
        {"local": ["head.*"], "buffers": "average"},
        {"local_parameters": "initial", "buffers": "averaged"},
        {"local_parameters": "of the client", "buffers": "averaged"},
    ),
]


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=3, max_train=20)


def train(federation: ft.Federation, folder: Path, model: object = RecipeModel, **settings: object) -> ft.Result:
    return ft.run(
        [ft.fedavg(), ft.ditto(0.1)], federation, model, out=folder, rounds=2, participation=1.0, epochs=1, workers=0,
        **settings,
    )  # fmt: skip


@pytest.mark.parametrize(("settings", "of_server", "of_client"), CASES)
def test_an_export_loads_to_the_same_predictions(
    federation: ft.Federation, tmp_path: Path, settings: dict, of_server: dict, of_client: dict | None
) -> None:
    result = train(federation, tmp_path, **settings)
    x, _ = federation.test(0)

    def predict(exported: dict[str, torch.Tensor]) -> torch.Tensor:
        net = RecipeModel(federation.input_shape, federation.classes)
        net.load_state_dict(exported)  # strict: every tensor is there
        return net.eval()(x)

    shared = export_model(tmp_path, "fedavg")
    assert shared.sources == of_server
    assert shared.metadata.items() >= of_server.items()
    assert torch.equal(predict(shared.tensors), result["fedavg"].shared.eval()(x))
    personal = export_model(tmp_path, "ditto", client=0)
    assert torch.equal(predict(personal.tensors), result["ditto"].personal(0).eval()(x))
    if of_client is None:
        with pytest.raises(ft.InputError, match="client 0 has no personal model of method 'fedavg', and no local"):
            export_model(tmp_path, "fedavg", client=0)
    else:
        own = export_model(tmp_path, "fedavg", client=0)
        assert own.sources == of_client
        assert not own.personal
        assert torch.equal(predict(own.tensors), result["fedavg"].model(0).eval()(x))


@pytest.mark.parametrize(
    ("settings", "client", "names"),
    [
        ({}, None, SHARED | HEAD),
        ({}, 0, SHARED | HEAD | BUFFERS),
        ({"buffers": "average"}, None, SHARED | HEAD | BUFFERS),
        ({"local": ["head.*"]}, None, SHARED),
        ({"local": ["head.*"]}, 0, SHARED | HEAD | BUFFERS),
        ({"buffers": "frozen"}, None, SHARED | HEAD),
    ],
)
def test_the_trained_part_alone(
    federation: ft.Federation, tmp_path: Path, settings: dict, client: int | None, names: set[str]
) -> None:
    train(federation, tmp_path, **settings)
    whole, trained = (export_model(tmp_path, "fedavg", client, trained_only=only) for only in (False, True))
    assert whole.tensors.keys() == FROZEN | SHARED | HEAD | BUFFERS
    assert trained.tensors.keys() == names
    assert all(torch.equal(value, whole.tensors[name]) for name, value in trained.tensors.items())


def test_the_command_says_what_it_wrote_and_models_load_reads_it(
    fedtilt: Callable, federation: ft.Federation, tmp_path: Path
) -> None:
    run, out = str(tmp_path / "run"), str(tmp_path / "m.safetensors")
    result = train(federation, Path(run), ft.models.mlp, local=["5.*"])
    x, _ = federation.test(1)
    printed = fedtilt("export", run, "--method", "fedavg", "--to", out)
    assert printed.out.startswith("wrote the shared model of fedavg after round 2 (")
    assert printed.out.splitlines()[1] == "local parameters: initial"
    assert torch.equal(ft.models.load(out)(x), result["fedavg"].shared(x))
    printed = fedtilt("export", run, "--method", "fedavg", "--client", "1", "--to", out, "--force")
    assert printed.out.startswith("wrote the model of client 1 of fedavg")
    assert printed.out.splitlines()[1] == "local parameters: of the client"
    assert torch.equal(ft.models.load(out)(x), result["fedavg"].model(1)(x))
    with safe_open(out, "pt") as file:
        assert file.metadata()["local_parameters"] == "of the client"
        assert file.metadata()["round"] == "2"
    printed = fedtilt("export", run, "--method", "fedavg", "--to", out, "--force", "--trained-only")
    assert printed.out.startswith("wrote the trained part of the shared model of fedavg")
    assert printed.out.splitlines()[1] == "local parameters: left out"
    assert load_file(out).keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    with pytest.raises(ft.InputError, match="does not say how to build its model"):
        ft.models.load(out)


def test_a_damaged_checkpoint_is_never_replaced_by_an_older_one_in_silence(
    federation: ft.Federation, tmp_path: Path
) -> None:
    train(federation, tmp_path, ft.models.logistic, checkpoint_seconds=0)
    before = export_model(tmp_path, "ditto", round=1)
    assert (before.round, before.metadata["round"]) == (1, "1")
    last = export_model(tmp_path, "ditto")
    assert (last.round, last.metadata["round"]) == (2, "2")
    path = tmp_path / "seed-0/checkpoints/round-00002/server.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    message = r"the checkpoint of round 2 is damaged \(.*server.safetensors .*\); resume the run, which goes back"
    for client in (None, 0):
        with pytest.raises(ft.InputError, match=message):
            export_model(tmp_path, "ditto", client)
    again = export_model(tmp_path, "ditto", round=1)
    assert all(torch.equal(value, again.tensors[name]) for name, value in before.tensors.items())
    with pytest.raises(ft.InputError, match="has no checkpoint of round 7; it has 1, 2"):
        export_model(tmp_path, "ditto", round=7)


def test_damage_to_one_client_costs_its_export_alone(federation: ft.Federation, tmp_path: Path) -> None:
    train(federation, tmp_path, ft.models.logistic)
    (path,) = (tmp_path / "seed-0/clients").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")  # the last client
    with pytest.raises(ft.InputError, match=r"damaged where it has the state of client 2 for method 'd"):
        export_model(tmp_path, "ditto", 2)
    assert export_model(tmp_path, "ditto", 1).personal
    assert export_model(tmp_path, "ditto").round == 2


def test_a_model_of_whole_numbers_is_no_onnx_file_and_the_error_says_so(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(ft.InputError, match="torch cannot write this model, for .* float32, as ONNX .* safetensors"):
        write_onnx(tmp_path / "m.onnx", model, torch.randn(5, 2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_result_writes_a_module_without_a_name_as_onnx(tmp_path: Path, in_memory: bool) -> None:
    x = torch.randn(20, 4)
    federation = ft.Federation.from_clients([(x, torch.arange(20) % 2)] * 2)
    net = nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    settings = {"rounds": 2, "participation": 1.0, "out": None if in_memory else tmp_path / "run"}
    result = ft.run([ft.ditto(0.1)], federation, net, **settings)
    result.export(tmp_path / "m.onnx", client=1)
    expected = result["ditto"].personal(1)(x).double().softmax(1).detach().numpy()
    np.testing.assert_allclose(ft.load(tmp_path / "m.onnx").predict_proba(x), expected, atol=1e-5)
    result.export(tmp_path / "m.safetensors", client=1)
    with pytest.raises(ft.InputError, match=r"m.safetensors do not fit this model \(.*; pass the one that was trained"):
        ft.load(tmp_path / "m.safetensors", model=nn.Linear(4, 2))
