"""MOON: the contrast of features with those of the received and of the last model."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.methods import moon
from tests.methods.published.reference import FED, RECIPE, STEPS, Reference, check, close, descend, shared


class Moon(Reference):
    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        received, last = copy.deepcopy(net), self.kept.get(n)
        for _ in range(STEPS):
            loss = F.cross_entropy(net(x), y)
            if last is not None:
                z, far, near = (body[:-1](x) for body in (net, last, received))
                towards = (F.cosine_similarity(z, near.detach()) / 0.5).exp()
                away = (F.cosine_similarity(z, far.detach()) / 0.5).exp()
                loss = loss - 2.0 * (towards / (towards + away)).log().mean()
            descend([*net.parameters()], loss)
        self.kept[n] = copy.deepcopy(net)
        return net


def test_it_is_the_papers_update() -> None:
    last = check(moon(mu=2.0), Moon())
    assert not torch.allclose(last.state.shared["moon"], shared(ft.fedavg()), atol=1e-4)


def test_without_the_contrast_it_is_fedavg() -> None:
    close(shared(moon(mu=0.0)), shared(ft.fedavg()))


def test_a_model_that_does_not_end_in_a_linear_layer_is_refused() -> None:
    def model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, classes, 8), nn.Flatten())

    with pytest.raises(
        InputError, match=r"'moon' needs a model whose last trained layer is an nn.Linear; it is a Conv2d"
    ):
        list(ft.simulate([moon()], FED, model, **RECIPE))


def test_a_wrong_setting_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"method 'moon': moon: mu must be a number ≥ 0, got -1"):
        moon(mu=-1)
    with pytest.raises(InputError, match="temperature"):
        moon(temperature=math.nan)


def test_the_optimiser_of_the_run_trains_it() -> None:
    assert not torch.allclose(shared(moon(), momentum=0.9), shared(moon()), atol=1e-4)
    close(shared(moon(mu=0.0), momentum=0.9), shared(ft.fedavg(), momentum=0.9))
    close(
        shared(moon(mu=0.0), optimizer={"name": "sgd", "clip_norm": 1e-3}),
        shared(ft.fedavg(), optimizer={"name": "sgd", "clip_norm": 1e-3}),
    )
