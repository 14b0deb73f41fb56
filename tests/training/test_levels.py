"""Levels of groups: a batch's loss against brute force, and every backend against the autograd loop."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedtilt import models
from fedtilt.training import BACKENDS, Batches, LocalJob, autograd_loop, make_batches, native

SHAPE, CLASSES, SAMPLES = (6,), 3, 41
INF = float("inf")


def problem() -> tuple[torch.nn.Module, LocalJob, Batches]:
    model = models.build(lambda: models.mlp(SHAPE, CLASSES, (5,)), SHAPE, CLASSES, seed=7)
    rng = torch.Generator().manual_seed(8)
    x, y = torch.randn(SAMPLES, *SHAPE, generator=rng), torch.randint(0, CLASSES, (SAMPLES,), generator=rng)
    groups = {"ward": torch.randint(0, 4, (SAMPLES,), generator=rng) * 50, "sex": torch.arange(SAMPLES) % 2}
    data = make_batches(x, y, seed=3, round=1, client=0, epochs=2, batch_size=9, groups=groups)
    start = models.parameters_to_vector(model)
    return model, LocalJob(start=start, anchor=start, prox=0.0, tau=5.0, lam=-2.0, lr=0.1), data


def mean(values: list[torch.Tensor], sizes: list[int], tilt: float) -> torch.Tensor:
    """The tilted mean by its definition."""
    if tilt == INF:
        return torch.stack(values).max()
    if tilt == 0:
        return sum(size * value for size, value in zip(sizes, values, strict=True)) / sum(sizes)
    total = sum(size * (tilt * value).exp() for size, value in zip(sizes, values, strict=True))
    return (total / sum(sizes)).log() / tilt


def brute_force(losses: torch.Tensor, groups: list[torch.Tensor], tilts: tuple[float, ...]) -> torch.Tensor:
    """Samples → class → ward → client, the outermost groups first."""
    if not groups:
        return mean(list(losses), [1] * len(losses), tilts[0])
    masks = [groups[-1] == value for value in groups[-1].unique()]
    values = [brute_force(losses[m], [g[m] for g in groups[:-1]], tilts[:-1]) for m in masks]
    return mean(values, [int(m.sum()) for m in masks], tilts[-1])


@pytest.mark.parametrize("tilts", [(-2.0, 5.0, 3.0), (0.0, 1.0, INF), (2.0, 0.0, -1.0)], ids=str)
def test_three_levels_equal_brute_force(tilts: tuple[float, float, float]) -> None:
    """Every step of a job, against a loop with `torch.optim` and the definition of the loss."""
    model, job, data = problem()
    job = replace(job, lam=tilts[0], tau=tilts[1], outer=(("ward", tilts[2]),))
    (trained,) = autograd_loop.train(model, [job], [data])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for order in data.order:
        for rows in order.split(data.bounds.diff().tolist()):
            losses = F.cross_entropy(model(data.x[rows]), data.y[rows], reduction="none").double()
            optimizer.zero_grad()
            brute_force(losses, [data.y[rows], data.groups["ward"][rows]], tilts).backward()
            optimizer.step()
    expected = models.parameters_to_vector(model)
    assert (trained.parameters - expected).norm() <= 1e-5 * (expected - job.start).norm()


@pytest.mark.parametrize("backend", ["native", "fused", "stacked"])
def test_every_backend_takes_a_column_of_groups(backend: str) -> None:
    if backend == "native" and not native.available():
        pytest.skip(f"native cannot run because {native.unavailable_reason()}")
    model, job, data = problem()
    jobs = [job, replace(job, group="ward"), replace(job, group="sex", tau=INF), replace(job, group="ward", prox=0.1)]
    results = BACKENDS[backend](model, jobs, [data] * len(jobs))
    expected = BACKENDS["autograd"](model, jobs, [data] * len(jobs))
    for trained, reference in zip(results, expected, strict=True):
        moved = (reference.parameters - job.start).norm()
        assert (trained.parameters - reference.parameters).norm() <= 3e-5 * moved
    assert (expected[0].parameters - expected[1].parameters).norm() > 1e-3  # the groups matter


@pytest.mark.parametrize("backend", ["native", "fused", "stacked"])
def test_every_backend_takes_several_levels(backend: str) -> None:
    if backend == "native" and not native.available():
        pytest.skip(f"native cannot run because {native.unavailable_reason()}")
    model, job, data = problem()
    jobs = [
        replace(job, outer=(("ward", 3.0),)),
        replace(job, group="sex", outer=(("class", 0.0), ("ward", INF))),
        replace(job, group="ward", tau=-2.0, outer=(("sex", -2.0),)),
    ]
    results = BACKENDS[backend](model, jobs, [data] * len(jobs))
    for trained, reference in zip(results, BACKENDS["autograd"](model, jobs, [data] * len(jobs)), strict=True):
        moved = (reference.parameters - job.start).norm()
        assert (trained.parameters - reference.parameters).norm() <= 3e-5 * moved


def test_jobs_of_other_groups_are_other_jobs() -> None:
    _, job, _ = problem()
    others = [replace(job, group="ward"), replace(job, outer=(("ward", 1.0),)), replace(job, outer=(("ward", 2.0),))]
    assert len({j.identity for j in (job, replace(job), *others)}) == 4
