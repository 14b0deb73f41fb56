"""Steps with a drift, a moving anchor, parameters that train first, or the loss inside a logarithm."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtilt import models
from fedtilt.optimizers import SGD, Adam, Optimizer
from fedtilt.training import BACKENDS, LocalJob, Trained, choose_backend, make_batches, native, stacked
from tests.helpers.models import CLASSES, MODELS, SHAPE, make_jobs

EPOCHS = 2


def special(job: LocalJob, kind: str) -> LocalJob:
    """The same job, with special steps."""
    changes = {
        "drift": {"drift": torch.linspace(-0.5, 0.5, job.start.numel(), device=job.start.device)},
        "moving anchor": {"prox": 0.5, "repeats": 3, "anchor_rate": 0.2},
        "first": {"first": last_layer(job.start), "first_epochs": 1},
        "utility": {"utility": 3.0},
    }
    return replace(job, **changes[kind])


def last_layer(start: Tensor) -> Tensor:
    first = torch.zeros_like(start)
    first[-CLASSES:] = 1  # the last bias
    return first


KINDS = ("drift", "moving anchor", "first", "utility")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("mlp", SGD()),
        ("cnn", SGD()),
        ("mlp", SGD(momentum=0.9, clip_norm=1.0)),
        ("mlp", Adam()),
    ],
)
def test_backends_agree_with_the_autograd_loop(kind: str, name: str, optimizer: Optimizer) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model, epochs=EPOCHS)
    divisor, tolerance = (20, 1e-4) if optimizer.name == "adam" else (1, 5e-5)  # see test_backends.py
    plain = [replace(job, optimizer=optimizer, lr=job.lr / divisor) for job in jobs[:2]]
    jobs, batches = [*plain, *(special(job, kind) for job in plain)], [*batches[:2], *batches[:2]]
    if kind == "first":  # a whole layer, which the C kernel knows
        layer = model[-1]
        for job in jobs[2:]:
            job.first[-sum(p.numel() for p in layer.parameters()) :] = 1
    backend = choose_backend(model, jobs, "cpu").name
    assert backend == ("native" if native.available() else "autograd" if name == "cnn" else "fused")
    expected = BACKENDS["autograd"](model, jobs, batches)
    for fast in (backend, "stacked"):
        assert_agree(jobs, BACKENDS[fast](model, jobs, batches), expected, tolerance)


def assert_agree(
    jobs: Sequence[LocalJob], trained: Sequence[Trained], expected: Sequence[Trained], tolerance: float
) -> None:
    for job, result, reference in zip(jobs, trained, expected, strict=True):
        moved = (reference.parameters - job.start).norm()
        assert moved > 0.01
        assert (result.parameters - reference.parameters).norm() <= tolerance * moved
        assert (result.anchor is None) == (reference.anchor is None) == (job.anchor_rate == 0)
        if reference.anchor is not None:
            assert (result.anchor - reference.anchor).norm() <= tolerance * (reference.anchor - job.anchor).norm()


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_against_steps_by_hand(kind: str, clip_norm: float | None) -> None:
    """Logistic regression, whose gradient is Xᵀ(softmax − one-hot) / n."""
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    model = models.build(models.logistic, (4,), 3, seed=1)
    start = models.parameters_to_vector(model)
    batches = make_batches(x, y, seed=0, round=1, client=0, epochs=EPOCHS, batch_size=5)
    lr = 0.1
    optimizer = SGD(clip_norm=clip_norm)
    job = LocalJob(start=start, anchor=start + 0.1, prox=0.5, tau=0.0, lam=0.0, lr=lr, optimizer=optimizer)
    job = special(job, kind)
    if kind == "first":
        job = replace(job, first=torch.cat([torch.zeros(12), torch.ones(3)]))

    theta, anchor = start.clone(), job.anchor.clone()
    for epoch in range(EPOCHS):
        for k in range(3):
            rows = batches.order[epoch, batches.bounds[k] : batches.bounds[k + 1]]
            for _ in range(job.repeats):
                logits = x[rows] @ theta[:12].reshape(3, 4).T + theta[12:]
                error = (logits.softmax(1) - F.one_hot(y[rows], 3)) / len(rows)
                gradient = torch.cat([(error.T @ x[rows]).flatten(), error.sum(0)])
                if kind == "utility":
                    gradient /= 3.0 - F.cross_entropy(logits, y[rows])
                gradient += 0.5 * (theta - anchor)
                if job.drift is not None:
                    gradient += job.drift
                if job.first is not None:
                    gradient *= job.first if epoch == 0 else 1 - job.first
                if clip_norm is not None:  # of the parameters that train
                    gradient *= clip_norm / max(clip_norm, gradient.norm())
                theta -= lr * gradient
            anchor += job.anchor_rate * (theta - anchor)
    trained = BACKENDS["autograd"](model, [job], [batches])[0]
    assert torch.allclose(trained.parameters, theta, atol=1e-6)
    if kind == "moving anchor":
        assert trained.anchor is not None
        assert torch.allclose(trained.anchor, anchor, atol=1e-6)
    assert (trained.parameters - start).norm() > 0.01


def test_only_the_jobs_with_unknown_steps_are_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "triton_reason", lambda: None)
    model = models.build(MODELS["mlp"], SHAPE, CLASSES, seed=3)
    jobs, _ = make_jobs(model)
    some_of_a_layer = special(jobs[0], "first")
    with_momentum = replace(some_of_a_layer, optimizer=SGD(momentum=0.9))
    choice = choose_backend(model, [jobs[0], some_of_a_layer, with_momentum], "cuda")
    reason = "some parameters train before the others, with an optimiser other than plain SGD"
    assert choice.describe() == f"stacked (autograd for jobs where {reason})"
    assert choose_backend(model, [with_momentum], "cuda").name == "autograd"
    if native.available():
        choice = choose_backend(model, [jobs[0], some_of_a_layer], "cpu")
        assert (choice.name, choice.special) == ("native", "some parameters of a layer train before the others of it")


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "native" or native.available()])
def test_the_loss_of_the_start_is_measured_on_all_samples(backend: str) -> None:
    model = models.build(MODELS["mlp"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    job = replace(jobs[0], tau=0.0, lam=0.0, measures_loss=True)
    trained, unmeasured = BACKENDS[backend](model, [job, jobs[1]], batches[:2])
    net = models.with_weights(model, job.start, {})
    expected = F.cross_entropy(net(batches[0].x), batches[0].y)
    assert trained.loss is not None
    assert torch.allclose(trained.loss, expected)
    assert unmeasured.loss is None
