"""Every backend agrees with the autograd loop: one conformance table, backends × models × settings."""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt import models, seeds
from fedtilt.errors import InputError
from fedtilt.losses import GCE, SCE, CrossEntropy, Focal, Huber, Loss, Squared
from fedtilt.optimizers import SGD, Adam, AdamW, Optimizer
from fedtilt.training import (
    BACKENDS,
    LAST_BATCH,
    BackendChoice,
    LocalJob,
    choose_backend,
    distinct_jobs,
    make_batches,
    native,
    stacked,
)
from fedtilt.training.local_job import batch_bounds
from tests.helpers.models import CLASSES, MODELS, SHAPE, Recurrent, make_jobs

needs_kernel = pytest.mark.skipif(
    not native.available(), reason=f"native cannot run because {native.unavailable_reason()}"
)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def choose(model: nn.Module, device: str = "cpu", backend: str = "auto", **settings: object) -> BackendChoice:
    """The choice for plain SGD, with a sample of the right shape, unless `settings` say otherwise."""
    start = models.parameters_to_vector(model)
    job = LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1)
    changes = {key: settings.pop(key) for key in ("optimizer", "loss", "buffer_names") if key in settings}
    sample = torch.zeros(1, *SHAPE), torch.zeros(1, dtype=torch.long)
    return choose_backend(model, [job, replace(job, **changes)], device, backend, sample, **settings)


def supported_pairs() -> list[tuple[str, str]]:
    pairs = []
    for name, build in MODELS.items():
        for backend in BACKENDS:
            try:
                choose(build(), "cpu", backend)
            except InputError:
                continue
            if backend != "autograd":
                pairs.append((backend, name))
    return pairs


SUPPORTED = supported_pairs()


def test_what_each_backend_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "triton_reason", lambda: None)
    assert set(supported_pairs()) == {
        *([("native", "logistic"), ("native", "mlp"), ("native", "cnn")] if native.available() else []),
        ("fused", "logistic"), ("fused", "mlp"),
        ("stacked", "logistic"), ("stacked", "mlp"), ("stacked", "cnn"), ("stacked", "norm"),
        ("stacked", "bias-free"), ("stacked", "subclass"), ("stacked", "unused layer"),
        ("stacked", "dropout"), ("stacked", "functional dropout"), ("stacked", "lstm"),
    }  # fmt: skip
    assert choose(MODELS["mlp"]()).name == ("native" if native.available() else "fused")
    assert choose(MODELS["cnn"]()).name == ("native" if native.available() else "autograd")
    assert choose(MODELS["cnn"](), "cuda").name == "stacked"
    assert choose(nn.Sequential(MODELS["mlp"](), nn.RReLU()), "cuda").describe() == (
        "autograd (not stacked: layer '1' (RReLU) draws random numbers)"
    )


def test_cuda_without_a_compiler_trains_by_autograd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = "Triton needs a C compiler, and neither gcc nor clang is on the PATH"
    assert choose(MODELS["mlp"](), "cuda").describe() == f"autograd (not stacked: {reason})"
    with pytest.raises(InputError, match=f"backend 'stacked' cannot train this because {reason}; use 'auto'"):
        choose(MODELS["mlp"](), "cuda", "stacked")
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path))
    assert "Python.h is not installed" in choose(MODELS["mlp"](), "cuda").describe()


def frozen_first_layer() -> nn.Module:
    model = MODELS["mlp"]()
    model[1].requires_grad_(False)
    return model


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return (F.one_hot(labels, CLASSES) - outputs).square().sum(1)


NOT_NATIVE = "the model is not an nn.Sequential of the layers that the C kernel has (Conv2d, ReLU, MaxPool2d, Linear)"
NOT_FUSED = "the model is not an nn.Sequential of Flatten, Linear (with bias) and ReLU that ends with a Linear"


@needs_kernel
@pytest.mark.parametrize(
    ("model", "settings", "name", "reasons"),
    [
        (MODELS["mlp"], {}, "native", {}),
        (MODELS["mlp"], {"optimizer": Adam(clip_norm=1.0)}, "native", {}),
        (
            MODELS["mlp"], {"loss": squared_error}, "autograd",
            {
                "native": "the loss is a Python function, which the C kernel cannot call",
                "fused": "the loss is not the plain cross-entropy",
            },
        ),
        (Recurrent, {}, "autograd", {"native": NOT_NATIVE, "fused": NOT_FUSED}),
        (
            MODELS["mlp"], {"buffer_names": ("1.mean",)}, "autograd",
            dict.fromkeys(("native", "fused"), "the model has buffers that change in training, such as '1.mean'"),
        ),
        (
            frozen_first_layer, {}, "autograd",
            dict.fromkeys(("native", "fused"), "parameter '1.weight' is frozen"),
        ),
    ],
)  # fmt: skip
def test_a_choice_says_why_a_faster_backend_does_not_run(
    model: Callable[[], nn.Module], settings: dict, name: str, reasons: dict[str, str]
) -> None:
    assert choose(model(), **settings) == (name, reasons, None)


@pytest.mark.parametrize(("backend", "name"), SUPPORTED)
def test_backends_agree_with_the_autograd_loop(backend: str, name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    expected = BACKENDS["autograd"](model, jobs, batches)
    for job, trained, reference in zip(jobs, BACKENDS[backend](model, jobs, batches), expected, strict=True):
        moved = (reference.parameters - job.start).norm()
        assert moved > 0.01
        assert (trained.parameters - reference.parameters).norm() <= 3e-5 * moved


@pytest.mark.parametrize(("backend", "name"), [*(("autograd", name) for name in MODELS), *SUPPORTED])
def test_every_backend_is_deterministic_and_does_not_change_its_inputs(backend: str, name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model, epochs=1)
    before = copy.deepcopy((jobs, batches))
    state = torch.random.get_rng_state()
    first = BACKENDS[backend](model, jobs, batches)
    torch.manual_seed(99)
    again = BACKENDS[backend](model, jobs[::-1], batches[::-1])[::-1]
    assert all(torch.equal(a.parameters, b.parameters) for a, b in zip(first, again, strict=True))
    for job, data, job_before, data_before in zip(jobs, batches, *before, strict=True):
        assert torch.equal(job.start, job_before.start)
        assert torch.equal(job.anchor, job_before.anchor)
        for part in ("x", "y", "order"):
            assert torch.equal(getattr(data, part), getattr(data_before, part))
    torch.random.set_rng_state(state)


OPTIMIZERS = (
    SGD(momentum=0.9),
    SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
    SGD(weight_decay=0.1),
    SGD(clip_norm=0.3),
    SGD(momentum=0.5, weight_decay=0.1, clip_norm=0.5),
    Adam(),
    Adam(weight_decay=0.1, clip_norm=0.5),
    AdamW(weight_decay=0.1),
)


@needs_kernel
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=Optimizer.describe)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_optimizers_of_native_are_those_of_torch(name: str, optimizer: Optimizer) -> None:
    """Two rounds, each with a new state of the optimiser, against the autograd loop, which uses `torch.optim`."""
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    # Adam needs smaller learning rates; its step has the size of 1 even where the gradient is little but rounding
    divisor, tolerance = (1, 2e-5) if optimizer.name == "sgd" else (20, 1e-4)
    jobs = [replace(job, lr=job.lr / divisor, optimizer=optimizer) for job in jobs]
    assert choose_backend(model, jobs, "cpu") == ("native", {}, None)
    starts, trained, expected = [job.start for job in jobs], jobs, jobs
    for _ in range(2):
        trained, expected = (
            [replace(job, start=r.parameters) for job, r in zip(current, train(model, current, batches), strict=True)]
            for current, train in ((trained, native.train), (expected, BACKENDS["autograd"]))
        )
    for start, job, reference in zip(starts, trained, expected, strict=True):
        moved = (reference.start - start).norm()
        assert moved > 0.01
        assert (job.start - reference.start).norm() <= tolerance * moved


LOSSES = {
    "label smoothing": CrossEntropy(label_smoothing=0.2),
    "class weights": CrossEntropy(class_weights=(1.0, 3.0, 0.5, 0.1)),
    "focal": Focal(gamma=0.5, class_weights=(1.0, 3.0, 0.5, 2.0)),
    "gce": GCE(exponent=0.7, class_weights=(1.0, 3.0, 0.5, 2.0)),
    "sce": SCE(alpha=0.5, beta=2.0),
}


@needs_kernel
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9)], ids=Optimizer.describe)
def test_native_has_the_losses_with_a_name(loss: Loss, optimizer: Optimizer) -> None:
    model = models.build(MODELS["mlp"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    jobs = [replace(job, loss=loss.function, optimizer=optimizer) for job in jobs]
    assert choose_backend(model, jobs, "cpu") == ("native", {}, None)
    expected = BACKENDS["autograd"](model, jobs, batches)
    for job, trained, reference in zip(jobs, native.train(model, jobs, batches), expected, strict=True):
        moved = (reference.parameters - job.start).norm()
        assert moved > 0.01
        assert (trained.parameters - reference.parameters).norm() <= 2e-5 * moved


@needs_kernel
@pytest.mark.parametrize(("loss", "outputs"), [(Squared(), 1), (Squared(), 3), (Huber(delta=0.5), 1)])
@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9)], ids=Optimizer.describe)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_native_has_the_losses_of_numbers(name: str, optimizer: Optimizer, loss: Loss, outputs: int) -> None:
    build = {"mlp": models.mlp, "cnn": models.cnn}[name]
    model = models.build(build, SHAPE, outputs, seed=3)
    jobs, batches = make_jobs(model)
    jobs = [replace(job, loss=loss.function, group="ward", lr=job.lr / 5, optimizer=optimizer) for job in jobs]
    batches = [replace(data, y=data.x.flatten(1).sum(1) / 5) for data in batches]
    assert choose_backend(model, jobs, "cpu") == ("native", {}, None)
    expected = BACKENDS["autograd"](model, jobs, batches)
    for job, trained, reference in zip(jobs, native.train(model, jobs, batches), expected, strict=True):
        moved = (reference.parameters - job.start).norm()
        assert moved > 0.001
        assert (trained.parameters - reference.parameters).norm() <= 1e-4 * moved


@needs_kernel
def test_focal_loss_of_a_certain_prediction_has_no_gradient() -> None:
    model = models.build(MODELS["logistic"], SHAPE, CLASSES, seed=3)
    start = models.parameters_to_vector(model)
    start[-CLASSES] = 200.0  # the bias of class 0
    x, y = torch.zeros(5, *SHAPE), torch.zeros(5, dtype=torch.long)
    data = make_batches(x, y, seed=3, round=1, client=0, epochs=1, batch_size=5)
    job = LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=1.0, loss=Focal(gamma=0.5).function)
    (trained,) = native.train(model, [job], [data])
    assert torch.equal(trained.parameters, start)


INF = float("inf")
TILTS = ((0.0, 0.0), (2.0, -2.0), (-2.0, 2.0), (50.0, 100.0), (INF, -INF), (-INF, INF), (0.0, INF), (INF, 0.0))


@pytest.mark.parametrize("size", [1, 3, 10, 33])
@pytest.mark.parametrize("hidden", [(), (5,), (70, 50), (20, 33, 16)], ids=str)
@pytest.mark.parametrize(
    ("backend", "optimizer"),
    [
        ("native", SGD()),
        ("native", SGD(momentum=0.5, weight_decay=0.1, clip_norm=2)),
        ("fused", SGD()),
    ],
)
def test_any_depth_and_batch_size(backend: str, optimizer: Optimizer, hidden: tuple[int, ...], size: int) -> None:
    if backend == "native" and not native.available():
        pytest.skip(f"native cannot run because {native.unavailable_reason()}")
    model = models.build(lambda: models.mlp(SHAPE, CLASSES, hidden), SHAPE, CLASSES, seed=7)
    received = models.parameters_to_vector(model)
    rng = torch.Generator().manual_seed(8)
    samples = min(37, 10 * size)
    x, y = torch.randn(samples, *SHAPE, generator=rng), torch.randint(0, CLASSES, (samples,), generator=rng)
    data = make_batches(x, y, seed=3, round=1, client=0, epochs=1, batch_size=size)
    personal = received + 0.05 * torch.randn(len(received), generator=rng)
    jobs = [
        LocalJob(start=personal, anchor=received, prox=prox, tau=tau, lam=lam, lr=0.05, optimizer=optimizer)
        for (tau, lam), prox in zip(TILTS, (0.0, 0.3) * 4, strict=True)
    ]
    batches = [data] * len(jobs)
    for job, trained, expected in zip(
        jobs, BACKENDS[backend](model, jobs, batches), BACKENDS["autograd"](model, jobs, batches), strict=True
    ):
        moved = (expected.parameters - job.start).norm()
        assert (trained.parameters - expected.parameters).norm() <= 3e-5 * moved, job


@pytest.mark.parametrize("last_batch", LAST_BATCH)
@pytest.mark.parametrize(("samples", "batch_size"), [(23, 10), (40, 10), (7, 10), (1, 10), (101, 8), (10, 1)])
def test_an_epoch_is_split_as_said(samples: int, batch_size: int, last_batch: str) -> None:
    bounds = batch_bounds(samples, batch_size, last_batch)
    sizes = [end - begin for begin, end in pairwise(bounds)]
    assert bounds[0] == 0
    assert 1 <= min(sizes)
    assert max(sizes) <= batch_size
    full, leftover = divmod(samples, batch_size)
    if last_batch == "even":
        assert (sum(sizes), len(sizes)) == (samples, full + (leftover > 0))
        assert max(sizes) - min(sizes) <= 1
    elif last_batch == "keep":
        assert sizes == [batch_size] * full + [leftover] * (leftover > 0)
    else:
        assert sizes == ([batch_size] * full or [leftover])


@pytest.mark.parametrize("last_batch", LAST_BATCH)
@pytest.mark.parametrize("backend", ["native", "fused", "stacked"])
def test_every_backend_splits_an_epoch_alike_and_stops_after_a_jobs_epochs(backend: str, last_batch: str) -> None:
    """Jobs of one, two and all epochs on the same batches: each as if it were alone with batches of its own."""
    if backend == "native" and not native.available():
        pytest.skip(f"native cannot run because {native.unavailable_reason()}")
    model = models.build(lambda: models.mlp(SHAPE, CLASSES, (9,)), SHAPE, CLASSES, seed=7)
    start = models.parameters_to_vector(model)
    rng = torch.Generator().manual_seed(8)
    x, y = torch.randn(23, *SHAPE, generator=rng), torch.randint(0, CLASSES, (23,), generator=rng)
    settings = {"seed": 3, "round": 1, "client": 0, "batch_size": 10, "last_batch": last_batch}
    job = LocalJob(start=start, anchor=start, prox=0.1, tau=1.0, lam=-2.0, lr=0.05)
    jobs = [replace(job, epochs=1), replace(job, epochs=2), job]
    together = BACKENDS[backend](model, jobs, [make_batches(x, y, epochs=3, **settings)] * 3)
    for epochs, trained in zip((1, 2, 3), together, strict=True):
        (alone,) = BACKENDS["autograd"](model, [job], [make_batches(x, y, epochs=epochs, **settings)])
        moved = (alone.parameters - start).norm()
        assert (trained.parameters - alone.parameters).norm() <= 3e-5 * moved


def conv_net(
    shape: tuple[int, int, int], channels: tuple[int, ...], size: int, padding: int, hidden: tuple[int, ...]
) -> nn.Module:
    """Convolutions with kernels of any size, then a perceptron."""
    (planes, height, width), layers = shape, []
    for out in channels:
        layers += [nn.Conv2d(planes, out, size, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        planes, height, width = out, *((side + 2 * padding - size + 1) // 2 for side in (height, width))
    return nn.Sequential(*layers, *models.mlp((planes, height, width), CLASSES, hidden))


@needs_kernel
@pytest.mark.parametrize(
    ("shape", "channels", "size", "padding", "hidden"),
    [
        ((3, 8, 8), (32, 64), 3, 1, ()),
        ((1, 9, 13), (5, 17), 3, 1, (12,)),
        ((2, 6, 4), (40,), 5, 2, ()),
        ((3, 4, 4), (20,), 1, 0, ()),
        ((1, 12, 11), (5, 17), 3, 0, (12,)),
        ((1, 17, 16), (20, 50), 5, 0, ()),
        ((2, 11, 12), (6, 33), 5, 1, ()),
        ((3, 7, 9), (18, 4), 2, 0, ()),
        ((2, 6, 5), (7, 20), 4, 2, ()),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [1, 10])
def test_any_image_and_kernel_size(
    shape: tuple[int, int, int], channels: tuple[int, ...], size: int, padding: int, hidden: tuple[int, ...], batch: int
) -> None:
    model = models.build(lambda: conv_net(shape, channels, size, padding, hidden), shape, CLASSES, seed=7)
    received = models.parameters_to_vector(model)
    rng = torch.Generator().manual_seed(8)
    x, y = torch.randn(13, *shape, generator=rng), torch.randint(0, CLASSES, (13,), generator=rng)
    x[:4] = x[:4].round().clamp(-1, 0)  # ties: several of four pixels are often the largest
    data = make_batches(x, y, seed=3, round=1, client=0, epochs=1, batch_size=batch)
    personal = received + 0.05 * torch.randn(len(received), generator=rng)
    jobs = [
        LocalJob(start=personal, anchor=received, prox=prox, tau=tau, lam=lam, lr=0.05)
        for prox, tau, lam in ((0.0, 0.0, 0.0), (0.3, 2.0, -2.0))
    ]
    assert choose_backend(model, jobs, "cpu").name == "native"
    expected = BACKENDS["autograd"](model, jobs, [data] * 2)
    for job, trained, reference in zip(jobs, native.train(model, jobs, [data] * 2), expected, strict=True):
        assert (trained.parameters - reference.parameters).norm() <= 3e-5 * (reference.parameters - job.start).norm()


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_the_autograd_loop_equals_torch_optim(name: str) -> None:
    """An independent loop with `F.cross_entropy`, a proximal term in the loss, and `torch.optim.SGD`."""
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)
    received = models.parameters_to_vector(model)
    rng = torch.Generator().manual_seed(5)
    x, y = torch.randn(23, *SHAPE, generator=rng), torch.randint(0, CLASSES, (23,), generator=rng)
    data = make_batches(x, y, seed=0, round=1, client=0, epochs=3, batch_size=10)
    personal = received + 0.02
    (trained,) = BACKENDS["autograd"](
        model, [LocalJob(start=personal, anchor=received, prox=0.3, tau=0.0, lam=0.0, lr=0.1)], [data]
    )

    net = models.with_weights(model, personal)
    anchors = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(3):
        order = seeds.permutations(seeds.key(0, "order", round=1, client=0), 3, 23)[epoch]
        for rows in order.split([7, 8, 8]):  # 23 samples in three even batches
            optimizer.zero_grad()
            prox = sum((p - a).square().sum() for p, a in zip(net.parameters(), anchors, strict=True))
            (F.cross_entropy(net(x[rows]), y[rows]) + 0.3 / 2 * prox).backward()
            optimizer.step()
    torch.testing.assert_close(trained.parameters, models.parameters_to_vector(net), rtol=1e-4, atol=2e-6)


def test_dropout_is_active_and_depends_on_round_and_client() -> None:
    model = models.build(MODELS["dropout"], SHAPE, CLASSES, seed=3)
    no_dropout = copy.deepcopy(model)
    no_dropout[2].p = 0.0
    jobs, batches = make_jobs(model, epochs=1)
    (with_dropout,), (without,) = (BACKENDS["autograd"](net, jobs[:1], batches[:1]) for net in (model, no_dropout))
    assert not torch.equal(with_dropout.parameters, without.parameters)
    x, y = batches[0].x, batches[0].y
    for round, client in ((2, 0), (3, 0), (2, 1)):  # the same batches with the key of another round or client
        key = make_batches(x, y, seed=1, round=round, client=client, epochs=1, batch_size=10).key
        (other,) = BACKENDS["autograd"](model, jobs[:1], [replace(batches[0], key=key)])
        assert torch.equal(with_dropout.parameters, other.parameters) == ((round, client) == (2, 0))


def test_a_batch_is_no_larger_than_the_data() -> None:
    x, y = torch.zeros(23, 1), torch.zeros(23, dtype=torch.long)
    assert make_batches(x, y, seed=0, round=1, client=0, epochs=2, batch_size=100_000).size == 23


def test_precision_is_only_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "triton_reason", lambda: None)
    assert choose(MODELS["mlp"](), "cuda", precision="tf32").name == "stacked"
    assert choose(nn.Sequential(MODELS["mlp"](), nn.RReLU()), "cuda", precision="bfloat16").name == "autograd"
    for backend in ("auto", "stacked", "autograd"):
        with pytest.raises(InputError, match="precision = 'bfloat16' is for CUDA, not for cpu; leave it out"):
            choose(MODELS["mlp"](), "cpu", backend, precision="bfloat16")


def test_identical_jobs_are_trained_once() -> None:
    w, other = torch.zeros(3), torch.ones(3)
    plain = {"tau": 0.0, "lam": 0.0, "lr": 0.1}
    fedavg = LocalJob(start=w, anchor=w, prox=0.0, **plain)
    ditto_w = LocalJob(start=w, anchor=other, prox=0.0, **plain)  # without a proximal term the anchor is unused
    ditto_v = LocalJob(start=w, anchor=w, prox=0.1, **plain)
    tilted = LocalJob(start=w, anchor=w, prox=0.0, tau=1.0, lam=0.0, lr=0.1)
    distinct, indices = distinct_jobs([fedavg, ditto_w, ditto_v, tilted, fedavg])
    assert indices == [0, 0, 1, 2, 0]
    assert len(distinct) == 3


def test_an_epoch_has_every_sample_once() -> None:
    x = torch.arange(23.0)[:, None]
    data = make_batches(x, torch.arange(23), seed=0, round=1, client=4, epochs=2, batch_size=10)
    pairs = list(data.all())
    assert [len(y) for _, y in pairs] == [7, 8, 8] * 2
    assert len(data) == 6
    for epoch in (pairs[:3], pairs[3:]):
        assert sorted(torch.cat([y for _, y in epoch]).tolist()) == list(range(23))
    assert all(torch.equal(a[:, 0].long(), y) for a, y in pairs)


def test_fused_trains_plain_sgd_only() -> None:
    reason = r"because the optimiser is not plain SGD \(sgd, momentum = 0.9\); use 'auto' or 'autograd'"
    with pytest.raises(InputError, match=reason):
        choose(MODELS["mlp"](), backend="fused", optimizer=SGD(momentum=0.9))


def test_an_unsupported_backend_is_rejected() -> None:
    for model, backend, message in (
        (MODELS["cnn"](), "fused", "backend 'fused' cannot train this because the model is not .*; use 'auto'"),
        (Recurrent(), "native", "backend 'native' cannot train this because the model is not"),
        (MODELS["mlp"](), "best", "unknown backend 'best'; choose one of auto, autograd"),
    ):
        with pytest.raises(InputError, match=message):
            choose(model, "cpu", backend)
