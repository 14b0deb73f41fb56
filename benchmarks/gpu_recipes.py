"""Recipes on a CUDA device: a ResNet in the stack and the loop, its compilation, processes, optimisers of the MLP.

    PYTHONPATH=src python -m benchmarks.gpu_recipes --out gpu-recipes.json

Every measurement is a process of its own. All share one new folder of compiled steps, so that the second process with
the ResNet in float32 shows what a second run has to wait for. A step trains 20 models on one mini-batch of ten samples
each; its time is the difference between training of many and of few steps, divided by the difference in steps. Needs
only torch, triton, numpy and safetensors; the processes of the loop need loky, too.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import fedtilt as ft
from benchmarks.options import make_result_parser, require_cuda, save_result
from fedtilt import models
from fedtilt.errors import InputWarning
from fedtilt.optimizers import SGD, Adam
from fedtilt.parts import buffers_to_vector, changing_buffers
from fedtilt.training import BACKENDS, Batches, LocalJob, make_batches

BATCH_SIZE, MODELS = 10, 20
OPTIMIZERS = {
    "plain": SGD(),
    "momentum": SGD(momentum=0.9, weight_decay=1e-4),
    "adam": Adam(),
}
QUICK_TASKS = ("mlp 20",)
TASKS = (
    "mlp 20", "mlp 320", "resnet18 float32 first", "resnet18 float32 second", "resnet18 tf32", "resnet18 bfloat16",
    "loop lstm", "loop resnet18",
)  # fmt: skip
WORKERS = (0, 2, 4)  # of the loop
SECONDS = 540  # all tasks take about half of it; those that would start later are skipped, and named


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm, and a shortcut."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(fan_out)
        self.shortcut = nn.Sequential()
        if stride > 1 or fan_in != fan_out:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, stride, bias=False), nn.BatchNorm2d(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + self.shortcut(x))


def resnet18(classes: int = 10, width: int = 64) -> nn.Module:
    """ResNet-18 for images of 3 × 32 × 32: torchvision's, with a 3 × 3 stem of stride 1 and without its pooling."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    fan_in = width
    for stage in range(4):
        fan_out = width * 2**stage
        layers += [BasicBlock(fan_in, fan_out, 1 if stage == 0 else 2), BasicBlock(fan_out, fan_out, 1)]
        fan_in = fan_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fan_in, classes))


def make_jobs(
    model: nn.Module, shape: tuple[int, ...], samples: int, epochs: int, count: int
) -> tuple[list[LocalJob], list[Batches]]:
    """So many plain jobs of one client each, on random samples; BatchNorm keeps its own statistics."""
    rng = torch.Generator().manual_seed(0)
    start = models.parameters_to_vector(model).cuda()
    names = changing_buffers(model, shape)
    buffers = buffers_to_vector(model, names).cuda() if names else None
    job = LocalJob(
        start=start, anchor=start, prox=0.0, tau=1.0, lam=1.0, lr=0.01, buffer_names=names, buffers=buffers
    )  # fmt: skip
    batches = []
    for client in range(count):
        x = torch.randn(samples, *shape, generator=rng).cuda()
        y = (torch.arange(samples) % 10).cuda()
        batches.append(
            make_batches(x, y, seed=0, round=1, client=client, epochs=epochs, batch_size=BATCH_SIZE)
        )  # fmt: skip
    return [job] * count, batches


def synchronized(function: Callable[[], object]) -> float:
    """Seconds until the call has returned and the device is idle."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def step_seconds(
    backend: str, model: nn.Module, jobs: list[LocalJob], batches: list[Batches], precision: str,
    few: int, many: int, repeats: int = 3,
) -> tuple[float, float]:  # fmt: skip
    """Seconds of the first call, which compiles, and of a step."""

    def train(steps: int) -> float:
        limited = [replace(job, steps=steps) for job in jobs]
        return synchronized(lambda: BACKENDS[backend](model, limited, batches, precision=precision))

    first = train(few)
    best = {steps: min(train(steps) for _ in range(repeats)) for steps in (few, many)}
    return first, (best[many] - best[few]) / (many - few)


def measure_mlp(count: int) -> dict[str, Any]:
    """Microseconds per step of the paper's MLP with every optimiser, and the ratio to plain SGD."""
    model = models.mlp()
    jobs, batches = make_jobs(model, (1, 28, 28), 600, 30, count)
    model.cuda()
    result: dict[str, Any] = {}
    for name, optimizer in OPTIMIZERS.items():
        own = [replace(job, optimizer=optimizer) for job in jobs]
        first, seconds = step_seconds("stacked", model, own, batches, "float32", 160, 1760)
        result[name] = {"microseconds_per_step": seconds * 1e6, "first_call_seconds": first}
    plain = result["plain"]["microseconds_per_step"]
    return result | {"ratios": {name: result[name]["microseconds_per_step"] / plain for name in OPTIMIZERS}}


def measure_resnet(precision: str) -> dict[str, Any]:
    """Milliseconds per step of 20 ResNets in the stack and in the loop, and how long the first call takes."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model = resnet18()
    jobs, batches = make_jobs(model, (3, 32, 32), 100, 8, MODELS)
    model.cuda()
    imports = synchronized(lambda: importlib.import_module("torch._inductor.compile_fx"))  # no part of a compilation
    _, loop = step_seconds("autograd", model, jobs, batches, precision, 2, 6)  # loads CUDA's libraries
    first, stacked = step_seconds("stacked", model, jobs, batches, precision, 16, 48)
    one = [replace(job, steps=1) for job in jobs]  # rounding errors grow a hundredfold with every further step
    (a, *_), (b, *_) = (BACKENDS[k](model, one, batches, precision=precision) for k in ("autograd", "stacked"))
    return {
        "import_seconds": imports,
        "first_call_seconds": first,
        "loop_milliseconds": loop * 1e3,
        "stacked_milliseconds": stacked * 1e3,
        "ratio": loop / stacked,
        "difference": float((a.parameters - b.parameters).norm() / (a.parameters - one[0].start).norm()),
        "cache": dict(counters["inductor"]),
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


class Rows(nn.Module):
    """Two LSTM layers with dropout between them, which are trained in the loop, over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(96, 128, 2, dropout=0.2, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The class scores of images (N, 3, 32, 32)."""
        return self.head(self.lstm(x.transpose(1, 2).flatten(2))[0][:, -1])


def measure_loop(name: str) -> dict[str, Any]:
    """Seconds a round of 16 clients, whose models train in the loop, by the number of processes."""
    warnings.filterwarnings("error", "workers", InputWarning)  # of processes that cannot train
    count, samples = 16, 100
    images = torch.rand(count, samples + 10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = torch.arange(samples + 10) % 10
    clients = [((x[:samples], y[:samples]), (x[samples:], y[samples:])) for x in images]
    federation, seconds = ft.Federation.from_clients(clients), {}
    for workers in WORKERS:
        torch.manual_seed(0)
        rounds = ft.simulate(
            [ft.fedavg()], federation, {"lstm": Rows, "resnet18": resnet18}[name](), rounds=4, participation=1.0,
            epochs=1, batch_size=BATCH_SIZE, lr=0.01, eval_every=4, device="cuda", precision="tf32",
            backend="autograd", workers=workers,
        )  # fmt: skip
        first = next(rounds)
        times = [first.seconds, *(r.seconds for r in rounds)]
        seconds[str(workers)] = {"first_round": times[0], "round": min(times[1:-1])}  # the last has an evaluation
    return {"processes": seconds}


def run_task(task: str) -> dict[str, Any]:
    """One measurement, in this process."""
    kind, setting, *_ = task.split()
    measure = {"mlp": lambda: measure_mlp(int(setting)), "loop": lambda: measure_loop(setting)}
    return measure.get(kind, lambda: measure_resnet(setting))()


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--task", choices=TASKS, help="measure this in this process and print JSON")
    arguments = parser.parse_args()
    require_cuda("this benchmark")
    if arguments.task:
        print(json.dumps(run_task(arguments.task)))
        return
    started, results = time.perf_counter(), {}
    with tempfile.TemporaryDirectory() as cache:
        for task in QUICK_TASKS if arguments.quick else TASKS:
            left = SECONDS - (time.perf_counter() - started)
            if left < 10:
                print(f"{task}: skipped, {SECONDS} s are over", flush=True)
                continue
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_recipes", "--task", task]
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
            begin = time.perf_counter()
            try:
                process = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=left, check=False
                )
            except subprocess.TimeoutExpired:
                print(f"{task}: stopped, {SECONDS} s are over", flush=True)
                continue
            if process.returncode:
                print(f"{task}: failed\n{process.stderr[-3000:]}", flush=True)
                continue
            results[task] = json.loads(process.stdout.splitlines()[-1])
            print(f"{task} ({time.perf_counter() - begin:.0f} s): {json.dumps(results[task])}", flush=True)
            save_result(arguments, "gpu_recipes", results, device="cuda")


if __name__ == "__main__":
    main()
