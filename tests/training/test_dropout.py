"""Dropout from keyed masks: torch's distribution, and the same values in every backend, stack and order."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fedtilt as ft
from fedtilt import models, seeds
from fedtilt.training import BACKENDS
from fedtilt.training.augmentation import Augmentation
from fedtilt.training.dropout import keyed_dropout, written_out_attention
from tests.helpers.models import CLASSES, MODELS, SHAPE, make_jobs

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(F, name)
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
}


def drop(name: str, x: Tensor, p: float, *, key: int = 7, step: int = 1) -> Tensor:
    with keyed_dropout() as masks:
        masks.start(key, step)
        return getattr(F, name)(x, p, training=True)


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_distribution_is_that_of_torch(name: str, p: float) -> None:
    x = torch.full((64, 128, *[3] * {"dropout1d": 1, "dropout2d": 2, "dropout3d": 3}.get(name, 2)), 0.7)
    ours, theirs = drop(name, x, p), FUNCTIONS[name](x, p, training=True)
    assert ours.unique().tolist() == pytest.approx(theirs.unique().tolist())
    least = [float((values == values.min()).float().mean()) for values in (ours, theirs)]
    assert least[0] == pytest.approx(least[1], abs=0.02)
    if "feature" in name or name[-1] == "d":  # whole channels
        channels = ours.flatten(2)
        assert torch.equal(channels, channels[:, :, :1].expand_as(channels))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_place_it_changes_its_input(name: str) -> None:
    x = torch.full((4, 6, 3), 0.7)
    expected = drop(name, x, 0.5)
    with keyed_dropout() as masks:
        masks.start(7, 1)
        assert getattr(F, name)(x, 0.5, True, True) is x
    assert torch.equal(x, expected)


class InPlace(nn.Module):
    """Dropout whose result is left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.drop, self.head = nn.Linear(64, 30), nn.Dropout(0.4, inplace=True), nn.Linear(30, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x.flatten(1))
        self.drop(x)
        return self.head(x)


def test_masks_depend_on_key_step_and_call_alone() -> None:
    x = torch.ones(1000)
    assert torch.equal(drop("dropout", x, 0.5), drop("dropout", x, 0.5))
    others = [drop("dropout", x, 0.5), drop("dropout", x, 0.5, step=2), drop("dropout", x, 0.5, key=8)]
    with keyed_dropout() as masks:
        masks.start(7, 1)
        others += [F.dropout(x, 0.5), F.dropout(x, 0.5)]
    assert torch.equal(others[0], others[3])
    for i, first in enumerate(others[1:], 1):
        for second in others[i + 1 :]:
            if i != 3:
                assert 0.4 < (first == second).float().mean() < 0.6  # as independent masks agree
    assert torch.equal(drop("dropout", torch.ones(50, 20), 0.5)[:10], drop("dropout", torch.ones(10, 20), 0.5))


def test_masks_are_equal_in_c_in_torch_and_by_keys_that_are_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """More masks than one tensor has keys, of a micro-batch, with a key and a step that fill their 64 bits."""
    key, step = seeds.to_signed(seeds.key(3, "dropout")), 2**40 + 1

    def masks_of(key: int | Tensor, step: int | Tensor) -> list[Tensor]:
        with keyed_dropout() as masks:
            masks.start(key, step, first=5)
            return [masks.keep((3, n), p, torch.device("cpu")) for n in range(1, 81) for p in (0.0, 0.3, 1.0)]

    in_c = masks_of(key, step)
    assert [bool(mask.all()) for mask in in_c[::3]] == [True] * 80
    assert not any(mask.any() for mask in in_c[2::3])
    monkeypatch.setenv("FEDTILT_NATIVE", "0")
    for others in masks_of(key, step), masks_of(torch.tensor(key), torch.tensor(step)):
        assert all(torch.equal(a, b) for a, b in zip(in_c, others, strict=True))


def test_outside_a_step_dropout_is_that_of_torch() -> None:
    x = torch.ones(100)
    torch.manual_seed(0)
    expected = F.dropout(x, 0.5)
    torch.manual_seed(0)
    with keyed_dropout():
        assert torch.equal(F.dropout(x, 0.5), expected)
    assert F.dropout is FUNCTIONS["dropout"]
    with keyed_dropout() as masks:
        masks.start(7, 1)
        assert torch.equal(F.dropout(x, 0.5, training=False), x)


@pytest.mark.parametrize(
    "settings", [{}, {"is_causal": True}, {"attn_mask": torch.ones(5, 5).tril().bool()}, {"scale": 1.0}]
)
def test_attention_with_dropout_is_softmax_of_scores_with_weights_dropped(settings: dict[str, object]) -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(0)).unbind()
    with keyed_dropout() as masks:
        masks.start(7, 1)
        means = torch.stack([F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, **settings) for _ in range(1000)])
    assert (means.mean(0) - F.scaled_dot_product_attention(q, k, v, **settings)).abs().max() < 0.1
    assert means.std(0).max() > 0.1


@pytest.mark.parametrize("as_numbers", [False, True])
@pytest.mark.parametrize("keys", [5, 1])
def test_attention_without_a_key_is_zero_as_that_of_torch(as_numbers: bool, keys: int) -> None:
    mask = torch.ones(2, 1, keys, 5, dtype=torch.bool).tril(1)
    mask[1] = False  # a sample of padding alone
    if as_numbers:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    given = torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    functions = written_out_attention, F.scaled_dot_product_attention
    ours, theirs = (attention(*given.unbind(), mask) for attention in functions)
    assert not ours[1].any()
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(out.square().sum(), given)[0] for out in (ours, theirs)]
    torch.testing.assert_close(*gradients)


class Attention(nn.Module):
    """A transformer layer over the rows of an image, with dropout of values and of attention weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.squeeze(1)).mean(1))


@pytest.mark.parametrize("model", [MODELS["dropout"], MODELS["functional dropout"], Attention, InPlace])
def test_a_stack_of_any_width_drops_what_the_loop_drops(model: Callable[[], nn.Module]) -> None:
    net = models.build(model, SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(net)
    expected = BACKENDS["autograd"](net, jobs, batches)
    together = BACKENDS["stacked"](net, jobs, batches)
    alone = [BACKENDS["stacked"](net, [job], [data])[0] for job, data in zip(jobs, batches, strict=True)]
    for job, one, other, reference in zip(jobs, together, alone, expected, strict=True):
        moved = (reference.parameters - job.start).norm()
        assert (one.parameters - reference.parameters).norm() <= 1e-4 * moved
        assert (other.parameters - reference.parameters).norm() <= 1e-4 * moved


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))


@pytest.mark.parametrize("backend", ["autograd", "stacked"])
def test_a_run_with_dropout_is_bit_identical_for_any_stack_workers_and_resume(backend: str, tmp_path: Path) -> None:
    fed = ft.Federation.build(ft.data.load("digits"), clients=4, partition="iid", max_train=30)
    settings = {"participation": 1.0, "epochs": 1, "lr": 0.1, "device": "cpu", "backend": backend}
    others = [{"stack_size": 1}, {"stack_size": 3}] if backend == "stacked" else [{"workers": 2}, {"workers": 0}]

    def trained(rounds: int = 3, **keywords: object) -> list[Tensor]:
        found = ft.run([ft.ditto(0.1)], fed, small_net, rounds=rounds, **settings, **keywords)["ditto"]
        return [p.detach() for m in (found.shared, *map(found.personal, range(4))) for p in m.parameters()]

    expected = trained()
    for keywords in others:
        assert all(map(torch.equal, trained(**keywords), expected)), keywords
    trained(rounds=1, out=tmp_path / "run")
    assert all(map(torch.equal, trained(out=tmp_path / "run"), expected))


class Checkpointed(nn.Module):
    """Two parts with dropout, which are computed again in the backward pass."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        sizes = math.prod(SHAPE), 16, 16
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.5)) for a, b in itertools.pairwise(sizes)
        )
        self.head, self.is_checkpointed = nn.Linear(16, CLASSES), is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False) if self.is_checkpointed else part(x)
        return self.head(x)


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_a_checkpointed_model_drops_the_same_values_in_both_passes(micro_batch: int | None) -> None:
    results = []
    for is_checkpointed in (False, True):
        model = models.build(lambda is_on=is_checkpointed: Checkpointed(is_on), SHAPE, CLASSES, seed=3)
        jobs, batches = make_jobs(model)
        results.append(BACKENDS["autograd"](model, [replace(job, micro_batch=micro_batch) for job in jobs], batches))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.parameters, b.parameters)


def test_dropout_in_a_transform_is_the_same_in_every_backend() -> None:
    layers = nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, CLASSES)
    model = models.build(lambda: nn.Sequential(*layers), SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    augmentation = Augmentation(lambda x: F.dropout(x, 0.3), key=5)
    batches = [replace(data, augmentation=augmentation) for data in batches]
    found = [BACKENDS[name](model, jobs, batches) for name in ("autograd", "stacked")]
    found += [BACKENDS["autograd"](model, [replace(job, micro_batch=3) for job in jobs], batches)]
    for job, *results in zip(jobs, *found, strict=True):
        moved = (results[0].parameters - job.start).norm()
        assert all((result.parameters - results[0].parameters).norm() < 1e-4 * moved for result in results)
