"""Gradients accumulated over micro-batches are those of the whole batch, tilts included; any optimiser of torch."""

import math

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.models import parameters_to_vector, vector_to_parameters
from fedtilt.optimizers import SGD, Optimizer, optimizer_of
from fedtilt.spec import load, train_settings_of
from fedtilt.training import LocalJob, autograd_loop, choose_backend, make_batches

FEDERATION = ft.Federation.build(ft.data.load("digits"), clients=5, max_train=24, seed=3)


class Net(nn.Module):
    """Dropout, whose masks are those of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.largest = 0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, len(x))
        return self.layers(x)


def trained(micro_batch: int | None, **settings: object) -> Tensor:
    torch.manual_seed(0)
    net = Net()
    x, y = torch.randn(23, 6), torch.arange(23) % 3
    weights = settings.pop("weights", None)
    batches = make_batches(x, y, seed=0, round=1, client=0, epochs=2, batch_size=12, weights=weights)  # type: ignore
    start = parameters_to_vector(net)
    job = LocalJob(start=start, anchor=start, micro_batch=micro_batch, lr=0.1, **settings)  # type: ignore[arg-type]
    return autograd_loop.train(net, [job], [batches])[0].parameters


@pytest.mark.parametrize(
    "settings",
    [
        {"tau": 0.0, "lam": 0.0},
        {"tau": 2.0, "lam": -1.0, "prox": 0.1},
        {"tau": 50.0, "lam": 50.0},
        {"tau": math.inf, "lam": -math.inf},
        {"tau": 1.0, "lam": 3.0, "weights": torch.linspace(0.5, 2, 23)},
        {"tau": 0.0, "lam": 0.0, "utility": 6.0},
        {"tau": 1.0, "lam": 0.0, "optimizer": SGD(momentum=0.9, clip_norm=0.5)},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 5, 11])
def test_micro_batches_give_the_step_of_the_whole_batch(settings: dict[str, object], size: int) -> None:
    settings = {"prox": 0.0, **settings}
    torch.testing.assert_close(trained(size, **settings), trained(None, **settings), rtol=1e-5, atol=1e-6)


def test_no_more_samples_than_asked_are_in_a_forward_pass() -> None:
    sizes = []

    def model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        class Seen(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(64, classes)

            def forward(self, x: Tensor) -> Tensor:
                if self.training:
                    sizes.append(len(x))
                return self.layer(x.flatten(1))

        return Seen()

    settings = {"rounds": 1, "epochs": 1, "participation": 1.0, "workers": 0, "batch_size": 12}
    whole = ft.run([ft.fedtilt(tau=3, lam=1)], FEDERATION, model, **settings)
    assert max(sizes) == 12
    sizes.clear()
    parts = ft.run([ft.fedtilt(tau=3, lam=1)], FEDERATION, model, micro_batch_size=5, **settings)
    assert max(sizes) == 5
    torch.testing.assert_close(
        parameters_to_vector(parts["fedtilt"].shared), parameters_to_vector(whole["fedtilt"].shared)
    )


def normalised(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


class Centered(nn.Module):
    """Its features are those of a sample without the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(x - x.mean(0))


def by_frequency(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The gradient of a token counts how often it is in the batch."""

    class Tokens(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.flatten(1) > 0).long()

    return nn.Sequential(
        Tokens(), nn.Embedding(2, 3, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(3 * 64, classes)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"micro_batch_size": 10}, "micro_batch_size = 10 has no effect: batch_size = 10 is not more"),
        (
            {"micro_batch_size": 4, "model": normalised},
            "its buffer '2.running_mean' is of whole batches; use GroupNorm",
        ),
        (
            {"micro_batch_size": 4, "model": Centered},
            "or its gradient, depends on the others of the batch; leave it out",
        ),
        ({"micro_batch_size": 4, "model": by_frequency}, "or its gradient, depends on the others of the batch"),
        (
            {"micro_batch_size": 4, "method": ft.methods.moon()},
            "no effect on method 'moon', whose training takes whole",
        ),
        ({"micro_batch_size": 4, "backend": "native"}, "gradients are accumulated over micro-batches; use 'auto'"),
        ({"optimizer": "RMSprop", "backend": "native"}, "the optimiser is torch.optim.RMSprop; use 'auto'"),
        ({"optimizer": "torch.optim.LBFGS"}, "computes the loss several times in a step; choose one of Adafactor,"),
        ({"optimizer": "rmsprop"}, "choose one of sgd, adam, adamw, or one of torch.optim, such as RMSprop"),
        (
            {"optimizer": {"name": "NAdam", "beta": 0.9}},
            "is not a setting of 'torch.optim.NAdam', which has weight_decay,",
        ),
        ({"optimizer": {"name": "NAdam", "betas": [0.9, 2.0]}}, "Invalid beta parameter at index 1: 2.0"),
        ({"optimizer": "Rprop", "weight_decay": 0.1}, "weight_decay = 0.1 has no effect with 'torch.optim.Rprop'"),
        ({"optimizer": "Muon"}, "optimizer = 'torch.optim.Muon' does not take its settings or this model"),
    ],
)
def test_what_cannot_be_combined(settings: dict[str, object], message: str) -> None:
    settings = {"rounds": 1, "workers": 0, **settings}
    method, model = settings.pop("method", ft.fedavg()), settings.pop("model", ft.models.mlp)
    with pytest.raises(ft.InputError, match=message):
        ft.run([method], FEDERATION, model, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        ("RMSprop", lambda p: torch.optim.RMSprop(p, 0.01)),
        ({"name": "torch.optim.NAdam", "betas": [0.8, 0.99]}, lambda p: torch.optim.NAdam(p, 0.01, betas=(0.8, 0.99))),
        (ft.optimizers.torch_optim("Adam", amsgrad=True), lambda p: torch.optim.Adam(p, 0.01, amsgrad=True)),
        ({"name": "Adagrad", "clip_norm": 0.1}, lambda p: torch.optim.Adagrad(p, 0.01)),
    ],
    ids=["by name", "as a table", "as an object", "with clipping"],
)
def test_an_optimiser_of_torch_takes_its_steps(optimizer: object, make: object) -> None:
    """Against a plain loop, with a proximal term."""
    made = optimizer_of(optimizer)
    assert optimizer_of(made.to_value()) == made
    torch.manual_seed(1)
    net, x, y = nn.Linear(6, 3), torch.randn(20, 6), torch.arange(20) % 3
    batches = make_batches(x, y, seed=0, round=1, client=0, epochs=3, batch_size=7)
    start = parameters_to_vector(net)
    job = LocalJob(start=start, anchor=start, prox=0.5, tau=0, lam=0, lr=0.01, optimizer=made)
    assert choose_backend(net, [job], "cpu").name == "autograd"
    found = autograd_loop.train(net, [job], [batches])[0].parameters
    reference = make(net.parameters())  # type: ignore[operator]
    before = [p.detach().clone() for p in net.parameters()]
    for inputs, labels in batches.all():
        pull = sum((p - b).square().sum() for p, b in zip(net.parameters(), before, strict=True))
        reference.zero_grad()
        (nn.functional.cross_entropy(net(inputs), labels) + 0.25 * pull).backward()
        if made.clip_norm:
            nn.utils.clip_grad_norm_(net.parameters(), made.clip_norm)
        reference.step()
    torch.testing.assert_close(found, parameters_to_vector(net), rtol=1e-5, atol=1e-6)
    assert isinstance(made, Optimizer)
    assert list(vector_to_parameters(net, found)) == ["weight", "bias"]


def test_a_spec_names_an_optimiser_of_torch() -> None:
    spec = load("toy", overrides=["train.optimizer=RMSprop", "train.optimizer.alpha=0.5", "train.weight_decay=0.1"])
    found = train_settings_of(spec, 0).client_optimizer
    assert found.describe() == "torch.optim.RMSprop, weight_decay = 0.1, alpha = 0.5"
