"""On a CUDA device: the same numbers as on the CPU, for every backend, model, aggregator and command.

make test-cuda
"""

import gc
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedtilt as ft
from fedtilt import models, seeds
from fedtilt.losses import Focal
from fedtilt.math import aggregate
from fedtilt.math.losses import cross_entropy
from fedtilt.math.tilt import nested_tilt
from fedtilt.methods.aggregators import GeometricMedian, TrimmedMean
from fedtilt.methods.before import NNM, Clip
from fedtilt.optimizers import SGD, Adam, AdamW
from fedtilt.parts import buffers_to_vector, changing_buffers
from fedtilt.runs.export import export_model
from fedtilt.training import BACKENDS, Batches, LocalJob, choose_backend, make_batches, stacked
from fedtilt.training.dropout import keyed_dropout
from tests.helpers.callbacks import Calls, stop_after
from tests.helpers.models import CLASSES, MODELS, SHAPE, make_jobs
from tests.training.test_special_steps import KINDS, special

# torch's compiler uses deprecated parts of torch
pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")]

INF = math.inf
TRAIN = {"rounds": 3, "participation": 0.5, "epochs": 2, "batch_size": 10, "lr": 0.1}
METHODS = [ft.fedavg(), ft.ditto(0.1), ft.fedtilt(tau=1, lam=-2, mu=0.1, q=-0.01)]


@pytest.fixture(autouse=True)
def _needs_cuda() -> None:
    assert torch.cuda.is_available(), "these tests need a CUDA device"


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(
        ft.data.load("digits"), clients=6, classes_per_client=2, outliers="flips", outlier_clients=0.5, max_train=50,
        validation=0.2, seed=1,
    )  # fmt: skip


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.cpu().double() - b.cpu().double()).norm())


# -- formulas --------------------------------------------------------------------------------------------------------


def test_tilts() -> None:
    losses = torch.rand(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(100) % 7
    tilts = torch.tensor([0.0, INF, -INF, 1e-9, -1e-3, 0.5, -2.0, 30.0, 1e6], dtype=torch.float64)
    torch.testing.assert_close(
        ft.tilted_mean(losses.cuda(), tilts.cuda()).cpu(), ft.tilted_mean(losses, tilts), rtol=1e-12, atol=0
    )
    for tau, lam in ((0.0, 0.0), (5.0, -2.0), (INF, -INF), (-1.0, 1e-4)):
        on_gpu = nested_tilt(losses.cuda(), [y.cuda()], [lam, tau])
        torch.testing.assert_close(on_gpu.cpu(), nested_tilt(losses, [y], [lam, tau]), rtol=1e-12, atol=0)


def test_random_numbers_are_the_same_integers() -> None:
    key = seeds.key(3, "order", round=2, client=1)
    assert torch.equal(seeds.permutations(key, 3, 100, "cuda").cpu(), seeds.permutations(key, 3, 100))
    assert torch.equal(seeds.uniform(key, (50, 7), "cuda").cpu(), seeds.uniform(key, (50, 7)))
    torch.testing.assert_close(seeds.normal(key, (50, 7), "cuda").cpu(), seeds.normal(key, (50, 7)), rtol=1e-6, atol=0)
    with keyed_dropout() as masks:
        masks.start(key, 1)
        on_cpu = functional.dropout(torch.ones(50, 7))
        masks.start(key, 1)
        assert torch.equal(functional.dropout(torch.ones(50, 7, device="cuda")).cpu(), on_cpu)


AGGREGATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": aggregate.mean,
    "median": aggregate.median,
    "trimmed_mean": lambda m: aggregate.trimmed_mean(m, 0.3),
    "krum": lambda m: aggregate.krum(m, 0.3),
    "multi_krum": lambda m: aggregate.multi_krum(m, 0.3),
    "geometric_median": aggregate.geometric_median,
    "norm_clipped": aggregate.norm_clipped,
    "tilted q=0.01": lambda m: aggregate.tilted(m, 0.01),
    "tilted q=inf": lambda m: aggregate.tilted(m, INF),
    "tilted q=-0.01": lambda m: aggregate.tilted(m, -0.01, start=aggregate.median(m)),
    "tilted q=-inf": lambda m: aggregate.tilted(m, -INF, start=aggregate.median(m)),
    "tilted l2": lambda m: aggregate.tilted(m, distance="l2"),
    "tilted l1": lambda m: aggregate.tilted(m, distance="l1"),
    "tilted steps": lambda m: aggregate.tilted(m, 1e-3, steps=(3, 0.2)),
}


@pytest.mark.parametrize("far", [0.0, 1e6], ids=["close", "one far away"])
@pytest.mark.parametrize("name", AGGREGATORS)
def test_aggregation(name: str, far: float) -> None:
    clients = 100 + torch.randn(10, 20_000, generator=torch.Generator().manual_seed(0))
    clients[7] += far
    on_cpu, on_gpu = AGGREGATORS[name](clients), AGGREGATORS[name](clients.cuda())
    assert on_gpu.is_cuda
    assert distance(on_cpu, on_gpu) <= 1e-6 * max(1.0, on_cpu.norm())


# -- backends ----------------------------------------------------------------------------------------------------------


def train(
    backend: str, model: nn.Module, jobs: list[LocalJob], batches: list[Batches], precision: str = "float32"
) -> list[Tensor]:
    """The trained parameters of every job."""
    return [trained.parameters for trained in BACKENDS[backend](model, jobs, batches, precision=precision)]


@pytest.mark.parametrize("name", MODELS)
def test_every_backend_agrees_with_the_autograd_loop_on_the_cpu(name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)
    expected = train("autograd", model, *make_jobs(model))
    model.cuda()
    jobs, batches = make_jobs(model, device="cuda")
    chosen = choose_backend(
        model, jobs, "cuda", sample=(torch.zeros(1, *SHAPE, device="cuda"), torch.zeros(1, dtype=torch.long))
    ).name
    assert chosen == "stacked"
    for backend in dict.fromkeys(["autograd", chosen]):
        first, again = train(backend, model, jobs, batches), train(backend, model, jobs, batches)
        for job, trained, twice, reference in zip(jobs, first, again, expected, strict=True):
            assert torch.equal(trained, twice)
            assert distance(trained, reference) <= 1e-4 * distance(reference, job.start)


@pytest.mark.parametrize("name", ["dropout", "functional dropout"])
def test_dropout_is_seeded_and_does_not_change_the_generators(name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3).cuda()
    jobs, batches = make_jobs(model, epochs=1, device="cuda")
    before = torch.cuda.get_rng_state()
    first = train("autograd", model, jobs, batches)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.cuda.manual_seed(99)
    again = train("autograd", model, jobs[::-1], batches[::-1])[::-1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert distance(first[0], jobs[0].start) > 0.01


@pytest.mark.parametrize("name", ["cnn", "dropout"])
def test_stacks_of_any_width_differ_by_rounding(name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3).cuda()
    jobs, batches = make_jobs(model, device="cuda")
    together = train("stacked", model, jobs, batches)
    for width in (1, 5):
        parts = [slice(i, i + width) for i in range(0, len(jobs), width)]
        apart = [t for part in parts for t in train("stacked", model, jobs[part], batches[part])]
        for job, a, b in zip(jobs, together, apart, strict=True):
            assert distance(a, b) <= 1e-4 * distance(a, job.start)


@pytest.mark.parametrize("name", ["mlp", "norm"])
@pytest.mark.parametrize("size", [100, 700])
def test_large_batches_are_deterministic(size: int, name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3).cuda()
    received = models.parameters_to_vector(model)
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(1400, *SHAPE, generator=rng), torch.randint(0, CLASSES, (1400,), generator=rng)
    data = make_batches(x.cuda(), y.cuda(), seed=0, round=1, client=0, epochs=3, batch_size=size)
    job = LocalJob(start=received, anchor=received, prox=0.1, tau=2.0, lam=-1.0, lr=0.1)
    for backend in ("autograd", "stacked"):
        first, *others = (train(backend, model, [job], [data])[0] for _ in range(4))
        assert all(torch.equal(first, other) for other in others)


RECIPES = {  # model, optimiser, loss; the first three are trained by kernels
    "momentum": ("mlp", SGD(momentum=0.9, nesterov=True, weight_decay=0.01), cross_entropy),
    "momentum of convolutions": ("cnn", SGD(momentum=0.9), cross_entropy),
    "adam": ("cnn", Adam(weight_decay=0.1), cross_entropy),
    "clipping": ("mlp", SGD(momentum=0.5, clip_norm=0.5), cross_entropy),
    "class weights": ("norm", AdamW(), Focal(class_weights=(1.0, 2.0, 0.5, 3.0)).function),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_optimisers_and_losses(recipe: str) -> None:
    name, optimizer, loss = RECIPES[recipe]
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)

    def with_recipe(jobs: list[LocalJob]) -> list[LocalJob]:
        return [replace(job, optimizer=optimizer, loss=loss, lr=0.05 * job.lr) for job in jobs]

    jobs, batches = make_jobs(model)
    expected = train("autograd", model, with_recipe(jobs), batches)
    model.cuda()
    jobs, batches = make_jobs(model, device="cuda")
    for backend in ("autograd", "stacked"):
        first, again = (train(backend, model, with_recipe(jobs), batches) for _ in range(2))
        for job, a, b, reference in zip(jobs, first, again, expected, strict=True):
            assert torch.equal(a, b)
            assert distance(a, reference) <= 1e-3 * distance(reference, job.start)


@pytest.mark.parametrize("kind", KINDS)
def test_special_steps(kind: str) -> None:
    model = models.build(MODELS["mlp"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    expected = BACKENDS["autograd"](model, [special(job, kind) for job in jobs], batches)
    model.cuda()
    jobs, batches = make_jobs(model, device="cuda")
    jobs = [special(job, kind) for job in jobs]
    for trained, job, reference in zip(BACKENDS["stacked"](model, jobs, batches), jobs, expected, strict=True):
        assert distance(trained.parameters, reference.parameters) <= 1e-3 * distance(reference.parameters, job.start)
        if reference.anchor is not None:
            assert trained.anchor is not None
            assert distance(trained.anchor, reference.anchor) <= 1e-3 * distance(reference.anchor, job.anchor)


@pytest.mark.parametrize("frozen", [False, True])
def test_batch_norm_and_frozen_parts(frozen: bool) -> None:
    model = models.build(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(64, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES),
        ),
        SHAPE, CLASSES, seed=3,
    )  # fmt: skip
    model[0].weight.requires_grad_(False)
    names = changing_buffers(model, SHAPE)
    results = {}
    for device in ("cpu", "cuda"):
        buffers = None if frozen else buffers_to_vector(model, names).to(device)
        jobs, batches = make_jobs(model, device=device)
        jobs = [replace(job, buffer_names=names, buffers=buffers, lr=0.02) for job in jobs]
        backend = "autograd" if device == "cpu" else "stacked"
        results[device] = BACKENDS[backend](model, jobs, batches)
        model.cuda()
    for job, a, b in zip(jobs, results["cuda"], results["cpu"], strict=True):
        assert distance(a.parameters, b.parameters) <= 1e-3 * distance(b.parameters, job.start)
        if not frozen:
            torch.testing.assert_close(a.buffers.cpu(), b.buffers, rtol=1e-4, atol=1e-5)


class Strided(nn.Module):
    """A strided and a grouped convolution, and a skip connection."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(input_shape[0], 6, 3, stride=2, padding=1)
        self.mix = nn.Conv2d(6, 6, 3, padding="same", groups=2)
        self.head = nn.Linear(6 * 4 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.down(x))
        return self.head((x + torch.relu(self.mix(x))).flatten(1))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "norm", "strided"])
def test_precisions(name: str, precision: str) -> None:
    model = models.build(MODELS.get(name, Strided), SHAPE, CLASSES, seed=3)
    expected = train("autograd", model, *make_jobs(model, epochs=1))
    model.cuda()
    jobs, batches = make_jobs(model, epochs=1, device="cuda")
    trained = train("stacked", model, jobs, batches, precision)
    errors = [distance(a, b) / distance(b, job.start) for job, a, b in zip(jobs, trained, expected, strict=True)]
    if precision == "float32":
        assert max(errors) <= 1e-4
    else:  # in few bits, rounding may change which sample is the worst
        error = max(e for e, job in zip(errors, jobs, strict=True) if math.isfinite(job.lam))
        assert 1e-5 < error <= {"tf32": 0.05, "bfloat16": 0.4}[precision]


@pytest.mark.parametrize("outer", [(), (("class", 2.0), ("sex", 3.0))], ids=["one level", "three levels"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "norm"])
def test_levels_of_groups(name: str, outer: tuple[tuple[str, float], ...]) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3).cuda()
    jobs, batches = make_jobs(model, epochs=1, device="cuda")
    jobs = [replace(job, group="ward", outer=outer) for job in jobs]
    trained, expected = (train(backend, model, jobs, batches) for backend in ("stacked", "autograd"))
    for job, a, b in zip(jobs, trained, expected, strict=True):
        assert distance(a, b) <= 1e-4 * distance(b, job.start)


def test_many_shapes_in_one_process() -> None:
    model = models.build(MODELS["norm"], SHAPE, CLASSES, seed=3).cuda()
    received = models.parameters_to_vector(model)
    x, y = torch.randn(24, *SHAPE, device="cuda"), torch.arange(24, device="cuda") % CLASSES
    for size in range(2, 14):
        data = make_batches(x, y, seed=0, round=1, client=0, epochs=1, batch_size=size)
        job = LocalJob(start=received, anchor=received, prox=0.1, tau=1.0, lam=-1.0, lr=0.1)
        (a,), (b,) = (train(backend, model, [job], [data]) for backend in ("stacked", "autograd"))
        assert distance(a, b) <= 1e-4 * distance(b, received)


def test_results_do_not_depend_on_global_torch_settings() -> None:
    """Training is in float32 even if the program has allowed TF32 everywhere, by torch's new API."""
    model = models.build(Strided, SHAPE, CLASSES, seed=3).cuda()
    jobs, batches = make_jobs(model, epochs=1, device="cuda")
    plain = {backend: train(backend, model, jobs, batches) for backend in ("autograd", "stacked")}
    stacked.clear_cache()
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    try:
        matmul.fp32_precision = conv.fp32_precision = "tf32"
        for backend, expected in plain.items():
            assert all(torch.equal(a, b) for a, b in zip(train(backend, model, jobs, batches), expected, strict=True))
        assert (matmul.fp32_precision, conv.fp32_precision) == ("tf32", "tf32")
    finally:
        matmul.fp32_precision, conv.fp32_precision = before


def free_gpu_memory() -> None:
    """Return all unused memory to the GPU. Stacks of compiled models are in reference cycles, hence the collection."""
    stacked.clear_cache()
    gc.collect()
    torch.cuda.empty_cache()


def test_a_stack_larger_than_the_memory_is_split() -> None:
    free_gpu_memory()  # otherwise the tensors below may be placed in large cached blocks, and keep them reserved
    model = models.build(lambda: models.mlp((64,), 4, (2000, 2000)), (64,), 4, seed=0).cuda()  # 16 MB
    received = models.parameters_to_vector(model)
    x, y = torch.randn(20, 64, device="cuda"), torch.arange(20, device="cuda") % 4
    batches = [make_batches(x, y, seed=0, round=1, client=c, epochs=1, batch_size=10) for c in range(16)]
    jobs = [LocalJob(start=received, anchor=received, prox=0.1, tau=1.0, lam=-1.0, lr=0.1) for _ in batches]
    whole = [t.cpu() for t in train("stacked", model, jobs, batches)]
    free_gpu_memory()
    # The limit applies to reserved memory: what is allocated, and free parts of blocks that other tests still use.
    # These parts are too small for the buffers, so the limit is relative to all that is reserved now. 16 jobs do not
    # fit: theta and the anchors alone take 506 MiB.
    limit = torch.cuda.memory_reserved() + 400 * 2**20
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        parts = train("stacked", model, jobs, batches)
        assert stacked._jobs_in_memory[model] < 16
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(distance(a, b) <= 1e-4 * distance(a, received) for a, b in zip(whole, parts, strict=True))


# -- federations -------------------------------------------------------------------------------------------------------


def test_a_client_has_the_same_data_on_the_gpu(federation: ft.Federation) -> None:
    for client in range(federation.clients):
        on_cpu, on_gpu = (federation.train(client, seed=0, round=1, device=device) for device in ("cpu", "cuda"))
        assert torch.equal(on_cpu[1], on_gpu[1].cpu())
        torch.testing.assert_close(on_cpu[0], on_gpu[0].cpu())


def recurrent(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(input_shape[-1], 12, batch_first=True), nn.Linear(12, classes)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x.squeeze(1))[0][:, -1])

    return Rows()


def two_recurrent_layers(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    model = recurrent(input_shape, classes)
    model.lstm = nn.LSTM(input_shape[-1], 12, 2, dropout=0.3, batch_first=True)
    return model


@pytest.mark.filterwarnings("error:workers:fedtilt.errors.InputWarning")  # of processes that cannot train
def test_what_cannot_be_stacked_trains_in_processes(federation: ft.Federation) -> None:
    """Bit-identical to the loop of this process, with a class that has no module to be imported from."""
    one, two = (
        list(ft.simulate(METHODS, federation, two_recurrent_layers, device="cuda", workers=n, **TRAIN)) for n in (0, 2)
    )
    assert "dropout" in one[-1].backend.describe()
    for method in METHODS:
        a, b = (rounds[-1].state.server[method.name].parameters for rounds in (one, two))
        assert torch.equal(a, b)


def test_the_loop_trains_a_method_alone_as_beside_others(federation: ft.Federation) -> None:
    """Bit-identical, unlike a stack, in which the number of models may change the order of sums."""
    settings = TRAIN | {"device": "cuda", "backend": "autograd"}
    together = list(ft.simulate(METHODS, federation, ft.models.cnn, **settings))[-1].state
    for method in METHODS:
        alone = list(ft.simulate([method], federation, ft.models.cnn, **settings))[-1].state
        assert torch.equal(alone.server[method.name].parameters, together.server[method.name].parameters)


FACTORIES = {"mlp": ft.models.mlp, "cnn": ft.models.cnn, "logistic": ft.models.logistic, "recurrent": recurrent}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_simulation_agrees_with_the_cpu(name: str, federation: ft.Federation) -> None:
    last_rounds = {}
    for device in ("cpu", "cuda"):
        *_, last_rounds[device] = ft.simulate(METHODS, federation, FACTORIES[name], device=device, **TRAIN)
    on_cpu, on_gpu = last_rounds["cpu"], last_rounds["cuda"]
    start = models.parameters_to_vector(models.build(FACTORIES[name], federation.input_shape, 10, seeds.key(0, "init")))
    for method in METHODS:
        a, b = (r.state.server[method.name].parameters for r in (on_cpu, on_gpu))
        assert b.is_cuda
        assert distance(a, b) <= 1e-3 * distance(a, start)
        assert (on_cpu.counts[method.name].shared - on_gpu.counts[method.name].shared).abs().sum() <= 2
    assert on_cpu.state.client_states.owners() == on_gpu.state.client_states.owners() != []
    for owner in on_cpu.state.client_states.owners():
        a, b = (r.state.client_states.get(owner).personal for r in (on_cpu, on_gpu))
        assert distance(a, b) <= 1e-3 * distance(a, start)


def test_resume_export_and_pickle(federation: ft.Federation, tmp_path: Path) -> None:
    settings = TRAIN | {"device": "cuda"}
    whole = ft.run(METHODS, federation, ft.models.mlp, **settings)
    settings["checkpoint_seconds"] = 0
    with pytest.raises(KeyboardInterrupt):
        ft.run(METHODS, federation, ft.models.mlp, out=tmp_path, callbacks=[stop_after(2)], **settings)
    calls = Calls()
    resumed = ft.run(METHODS, federation, ft.models.mlp, out=tmp_path, callbacks=[calls], **settings)
    assert calls.notices == []
    assert repr(resumed) == repr(whole)
    copied = pickle.loads(pickle.dumps(whole))
    for name in whole:
        for a, b, c in zip(*(r[name].model(0).state_dict().items() for r in (whole, resumed, copied)), strict=True):
            assert a[1].device.type == b[1].device.type == c[1].device.type == "cpu"
            assert torch.equal(a[1], b[1])
            assert torch.equal(a[1], c[1])
        net = whole[name].shared
        net.load_state_dict(export_model(tmp_path, name).tensors)
        assert all(torch.equal(p, q) for p, q in zip(net.parameters(), whole[name].shared.parameters(), strict=True))
        assert copied[name]._server.parameters.device.type == next(copied[name]._net.parameters()).device.type == "cpu"
    # a run folder can be resumed on another device, with a notice
    on_cpu = TRAIN | {"device": "cpu", "workers": 0, "out": tmp_path, "callbacks": [calls]}
    assert repr(ft.run(METHODS, federation, ft.models.mlp, **on_cpu)) == repr(whole)
    assert any("device" in note for note in calls.notices), calls.notices


def test_a_model_may_already_be_on_the_device(federation: ft.Federation) -> None:
    model = ft.models.mlp(federation.input_shape, federation.classes)
    one, other = (
        ft.run([ft.ditto(0.1)], federation, net, device="cuda", **TRAIN) for net in (model, model.cuda())
    )  # fmt: skip
    assert repr(one) == repr(other)
    assert next(model.parameters()).is_cuda


def test_several_methods_in_one_run_equal_single_runs(federation: ft.Federation) -> None:
    methods = [ft.fedtilt(tau=tau, lam=-2, mu=0.1, name=f"tau {tau}") for tau in (0, 1, 5)]
    together = ft.run(methods, federation, ft.models.mlp, device="cuda", **TRAIN)
    for method in methods:
        alone = ft.run([method], federation, ft.models.mlp, device="cuda", **TRAIN)[method.name]
        a, b = together[method.name].personal(0), alone.personal(0)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


RIVALS = [
    ft.methods.afl(),
    ft.methods.qffl(q=1.0),
    ft.methods.fedmgda(),
    ft.methods.propfair(),
    ft.methods.scaffold(),
    ft.methods.feddyn(),
    ft.methods.pfedme(),
    ft.methods.fedrep(),
]


def test_rivals_screening_and_the_audit_agree_with_the_cpu(federation: ft.Federation) -> None:
    """Servers keep tensors on the CPU beside those on the device."""
    results = [
        ft.run([*METHODS, *RIVALS], federation, ft.models.mlp, device=device, audit=True, screen=3.0, **TRAIN)
        for device in ("cpu", "cuda")
    ]
    for name, on_cpu in results[0].items():
        for p, q in zip(on_cpu.shared.parameters(), results[1][name].shared.parameters(), strict=True):
            torch.testing.assert_close(p, q.cpu(), rtol=1e-3, atol=1e-5)
    a, b = (result.audit("fedtilt") for result in results)
    torch.testing.assert_close(torch.as_tensor(a.score), torch.as_tensor(b.score), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["ipm", "alie"])
def test_attackers_that_search_their_strength_agree_with_the_cpu(kind: str, federation: ft.Federation) -> None:
    rules = [
        ft.fedavg(name=aggregator.rule, aggregator=aggregator, before=[Clip(0.2), NNM(0.2)], client_momentum=0.9)
        for aggregator in (GeometricMedian(), TrimmedMean(0.2))
    ]
    attack = ft.Attack(kind=kind, search=True, clients=(federation.client_names[-1],))
    settings = TRAIN | {"participation": 1.0, "attack": attack}
    on_cpu, on_gpu = (ft.run(rules, federation, ft.models.mlp, device=d, **settings) for d in ("cpu", "cuda"))
    for name, result in on_cpu.items():
        for p, q in zip(result.shared.parameters(), on_gpu[name].shared.parameters(), strict=True):
            torch.testing.assert_close(p, q.cpu(), rtol=1e-2, atol=1e-4)


def test_two_workers_of_a_cluster_share_the_gpu(federation: ft.Federation) -> None:
    pytest.importorskip("ray")
    settings = TRAIN | {"device": "cuda:all", "stack_size": 2}
    one, two = (ft.run(METHODS, federation, ft.models.mlp, workers=workers, **settings) for workers in (1, 2))
    assert repr(one) == repr(two)
    for name, result in one.items():
        for p, q in zip(result.model(0).parameters(), two[name].model(0).parameters(), strict=True):
            assert torch.equal(p, q)


# -- commands ----------------------------------------------------------------------------------------------------------


def test_run_and_tune(fedtilt, tmp_path: Path) -> None:
    result = fedtilt("run", "--device", "cuda", "--set", "train.rounds=5", "--out", "run")
    assert result.code == 0, result.err
    environment = json.loads((tmp_path / "run" / "run.json").read_text())["environment"]
    assert environment["device"] == torch.cuda.get_device_name()
    assert (tmp_path / "run" / "report.html").stat().st_size > 100_000
    result = fedtilt("tune", "--device", "cuda", "--set", "train.rounds=5", "--over", "tau=0,10", "--out", "tuned")
    assert result.code == 0, result.err
    assert (tmp_path / "tuned" / "results.json").exists()


@pytest.mark.parametrize("what", ["propositions", "toy", "convergence", "signs", "outliers", "flips", "tilts"])
def test_reproduce(what: str, reproduce, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "empty"))
    result = reproduce(what, "--quick", "--device", "cuda", "--out", "r")
    assert result.code == 0, result.err
    results = [json.loads(line) for line in (tmp_path / "r" / f"{what}.jsonl").read_text().splitlines()]
    assert {result["environment"]["device"] for result in results} == {torch.cuda.get_device_name()}
