"""A spec that names the user's own model and loss: every command takes it, and errors are one line."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedtilt as ft
from fedtilt import spec
from fedtilt.files import read_metadata, write_tensors

MODULE = """
import torch
from torch import nn

def net(input_shape, classes, width=8, depth=1):
    layers = [nn.Flatten(), nn.Linear(64, width), nn.Tanh()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, classes))

def one_logit(input_shape, width=4):
    return nn.Sequential(nn.Linear(*input_shape, width), nn.Tanh(), nn.Linear(width, 1))

def squared(logits, labels):
    return (logits.softmax(1) - nn.functional.one_hot(labels, logits.shape[1])).square().sum(1)

def mean_loss(logits, labels):
    return nn.functional.cross_entropy(logits, labels)

def needy(input_shape, heads):
    return nn.Linear(heads, 2)

def text(classes):
    return "a model"

module = nn.Linear(64, 10)
"""
SPEC = """
[clients]
count = 4
max_train = 20
validation = 0.2
[model]
name = "own_model:net"
[model.arguments]
width = 6
depth = 2
[train]
rounds = 2
participation = 0.5
epochs = 1
lr = 0.1
loss = "own_model:squared"
workers = 0
[[methods]]
preset = "ditto"
mu = 0.1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module and a spec, where commands are called."""
    (tmp_path / "own_model.py").write_text(MODULE)
    (tmp_path / "mine.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    return tmp_path


def test_every_command_takes_the_own_model(folder: Path, fedtilt: Callable) -> None:
    assert fedtilt("run", "mine.toml", "--out", "run", "--quiet").code == 0
    assert fedtilt("resume", "run", "--quiet").code == 0
    assert fedtilt("report", "run").code == 0
    assert fedtilt("export", "run", "--method", "ditto", "--to", "m.safetensors").code == 0
    assert fedtilt("tune", "mine.toml", "--over", "mu=0.1,1", "--out", "tuned", "--quiet").code == 0

    import own_model

    model = own_model.net((1, 8, 8), 10, width=6, depth=2)
    model.load_state_dict(load_file("m.safetensors"))
    loaded = spec.load("mine.toml")
    result = ft.run(
        [m.to_method() for m in loaded.methods], spec.federation_of(loaded, 0),
        lambda: own_model.net((1, 8, 8), 10, width=6, depth=2), rounds=2, participation=0.5, epochs=1, lr=0.1,
        loss=own_model.squared, workers=0,
    )  # fmt: skip
    for name, value in result["ditto"].shared.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def train_one_logit(fedtilt: Callable) -> np.ndarray:
    """Train the model in `run`; the probabilities of the samples in new.npy."""
    overrides = (
        "model.name=own_model:one_logit", "data.name=toy-2", "clients.max_train=", "clients.count=2",
        "train.participation=1", "model.arguments={width = 3}", "train.loss=cross_entropy",
    )  # fmt: skip
    settings = [word for override in overrides for word in ("--set", override)]
    assert fedtilt("run", "mine.toml", *settings, "--out", "run", "--quiet").code == 0
    np.save("new.npy", np.random.default_rng(0).normal(size=(5, 2)))
    return ft.load("run", client="1").predict_proba("new.npy")


def check_predictions(fedtilt: Callable, name: str, expected: np.ndarray) -> None:
    assert fedtilt("export", "run", "--client", "1", "--to", name).code == 0
    np.testing.assert_allclose(ft.load(name).predict_proba("new.npy"), expected, rtol=1e-5)
    assert fedtilt("predict", name, "new.npy", "--to", f"{name}.csv").code == 0
    rows = [line.split(",") for line in Path(f"{name}.csv").read_text().splitlines()[1:]]
    np.testing.assert_allclose([[float(cell) for cell in row[2:]] for row in rows], expected, rtol=1e-5)


@pytest.mark.slow
def test_an_own_model_predicts_from_onnx(folder: Path, fedtilt: Callable) -> None:
    check_predictions(fedtilt, "m.onnx", train_one_logit(fedtilt))


def test_the_file_of_an_own_model_names_its_function_and_predicts(
    folder: Path, fedtilt: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train_one_logit(fedtilt)
    check_predictions(fedtilt, "m.safetensors", expected)
    assert read_metadata(Path("m.safetensors"))["model"] == '{"name": "own_model:one_logit", "arguments": {"width": 3}}'
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    printed = fedtilt("predict", "../m.safetensors", "../new.npy")
    assert (printed.code, printed.err.count("\n")) == (2, 1)
    assert "if you trust it, name it: --model own_model:one_logit" in printed.err
    with pytest.raises(
        ft.InputError, match=r"needs the function own_model:one_logit to build its model, and it is not"
    ):
        ft.load("../m.safetensors")
    np.testing.assert_allclose(
        ft.load("../m.safetensors", model="own_model:one_logit").predict_proba("../new.npy"), expected, rtol=1e-5
    )


def test_a_file_cannot_choose_which_installed_code_runs(folder: Path) -> None:
    recipe = '{"name": "os:mkdir", "arguments": {"path": "made"}}'
    metadata = {"model": recipe, "input_shape": "[2]", "classes": '["a", "b"]'}
    write_tensors(Path("m.safetensors"), {"weight": torch.zeros(2, 2)}, metadata)
    for load in (ft.load, ft.models.load):
        with pytest.raises(
            ft.InputError, match="needs the function os:mkdir to build its model, and it is not in the cur"
        ):
            load("m.safetensors")
    assert not Path("made").exists()


def test_arguments_are_set_one_by_one_and_survive_a_round_trip(folder: Path) -> None:
    overrides = ["model.arguments.width=16", "model.arguments.depth=", "train.init=w.safetensors"]
    loaded = spec.load("mine.toml", overrides=overrides)
    assert loaded.model.arguments == {"width": 16}
    assert loaded.train.init == str(folder / "w.safetensors")
    (folder / "again.toml").write_text(spec.dump(loaded))
    assert spec.load("again.toml", overrides=["name=mine"]) == loaded
    assert spec.load("mine.toml", overrides=["model.arguments={width = 3}"]).model.arguments == {"width": 3}
    nested = {"a b": [1, 0.5, "x", True], "inner": {"y": [{"z": 1}]}}
    loaded = spec.parse({"name": "n", "model": {"name": "m:f", "arguments": nested}, "methods": [{"preset": "fedavg"}]})
    (folder / "nested.toml").write_text(spec.dump(loaded))
    assert spec.load("nested.toml", overrides=["name=n"]).model.arguments == nested


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.name=resnet"],
            "model.name = 'resnet' is not possible; give one of logistic, mlp, cnn, or package.module:function",
        ),
        (
            ["model.name=no_such:net"],
            "model.name = 'no_such:net': there is no module 'no_such'; install it, or start fedtilt in its folder",
        ),
        (
            ["model.name=own_model.deeper:net"],
            "model.name = 'own_model.deeper:net': there is no module 'own_model.deeper'; install it, or start",
        ),
        (["model.name=own_model:nett"], "'own_model:nett': module 'own_model' has no function 'nett'; check its name"),
        (
            ["model.name=own_model:text", "model.arguments="],
            "the model function text returned a str; it must return an nn.Module",
        ),
        (
            ["model.name=own_model:needy", "model.arguments="],
            "model.name = 'own_model:needy' needs an argument 'heads'; set model.arguments.heads",
        ),
        (
            ["model.name=own_model:module", "model.arguments="],
            "model.name = 'own_model:module' is a module, which would be the same for every seed; name a function",
        ),
        (["model.arguments.widht=3"], "model.arguments.widht is not an argument of own_model:net, which takes input_s"),
        (["model.arguments.width=2026-01-01"], "is not possible; give a table, such as {width = 64}"),
        (["model.name=mlp"], "model.arguments = {'width': 6, 'depth': 2} are for a function of your own"),
        (["train.loss=focl"], "unknown loss 'focl'; choose one of cross_entropy, focal, "),
        (["train.loss=no_such:f"], "loss = 'no_such:f': there is no module 'no_such'; install it, or start fedtilt in"),
        (
            ["train.loss=own_model:mean_loss"],
            "the loss returns () for 2 samples; return one value per sample, as reduction='none' does",
        ),
        (["train.optimizer=lion"], "unknown optimizer 'lion'; choose one of sgd, adam, adamw"),
        (["train.schedule=linear"], "unknown schedule 'linear'; choose one of constant, cosine, exponential, step"),
        (["train.server_optimizer=sgdm"], "unknown optimizer 'sgdm' of the server; choose one of sgd, adam, yogi"),
        (
            ["train.local=['head']"],
            "local = 'head' matches no trained parameter; they are 1.weight, 1.bias, 3.weight, 3.bias, 5.weight",
        ),
        (["train.local=['*']"], "local = ['*'] leaves no parameter to share; use the method local instead"),
        (["train.buffers=mean"], "train.buffers = 'mean' is not possible; give one of local, average, frozen"),
        (["train.init=none.safetensors"], "none.safetensors"),
        (["train.init=https://example.org/w.safetensors"], "is a URL; download it first, and give the path"),
        (["train.momentum=0.9", "train.optimizer=adam"], "momentum = 0.9 has no effect with 'adam'; leave it out"),
    ],
)  # fmt: skip
def test_errors_are_one_line(folder: Path, fedtilt: Callable, overrides: list[str], message: str) -> None:
    result = fedtilt("run", "mine.toml", "--out", "run", *(word for o in overrides for word in ("--set", o)))
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (folder / "run").exists()


def test_an_init_file_of_another_model_is_refused(folder: Path, fedtilt: Callable) -> None:
    save_file({"1.weight": torch.zeros(7, 64), "extra": torch.zeros(1)}, "w.safetensors")
    result = fedtilt("run", "mine.toml", "--out", "run", "--set", "train.init=w.safetensors")
    assert result.code == 2
    assert re.search(
        r"w.safetensors' has 'extra', which the model lacks; remove what is not of this model",
        result.err,
    )
    assert len(result.err.strip().splitlines()) == 1


def test_a_model_that_does_not_fit_is_refused_before_it_is_built(fedtilt: Callable) -> None:
    result = fedtilt("run", "--out", "run", "--set", "model.hidden=[1000000,100000]")
    assert result.code == 2
    assert re.search(
        r"the run keeps \d+ models of 100,066,\d+,\d+ parameters, about [\d,]+ GB, and [\d.]+ GB of memory are "
        "available; use a smaller model, or a smaller participation, fewer methods or workers",
        result.err,
    )
    assert len(result.err.strip().splitlines()) == 1
    assert not Path("run").exists()
