"""Models that return more than a tensor, share a module under two names, or have lazy layers train as plain ones."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.errors import InputWarning
from fedtilt.models import build, functional_logits, parameters_to_vector, vector_to_parameters

SETTINGS = {"rounds": 3, "participation": 1.0, "epochs": 1, "lr": 0.1, "workers": 0, "backend": "autograd"}


def plain(classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))


class Returning(nn.Module):
    """The plain model, whose output is in something else."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.net, self.kind = plain(), kind

    def forward(self, x: Tensor) -> object:
        logits = self.net(x)
        return {"mapping": {"loss": None, "logits": logits}, "tuple": (logits, "hidden"), "list": [logits]}[self.kind]


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(10))


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20)


@pytest.fixture(scope="module")
def reference(federation: ft.Federation) -> ft.Result:
    return ft.run([ft.ditto(0.1)], federation, plain, **SETTINGS)


def parameters(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


@pytest.mark.parametrize("kind", ["mapping", "tuple", "list", "lazy"])
def test_other_outputs_and_lazy_layers_are_bit_identical_to_the_plain_model(
    federation: ft.Federation, reference: ft.Result, kind: str
) -> None:
    result = ft.run([ft.ditto(0.1)], federation, lazy if kind == "lazy" else lambda: Returning(kind), **SETTINGS)
    assert result["ditto"].accuracy == reference["ditto"].accuracy > 30
    for client in (0, 3):
        own, expected = result["ditto"].personal(client), reference["ditto"].personal(client)
        assert all(torch.equal(a, b) for a, b in zip(parameters(own), parameters(expected), strict=True))


def test_lazy_layers_that_do_not_take_the_samples_are_refused() -> None:
    with pytest.raises(ft.InputError, match=r"the lazy layers do not take samples of shape \(64,\)"):
        build(lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2)), (64,), 2, seed=0)


class Undefined(nn.Module):
    """Divides by what may be 0 in test data."""

    def __init__(self, outputs: int, *, by_place: bool) -> None:
        super().__init__()
        self.head, self.by_place = nn.Linear(3, outputs), by_place

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.head(x / x.sum(1, keepdim=True))
        return outputs[:, None] if self.by_place else outputs


@pytest.mark.parametrize("task", ["classification", "regression", "multilabel", "language"])
def test_outputs_that_are_no_numbers_are_refused_where_a_model_is_evaluated(task: str) -> None:
    """They would count as the first class, or as none."""
    targets = {
        "classification": torch.arange(12) % 2, "regression": torch.arange(12.0),
        "multilabel": torch.eye(2).repeat(6, 1).long(), "language": torch.arange(12)[:, None] % 2,
    }  # fmt: skip
    x, y = torch.rand(12, 3) + 0.1, targets[task]
    undefined = torch.cat([x[:3], torch.zeros(1, 3)])
    clients = {name: ((x, y), (test, y[:4])) for name, test in {"north": x[:4], "south": undefined}.items()}
    federation = ft.Federation.from_clients(clients, task=task)
    model = Undefined(1 if task == "regression" else 2, by_place=task == "language")
    message = "the model of method 'ditto' returns NaN or infinity for test data of south; lower lr"
    with pytest.raises(ft.InputError, match=message):
        ft.run([ft.ditto(0.1)], federation, model, **SETTINGS)


class Halved(nn.Module):
    """Layers, after some of which the graph ends."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.body, self.norm, self.head, self.where = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10), where

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.where != "all"):
            features = self.norm(self.body(x.flatten(1)))
            return self.head(features.detach() if self.where == "body" else features)


def with_forward_of_another() -> nn.Module:
    model = plain()
    model.forward = lambda x, other=model: nn.Sequential.forward(other, x)  # a copy of the model would call the first
    return model


@pytest.mark.parametrize("model", [Halved("all"), with_forward_of_another()])
@pytest.mark.parametrize("backend", ["auto", "stacked"])
def test_a_model_that_training_would_not_change_is_refused(
    federation: ft.Federation, model: nn.Module, backend: str
) -> None:
    with pytest.raises(ft.InputError, match="no parameter of the model has a gradient, so training would change"):
        ft.run([ft.fedavg()], federation, model, **SETTINGS | {"backend": backend})


class Constrained(nn.Linear):
    """Its weights have a largest norm."""

    in_place = True

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.weight.data.renorm_(2, 0, 5.0)
        else:
            self.weight.data = self.weight.data.renorm(2, 0, 5.0)
        return super().forward(x)


class Replaced(Constrained):
    in_place = False


@pytest.mark.parametrize("layer", [Constrained, Replaced])
def test_a_forward_pass_that_changes_parameters_is_refused(federation: ft.Federation, layer: type[nn.Linear]) -> None:
    model = nn.Sequential(nn.Flatten(), layer(64, 10))
    before = parameters_to_vector(model).clone()
    with pytest.raises(ft.InputError, match="a forward pass changes the parameter '1.weight', as max_norm of an embed"):
        ft.run([ft.fedavg()], federation, model, **SETTINGS)
    assert torch.equal(parameters_to_vector(model), before)


def test_an_embedding_with_a_largest_norm_is_refused() -> None:
    x, y = torch.arange(40).reshape(20, 2) % 7, torch.arange(20) % 2
    federation = ft.Federation.from_clients([(x[:10], y[:10]), (x[10:], y[10:])])
    model = nn.Sequential(nn.Embedding(7, 4, max_norm=1.0), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(ft.InputError, match="a forward pass changes the parameter '0.weight'"):
        ft.run([ft.fedavg()], federation, model, **SETTINGS)


def test_parameters_without_a_gradient_are_named(federation: ft.Federation) -> None:
    with pytest.warns(InputWarning, match=r"no gradient reaches body\.weight, body\.bias, norm\.weight and 1 more: "):
        ft.run([ft.fedavg()], federation, Halved("body"), **SETTINGS | {"rounds": 1})
    frozen = Halved("body")
    frozen.body.requires_grad_(False)
    frozen.norm.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ft.run([ft.fedavg()], federation, frozen, **SETTINGS | {"rounds": 1})


class Shared(nn.Module):
    """The same layers under two names: parameters and BatchNorm's statistics are one."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)
        if tied:
            self.again, self.norm_again = self.first, self.norm

    def forward(self, x: Tensor) -> Tensor:
        first, norm = getattr(self, "again", self.first), getattr(self, "norm_again", self.norm)
        return self.head(norm(first(x.flatten(1))).relu())


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_one_module_under_two_names_is_the_model_with_one(
    federation: ft.Federation, tmp_path: Path, buffers: str
) -> None:
    settings = {**SETTINGS, "buffers": buffers}
    once = ft.run([ft.ditto(0.1)], federation, lambda: Shared(tied=False), **settings)
    twice = ft.run([ft.ditto(0.1)], federation, lambda: Shared(), out=tmp_path / "run", **settings)
    assert twice["ditto"].accuracy == once["ditto"].accuracy
    loaded = ft.load(tmp_path / "run", client=2, model=Shared).module
    assert loaded is not None
    for name, value in once["ditto"].personal(2).state_dict().items():
        assert torch.equal(twice["ditto"].personal(2).state_dict()[name], value)
        assert torch.equal(loaded.state_dict()[name], value)


def test_a_functional_call_leaves_a_module_with_two_names_as_it_was() -> None:
    net = Shared().eval()
    names = [name for name, _ in net.named_parameters()]
    vector = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    for _ in range(2):
        functional_logits(net, vector_to_parameters(net, 2 * vector), torch.zeros(2, 64))
    assert [name for name, _ in net.named_parameters()] == names


class Tied(nn.Module):
    """One parameter in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.up.weight = self.down.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def test_a_functional_call_gives_both_modules_of_a_tied_parameter_the_new_tensor() -> None:
    net, weight, x = Tied(), torch.randn(6, 6), torch.randn(3, 6)
    torch.testing.assert_close(functional_logits(net, {"down.weight": weight}, x), x @ weight.T @ weight.T)


# -- one logit for two classes -----------------------------------------------------------------------------------------


def one_logit(flat: bool = False) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(64, 1)]
    return nn.Sequential(*layers, *([nn.Flatten(0)] if flat else []))


@pytest.fixture(scope="module")
def two_classes() -> ft.Federation:
    digits = ft.data.load("digits")
    y = {f"y_{side}": (getattr(digits, f"y_{side}") < 5).long() for side in ("train", "test")}
    data = ft.data.Dataset(name="two", x_train=digits.x_train, x_test=digits.x_test, **y, classes=2, image=True)
    return ft.Federation.build(data, clients=4, max_train=20, partition="iid")


@pytest.mark.parametrize("flat", [False, True])
def test_one_logit_learns_what_a_sigmoid_learns(two_classes: ft.Federation, flat: bool) -> None:
    """One client, full batches: the steps are those of binary cross-entropy."""
    net = one_logit()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    settings = {**SETTINGS, "rounds": 2, "batch_size": 1000}
    source = nn.Sequential(*net, nn.Flatten(0)) if flat else net
    result = ft.run([ft.ditto(0.0)], two_classes, source, **settings)
    net.load_state_dict(start)
    x, y = two_classes.clean_train(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y.float()).backward()
        optimizer.step()
    found = result["ditto"].personal(1)
    torch.testing.assert_close(found(x)[:, 1] - found(x)[:, 0], net(x)[:, 0], rtol=1e-4, atol=1e-5)


def test_a_model_with_one_logit_is_exported_and_predicts_two_probabilities(
    two_classes: ft.Federation, tmp_path: Path
) -> None:
    result = ft.run([ft.fedavg()], two_classes, one_logit, out=tmp_path / "run", **SETTINGS)
    x = two_classes.dataset.x_test[:50]
    result.export(tmp_path / "m.safetensors")
    loaded = ft.load(tmp_path / "m.safetensors", model=one_logit)
    found = loaded.predict_proba(x)
    logit = result["fedavg"].shared(2 * x - 1)[:, 1].detach().double()
    torch.testing.assert_close(torch.from_numpy(found[:, 1]), logit.sigmoid(), rtol=1e-4, atol=1e-5)
    assert set(loaded.predict(x)) <= {"0", "1"}
