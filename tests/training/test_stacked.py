"""The stacked backend trains any recipe like the autograd loop: optimisers, losses, BatchNorm, frozen parameters."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fedtilt import models
from fedtilt.errors import InputWarning
from fedtilt.losses import CrossEntropy, Focal
from fedtilt.math.losses import cross_entropy
from fedtilt.optimizers import SGD, Adam, AdamW, Optimizer
from fedtilt.parts import buffers_to_vector, changing_buffers
from fedtilt.training import BACKENDS, LocalJob, Trained, make_batches, native, stacked
from fedtilt.training.stacked import compilation, compiler_processes, graph_parts, stack, vmap_step
from fedtilt.training.stacked.buffers import Recipe
from fedtilt.training.stacked.compilation import lift_constants, simplify
from fedtilt.training.stacked.compiler_processes import CompilerProcesses
from fedtilt.training.stacked.compiler_worker import graph_from_text, graph_text
from fedtilt.training.stacked.layers import ParameterRows, parameter_index, read_models
from fedtilt.training.stacked.stack import Stack, StackSizes
from fedtilt.training.stacked.vmap_step import VmapStep
from tests.helpers.models import CLASSES, MODELS, SHAPE, make_jobs

SAMPLE = torch.zeros(1, *SHAPE)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_equal_training(
    model: nn.Module, jobs: list[LocalJob], batches: list, tolerance: float = 3e-5
) -> list[Trained]:
    """The stacked backend and the autograd loop give the same models and buffers."""
    for job in jobs:
        assert stacked.unsupported_reason(model, job, "cpu", SAMPLE) is None
    expected = BACKENDS["autograd"](model, jobs, batches)
    trained = BACKENDS["stacked"](model, jobs, batches)
    for job, a, b in zip(jobs, trained, expected, strict=True):
        moved = (b.parameters - job.start).norm()
        assert moved > 1e-3
        assert (a.parameters - b.parameters).norm() <= tolerance * moved, job
        assert (a.buffers is None) == (b.buffers is None) == (job.buffers is None)
        if a.buffers is not None:
            torch.testing.assert_close(a.buffers, b.buffers, rtol=1e-5, atol=1e-6)
    return trained


OPTIMIZERS = [
    SGD(momentum=0.9),
    SGD(weight_decay=0.1),
    SGD(momentum=0.9, nesterov=True, weight_decay=0.01),
    SGD(clip_norm=0.5),
    SGD(momentum=0.5, clip_norm=1e3),
    Adam(),
    Adam(weight_decay=0.1, clip_norm=0.5),
    AdamW(weight_decay=0.1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=Optimizer.describe)
@pytest.mark.parametrize("name", ["mlp", "norm"])
def test_optimisers(name: str, optimizer: Optimizer) -> None:
    """Unequal clients: those with fewer steps than others keep the model of their last step."""
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    slower = 0.05 if optimizer.name != "sgd" else 1.0
    assert_equal_training(
        model, [replace(job, optimizer=optimizer, lr=slower * job.lr) for job in jobs], batches, tolerance=2e-4
    )


def test_jobs_of_several_recipes_and_lengths_in_one_call() -> None:
    model = models.build(MODELS["norm"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    recipes = [
        {}, {"optimizer": SGD(momentum=0.9)}, {"steps": 3, "optimizer": SGD(momentum=0.9)}, {"epochs": 1},
    ]  # fmt: skip
    jobs = [replace(job, **recipes[i % 4]) for i, job in enumerate(jobs)]
    assert_equal_training(model, jobs, batches)


def hinge(outputs: Tensor, labels: Tensor) -> Tensor:
    """The multi-class hinge loss, smooth: by how much the other classes exceed the label's."""
    margin = 1 + outputs - outputs.gather(-1, labels[:, None])
    return nn.functional.softplus(margin).sum(-1)


@pytest.mark.parametrize(
    "loss",
    [
        CrossEntropy(label_smoothing=0.1).function,
        Focal(gamma=1.5).function,
        CrossEntropy(class_weights=(1.0, 2.0, 0.5, 3.0)).function,
        hinge,
    ],
    ids=["label smoothing", "focal", "class weights", "a function"],
)
def test_losses(loss) -> None:
    model = models.build(MODELS["mlp"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    assert_equal_training(model, [replace(job, loss=loss) for job in jobs], batches)


def batch_norm_net() -> nn.Module:
    """BatchNorm over images and vectors; with and without momentum, and without weights."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6, momentum=None), nn.ReLU(), nn.Flatten(),
        nn.Linear(24, 8, bias=False), nn.BatchNorm1d(8, affine=False, momentum=0.3), nn.ReLU(), nn.Linear(8, CLASSES),
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", [SGD(), AdamW()])
def test_batch_norm_with_buffers_of_its_own(optimizer: Optimizer) -> None:
    """Unequal clients and short batches: padding neither normalises nor enters the running statistics."""
    model = models.build(batch_norm_net, SHAPE, CLASSES, seed=3)
    names = changing_buffers(model, SHAPE)
    assert len(names) == 9
    initial = buffers_to_vector(model, names)
    jobs, batches = make_jobs(model)
    counts = [torch.full(b.shape, not b.is_floating_point()) for b in map(model.get_buffer, names)]
    average = torch.cat([t.reshape(-1) for t in counts]) * 2.7  # of the counters of several clients, as a server has it
    starts = [initial * (1 + i % 2) + average for i in range(len(jobs))]  # the variances differ too
    jobs = [
        replace(job, buffer_names=names, buffers=buffers, optimizer=optimizer, lr=0.01)
        for job, buffers in zip(jobs, starts, strict=True)
    ]
    trained = assert_equal_training(model, jobs, batches, tolerance=2e-4)
    counters = {result.buffers[-1].item() for result in trained}
    assert counters == {3 + 2, 3 + 6, 3 + 8}  # steps of the three clients in two epochs


@pytest.mark.parametrize("momentum", [0.2, None])
def test_batch_norm_used_twice_after_a_frozen_convolution(momentum: float | None) -> None:
    def net() -> nn.Module:
        norm = nn.BatchNorm2d(4, momentum=momentum)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1).requires_grad_(False), norm, nn.Conv2d(4, 4, 1, stride=2), norm,
            nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, CLASSES),
        )  # fmt: skip

    model = models.build(net, SHAPE, CLASSES, seed=3)
    names = changing_buffers(model, SHAPE)
    buffers = buffers_to_vector(model, names)
    jobs, batches = make_jobs(model)
    trained = assert_equal_training(
        model, [replace(job, buffer_names=names, buffers=buffers, lr=0.01) for job in jobs], batches, tolerance=2e-4
    )
    assert {tuple(result.buffers[[8, 17]].tolist()) for result in trained} == {(4, 2), (12, 6), (16, 8)}


def test_batch_norm_over_large_images() -> None:
    """The statistics of parts of a sample are put together."""

    def net() -> nn.Module:
        conv = nn.Conv2d(1, 2, 1, padding=8)  # 24 × 24 places, most of them far from the mean
        return nn.Sequential(conv, nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(128, CLASSES))

    model = models.build(net, SHAPE, CLASSES, seed=3)
    names = changing_buffers(model, SHAPE)
    jobs, batches = make_jobs(model)
    recipe = {"buffer_names": names, "buffers": buffers_to_vector(model, names), "lr": 0.01}
    assert_equal_training(model, [replace(job, **recipe) for job in jobs], batches)


def test_frozen_batch_norm() -> None:
    model = models.build(batch_norm_net, SHAPE, CLASSES, seed=3).train()
    model(torch.randn(50, *SHAPE, generator=torch.Generator().manual_seed(1)))  # statistics of some data
    jobs, batches = make_jobs(model)
    jobs = [replace(job, buffer_names=changing_buffers(model, SHAPE)) for job in jobs]
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert_equal_training(model, jobs, batches)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_a_batch_of_one_sample_is_refused_by_torch() -> None:
    model = models.build(batch_norm_net, SHAPE, CLASSES, seed=3)
    names = changing_buffers(model, SHAPE)
    start = models.parameters_to_vector(model)
    data = make_batches(
        torch.randn(3, *SHAPE), torch.tensor([0, 1, 2]), seed=0, round=1, client=0, epochs=1, batch_size=2
    )
    job = LocalJob(
        start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1, buffer_names=names,
        buffers=buffers_to_vector(model, names),
    )  # fmt: skip
    for backend in ("autograd", "stacked"):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            BACKENDS[backend](model, [job], [data])


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9, weight_decay=0.1)])
def test_frozen_parameters(optimizer: Optimizer) -> None:
    model = models.build(lambda: models.mlp(SHAPE, CLASSES, (20, 15)), SHAPE, CLASSES, seed=3)
    model[1].requires_grad_(False)
    jobs, batches = make_jobs(model)
    assert len(jobs[0].start) == 20 * 15 + 15 + 15 * CLASSES + CLASSES
    assert_equal_training(model, [replace(job, optimizer=optimizer) for job in jobs], batches)


class MovingMean(nn.Module):
    """A layer with a buffer that changes, and that is no BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


def test_what_is_not_supported_has_a_reason() -> None:
    model = nn.Sequential(nn.Flatten(), MovingMean(), nn.Linear(64, CLASSES))
    start = models.parameters_to_vector(model)
    job = LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1, buffer_names=("1.mean",))
    assert stacked.unsupported_reason(model, job, "cpu", SAMPLE) is None  # frozen
    changing = replace(job, buffers=torch.zeros(64))
    reason = stacked.unsupported_reason(model, changing, "cpu", SAMPLE)
    assert reason == "the buffers of layer '1' (MovingMean) change in training"

    def branches(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels) * (2 if outputs.max() > 0 else 1)

    net = models.build(MODELS["mlp"], SHAPE, CLASSES, seed=3)
    start = models.parameters_to_vector(net)
    plain = replace(job, start=start, anchor=start, buffer_names=(), loss=branches)
    reason = stacked.unsupported_reason(net, plain, "cpu", SAMPLE)
    assert reason is not None
    assert reason.endswith("it draws random numbers, or branches on values")


def test_constants_of_a_step_become_inputs_of_its_graph() -> None:
    def scale(x: Tensor, labels: Tensor) -> Tensor:
        factor = x.new_tensor([1.0, 2.0, 3.0]) + torch.tensor([0.5, 0.5, 0.5])
        return x * factor[labels]

    x, labels = torch.ones(2), torch.tensor([2, 0])
    graph = make_fx(scale, tracing_mode="fake")(x, labels)
    constants = lift_constants(graph)
    assert [value.tolist() for value in constants] == [[1.5, 2.5, 3.5]]
    assert all(node.op != "get_attr" for node in graph.graph.nodes)
    assert graph(x, labels, *constants).tolist() == [3.5, 1.5]

    def change_constant(x: Tensor) -> Tensor:
        return torch.tensor([1.0, 2.0]).add_(x)

    graph = make_fx(change_constant, tracing_mode="fake")(x)
    assert lift_constants(graph) == []
    assert [graph(x).tolist() for _ in range(2)] == [[2.0, 3.0], [2.0, 3.0]]


def test_a_graph_without_views_of_views_and_what_is_computed_twice() -> None:
    def step(x: Tensor, total: Tensor) -> None:
        turned = x.permute(1, -1, 0).permute(-1, 0, 1)  # x again
        flat = turned.reshape(6, 4).reshape(2, 12).reshape(2, 3, 4)
        swapped = x.permute(-1, 1, 0)
        x.exp()  # not used
        new = flat * x.sin() + swapped.permute(2, 1, 0) * x.sin()
        total.copy_(new + total)
        total.copy_(total * x.sin())  # another value than before

    x = torch.arange(24.0).reshape(2, 3, 4)
    graph = make_fx(step, tracing_mode="fake")(x, x)
    expected, found = torch.ones_like(x), torch.ones_like(x)
    graph(x, expected)
    before = [node.target for node in graph.graph.nodes]
    simplify(graph)
    graph(x, found)
    assert torch.equal(found, expected)
    aten = torch.ops.aten
    left = [node.target for node in graph.graph.nodes]
    assert [before.count(op.default) for op in (aten.permute, aten.view, aten.sin, aten.exp)] == [4, 3, 3, 1]
    assert [left.count(op.default) for op in (aten.permute, aten.view, aten.sin, aten.exp)] == [0, 0, 2, 0]


def test_a_graph_that_changes_its_own_values_or_draws_numbers_stays_as_it_is() -> None:
    def change(x: Tensor) -> Tensor:
        first, second = x.clone(), x.clone()
        return first.add_(1) + second

    def draw(x: Tensor) -> Tensor:
        return torch.rand_like(x) - torch.rand_like(x)

    x = torch.ones(3)
    graphs = [make_fx(function, tracing_mode="fake")(x) for function in (change, draw)]
    for graph in graphs:
        operations = [node.target for node in graph.graph.nodes]
        simplify(graph)
        assert [node.target for node in graph.graph.nodes] == operations
    assert graphs[0](x).tolist() == [3.0, 3.0, 3.0]


class ChangesInPlace(nn.Module):
    """What it computes is changed afterwards, and read as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        part = hidden[:, 2:4]
        hidden.mul_(2)
        return self.second(torch.relu_(hidden) + part.sum(1, keepdim=True))


def convolutions() -> nn.Module:
    convs = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.MaxPool2d(2)
    return nn.Sequential(*convs, nn.Flatten(), nn.Dropout(0.25), nn.LazyLinear(CLASSES))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch's compiler uses deprecated parts of torch
@pytest.mark.parametrize("build", [convolutions, ChangesInPlace], ids=["convolutions", "in-place"])
def test_a_step_in_parts_is_the_step(build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts go through their text, as to another process, and are run one after the other, uncompiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(graph_parts, "_OPERATIONS", 10)
    run: list[list[torch.fx.GraphModule]] = []

    def uncompiled(graph: torch.fx.GraphModule, settings: object):
        run[-1].append(graph)
        return lambda inputs: graph(*inputs)

    monkeypatch.setattr(compilation, "compile_part", uncompiled)
    monkeypatch.setattr(compilation, "graph_from_text", lambda text: graph_from_text(as_text(graph_from_text(text))))
    model = models.build(build, SHAPE, CLASSES, seed=3)
    names = changing_buffers(model, SHAPE)
    jobs, batches = make_jobs(model)
    jobs = [replace(job, lr=0.01, buffer_names=names) for job in jobs]
    if names:
        jobs = [replace(job, buffers=buffers_to_vector(model, names)) for job in jobs]
    whole = BACKENDS["stacked"](model, jobs, batches)
    stacked.clear_cache()

    def compiled_step(*arguments):
        run.append([])
        return VmapStep(*arguments, compiled=True)

    monkeypatch.setattr(stack, "VmapStep", compiled_step)
    in_parts = BACKENDS["stacked"](model, jobs, batches)
    stacked.clear_cache()
    assert all(len(parts) > 3 for parts in run)
    for a, b in zip(in_parts, whole, strict=True):
        torch.testing.assert_close(a.parameters, b.parameters, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(a.buffers, b.buffers, rtol=1e-5, atol=1e-6)


def as_text(graph: torch.fx.GraphModule) -> str:
    text = graph_text(graph)
    assert text is not None
    return text


def test_a_graph_from_its_text_has_inputs_of_the_same_layout() -> None:
    inputs = [torch.zeros(0, 0), torch.zeros(4, 0), torch.arange(24.0).reshape(4, 6).T[1:, 2:], torch.tensor(True)]
    graph = make_fx(lambda *tensors: tuple(t + 1 for t in tensors), tracing_mode="fake")(*inputs)
    copied = graph_from_text(as_text(graph))
    for node, value in zip(copied.graph.find_nodes(op="placeholder"), inputs, strict=True):
        found = node.meta["val"]
        assert (found.shape, found.stride(), found.dtype) == (value.shape, value.stride(), value.dtype)
        assert found.storage_offset() == value.storage_offset()
    for a, b in zip(copied(*inputs), graph(*inputs), strict=True):
        assert torch.equal(a, b)


def test_a_graph_with_a_function_of_python_has_no_text() -> None:
    graph = torch.fx.symbolic_trace(lambda x: torch.sin(x) + 1)
    for node in graph.graph.find_nodes(op="placeholder"):
        node.meta["val"] = torch.zeros(2)
    assert graph_text(graph) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch's compiler uses deprecated parts of torch
@pytest.mark.skipif(not native.available(), reason="torch compiles with a C++ compiler on the CPU")
def test_a_compiled_step_is_the_same_and_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, where every step is compiled: by two processes at first, and then from the cache."""
    from torch._dynamo.utils import counters

    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(graph_parts, "_OPERATIONS", 30)
    monkeypatch.setattr(compilation, "process_count", lambda device: 2)
    started: list[int] = []
    start = CompilerProcesses.__init__
    monkeypatch.setattr(CompilerProcesses, "__init__", lambda *args: started.append(args[2]) or start(*args))
    layers = nn.Flatten(), nn.Linear(64, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
    model = models.build(lambda: nn.Sequential(*layers), SHAPE, CLASSES, seed=3)
    model[3].bias.requires_grad_(False)
    names = changing_buffers(model, SHAPE)
    jobs, batches = make_jobs(model)
    buffers, optimizer = buffers_to_vector(model, names), SGD(momentum=0.9)
    loss = CrossEntropy(class_weights=(1.0, 2.0, 0.5, 3.0)).function
    recipe = {"buffer_names": names, "buffers": buffers, "optimizer": optimizer, "loss": loss, "lr": 0.01}
    jobs = [replace(job, **recipe) for job in jobs]
    monkeypatch.setattr(stack, "VmapStep", partial(VmapStep, compiled=True))
    for processes in (2, 0):
        counters.clear()
        stacked.clear_cache()
        assert_equal_training(model, jobs, batches)
        assert started.pop() == processes
        assert counters["inductor"]["fxgraph_cache_hit"] > 1
        assert counters["inductor"]["fxgraph_cache_miss"] == 0
    stacked.clear_cache()


def write_worker(folder: Path, after_a_request: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes run this after their first request in place of a compiler."""
    script = folder / "worker.py"
    script.write_text(f"import sys, time\nsys.stdin.readline(), sys.stdin.readline()\n{after_a_request}\n")
    monkeypatch.setattr(compiler_processes.compiler_worker, "__file__", str(script))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("after_a_request", ["", "sys.stdout.write('[[' + 9999 * 'x')", "time.sleep(60)"])
def test_compiler_processes_that_end_or_hang_hold_nobody_up(
    after_a_request: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_worker(tmp_path, after_a_request, monkeypatch)
    monkeypatch.setattr(compiler_processes, "_TIMEOUT_SECONDS", 1)
    with CompilerProcesses(torch.device("cpu"), 2) as processes:
        processes.generate(["one", "two", "three"], {})
    assert all(process.poll() is not None for process in processes._processes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_an_interrupt_ends_compiler_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_worker(tmp_path, "time.sleep(60)", monkeypatch)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt), CompilerProcesses(torch.device("cpu"), 2) as processes:
            processes.generate(["one", "two"], {})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 30
    assert all(process.poll() is not None for process in processes._processes)


def test_a_step_that_cannot_be_compiled_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    model = models.build(MODELS["mlp"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    expected = BACKENDS["stacked"](model, jobs, batches)
    stacked.clear_cache()
    monkeypatch.setattr(vmap_step, "compile_function", fail)
    monkeypatch.setattr(stack, "VmapStep", partial(VmapStep, compiled=True))
    with pytest.warns(InputWarning, match=r"could not compile the training step.*\(OSError: .*No space left on device"):
        found = BACKENDS["stacked"](model, jobs, batches)
    stacked.clear_cache()
    assert all(a.parameters.equal(b.parameters) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("stride", [1, 2, (3, 2)])
@pytest.mark.parametrize("kernel", [1, 3, (2, 5)])
def test_convolutions_as_products(kernel, stride, padding) -> None:
    """The output and all gradients, also with rows that no window reaches and padding wider than the kernel."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, kernel, stride=stride, padding=padding, dtype=torch.float64)
    as_product = stacked.stackable_copy(conv)
    results = []
    for layer in (conv, as_product):
        x = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
        out = layer(x)
        gradients = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        results.append((out, *gradients))
    torch.testing.assert_close(*results)


def test_parameter_rows() -> None:
    """A row holds every parameter once, and the weights of a convolution as its product takes them."""
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, groups=2), nn.Linear(3, 5))
    model[0].bias.requires_grad_(False)
    model.scale = nn.Parameter(torch.tensor(2.0))
    rows = ParameterRows(model)
    # three matrices, and 24 numbers of vectors and alone; each begins at a multiple of 64
    assert rows.pieces == [slice(0, 108), slice(128, 290), slice(320, 335), slice(384, 408)]
    vector, row = models.parameters_to_vector(model), torch.zeros(1, rows.row_length)
    row[:, parameter_index(rows, row.device)] = vector
    assert row.count_nonzero() == vector.count_nonzero()
    assert torch.equal(read_models(rows.views(row))[0], vector)
    parameters = rows.parameters([row[0, columns] for columns in rows.pieces])
    torch.testing.assert_close(parameters, models.vector_to_parameters(model, vector), rtol=0, atol=0)
    assert parameters["0.weight"].permute(2, 3, 1, 0).is_contiguous()
    assert parameters["2.weight"].is_contiguous()  # not computed as one product


def test_convolutions_as_products_in_bfloat16() -> None:
    """Under autocast products are in bfloat16; gradients have the types of what they are gradients of."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, padding=1)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    results = []
    for layer in (conv, stacked.stackable_copy(conv)):
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        results.append(torch.autograd.grad(out.float().square().sum(), [x, *layer.parameters()]))
        assert {gradient.dtype for gradient in results[-1]} == {torch.float32}
    torch.testing.assert_close(*results, rtol=0.05, atol=0.1)


def test_long_and_short_jobs_are_stacks_of_their_own_where_it_pays() -> None:
    start = torch.zeros(3)
    job = LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1)
    x, y = torch.zeros(40, 1), torch.zeros(40, dtype=torch.long)
    data = make_batches(x, y, seed=0, round=1, client=0, epochs=20, batch_size=10)

    def stacks(*lengths: tuple[int, int]) -> list[int]:
        """The sizes of the stacks of (number of jobs, their epochs)."""
        jobs = [replace(job, epochs=epochs) for count, epochs in lengths for _ in range(count)]
        split = stacked._split_into_stacks(jobs, [data] * len(jobs))
        assert sorted(i for stack in split for i in stack) == list(range(len(jobs)))
        return [len(stack) for stack in split]

    assert stacks((10, 10), (30, 10)) == [40]
    assert stacks((20, 10), (10, 20)) == [10, 20]  # 20 · 10 epochs saved, 16 · 10 lost
    assert stacks((10, 10), (10, 20)) == [20]  # too few to pay
    assert stacks((1000, 17), (10, 20)) == [1010]  # nearly as long
    assert stacks((40, 5), (40, 10), (40, 20)) == [40, 40, 40]


def test_samples_are_loaded_again_only_if_the_buffers_have_others() -> None:
    model = models.build(MODELS["norm"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    one_step = [replace(job, steps=1) for job in jobs]
    stack = Stack(model, Recipe.of(jobs[0]), StackSizes.of(jobs, batches), torch.device("cpu"), "float32")
    labels = stack._buffers.y

    def is_loaded_again(jobs: list[LocalJob], batches: list) -> bool:
        labels.fill_(-1)
        stack.load_samples(jobs, batches)
        return bool((labels >= 0).any())

    assert is_loaded_again(jobs, batches)
    assert not is_loaded_again(jobs, batches)
    assert not is_loaded_again(one_step, batches)
    assert is_loaded_again(jobs[::-1], batches[::-1])  # the rows of clients are in their order
    assert is_loaded_again(one_step, batches)
    assert is_loaded_again(jobs, batches)  # more steps than were loaded
    clients = {id(data): data for data in batches}
    damaged = {key: replace(data, y=data.y[:-1]) for key, data in clients.items()}
    with pytest.raises(RuntimeError):
        stack.load_samples(jobs, [damaged[id(data)] for data in batches])
    assert is_loaded_again(jobs, batches)
    copies = {key: replace(data) for key, data in clients.items()}
    assert is_loaded_again(jobs, [copies[id(data)] for data in batches])
    copies.clear()  # what is loaded does not keep its batches in memory
    assert [data() for data in stack._loaded] == [None] * len(stack._loaded)


def test_one_other_client_is_loaded_again() -> None:
    model = models.build(MODELS["logistic"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    stack = Stack(model, Recipe.of(jobs[0]), StackSizes.of(jobs, batches), torch.device("cpu"), "float32")
    for row, data in enumerate({id(data): data for data in batches}.values()):
        stack.load_samples(jobs, batches)
        other = replace(data, y=data.y.flip(0))
        stack.load_samples(jobs, [other if each is data else each for each in batches])
        assert torch.equal(stack._buffers.y[row, : len(other.y)], other.y)


def test_the_stack_that_was_used_least_recently_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked.clear_cache()
    monkeypatch.setattr(stacked, "_MAX_STACKS", 2)
    a, b, c = (models.build(MODELS["logistic"], SHAPE, CLASSES, seed=seed) for seed in range(3))
    for model in (a, b, a, c):
        BACKENDS["stacked"](model, *make_jobs(model))
    assert {key[0] for key in stacked._stacks} == {a, c}
    stacked.clear_cache()


def test_threads_that_train_one_model_have_a_stack_each(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked.clear_cache()
    model = models.build(MODELS["logistic"], SHAPE, CLASSES, seed=3)
    jobs, batches = make_jobs(model)
    others = [replace(job, start=-job.start) for job in jobs]
    expected = [BACKENDS["stacked"](model, each, batches) for each in (jobs, others)]  # leaves a stack
    train, both, used = Stack.train, threading.Barrier(2, timeout=60), []

    def train_together(self: Stack, *arguments: list) -> list[Trained]:
        used.append(self)
        both.wait()
        return train(self, *arguments)

    monkeypatch.setattr(Stack, "train", train_together)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: BACKENDS["stacked"](model, each, batches), (jobs, others)))
    assert used[0] is not used[1]
    for of_thread, alone in zip(found, expected, strict=True):
        for a, b in zip(of_thread, alone, strict=True):
            assert torch.equal(a.parameters, b.parameters)
    stacked.clear_cache()
