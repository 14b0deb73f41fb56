"""Microseconds per step on a CUDA device, and whole runs. Needs only torch, numpy and safetensors.

    PYTHONPATH=src python -m benchmarks.gpu --out gpu.json
    PYTHONPATH=src python -m benchmarks.gpu --quick           # on the CPU

A step trains all models (10 clients × w and v × settings) on one mini-batch of ten samples each. Its time is the
difference between a round of many epochs and one of few, divided by the difference in steps; planning, loading and
aggregation happen once per round and cancel out. Random samples have the size of the real ones (600 of 28 × 28, 500 of
3 × 32 × 32), since the content does not change the cost. Whole runs use the data sets in `FEDTILT_DATA`, or random
samples where they are missing; the result says which. Compilation, some seconds for every model and precision on first
use, is not counted.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

import fedtilt as ft
from benchmarks.options import make_result_parser, require_cuda, save_result

MODELS = {"mlp": ((1, 28, 28), 600), "cnn": ((3, 32, 32), 500)}  # sample shape, samples per client
PRECISIONS = ("float32", "tf32", "bfloat16")
RUNS = {  # model, rounds, precisions, seeds
    "mnist": ("mlp", 50, PRECISIONS, 3),
    "cifar10": ("cnn", 500, ("tf32", "bfloat16"), 1),
}


@dataclass(frozen=True)
class Size:
    """How much is measured, and where."""

    device: str = "cuda"
    few_epochs: int = 2  # of the timed rounds
    many_epochs: int = 10
    clients: int = 100  # of a whole run
    samples: int | None = None  # per client; None: as many as the real data has

    def of_client(self, model: str) -> int:
        """Samples of a client."""
        return self.samples or MODELS[model][1]


QUICK = Size(device="cpu", few_epochs=1, many_epochs=2, clients=10, samples=20)


def random_data(model: str, clients: int, samples: int, test: int) -> ft.data.Dataset:
    """Random images with labels."""
    shape, _ = MODELS[model]
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * samples + test, *shape), generator=rng, dtype=torch.uint8)
    y = torch.arange(len(x)) % 10
    train = clients * samples
    return ft.data.Dataset(
        name="random", x_train=x[:train], y_train=y[:train], x_test=x[train:], y_test=y[train:], classes=10, image=True
    )


def simulate(
    methods: Sequence[ft.Method], federation: ft.Federation, model: str, precision: str, device: str, **settings: Any
) -> Iterator[ft.Round]:
    """The simulator on a device."""
    return ft.simulate(methods, federation, getattr(ft.models, model), device=device, precision=precision, **settings)


def time_synchronized(function: Callable[[], object]) -> float:
    """Seconds until the call has returned and the device is idle."""
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_step(model: str, models: int, precision: str, repeats: int, size: Size) -> dict[str, Any]:
    """The time of a step, from the best short and the best long round after a first one that compiles."""
    samples = size.of_client(model)
    methods = [ft.fedtilt(tau=1 + i / 8, lam=1, name=f"setting {i}") for i in range(models // 20)]
    federation = ft.Federation.build(random_data(model, 10, samples, 100), clients=10, partition="iid")
    if size.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    first, best = {}, {}
    for epochs in (size.few_epochs, size.many_epochs):
        rounds = simulate(
            methods, federation, model, precision, size.device, rounds=10**6, participation=1.0, epochs=epochs,
            eval_every=10**6,
        )  # fmt: skip
        first[epochs] = time_synchronized(lambda: next(rounds))  # noqa: B023
        best[epochs] = min(time_synchronized(lambda: next(rounds)) for _ in range(repeats))  # noqa: B023
        rounds.close()
    steps = samples // 10  # per epoch
    few, many = size.few_epochs, size.many_epochs
    return {
        "model": model, "models": models, "precision": precision, "steps": many * steps,
        "first_round_seconds": first[few], "round_seconds": best[many],
        "microseconds_per_step": (best[many] - best[few]) / ((many - few) * steps) * 1e6,
        "peak_memory_mib": torch.cuda.max_memory_allocated() / 2**20 if size.device == "cuda" else None,
    }  # fmt: skip


def load_or_random(name: str, size: Size) -> ft.data.Dataset:
    """The data set, or random samples of its size where it is missing or a smaller size is wanted."""
    model = RUNS[name][0]
    try:
        if size.samples is None:
            return ft.data.load(name)
    except ft.InputError:
        pass
    samples = size.of_client(model)
    return random_data(model, size.clients, samples, size.clients * samples // 5)


def measure_run(name: str, data: ft.data.Dataset, precision: str, rounds: int, seed: int, size: Size) -> dict[str, Any]:
    """A run in the paper's setting, with evaluation; the first round compiles and is timed separately."""
    model = RUNS[name][0]
    federation = ft.Federation.build(data, clients=size.clients, classes_per_client=2, seed=seed)
    method = ft.fedtilt(tau=50, lam=100) if model == "mlp" else ft.fedtilt(tau=2, lam=1)
    iterator = simulate([method], federation, model, precision, size.device, rounds=rounds + 1, seed=seed)
    first_seconds = time_synchronized(lambda: next(iterator))
    last: list[ft.Round] = []
    seconds = time_synchronized(lambda: last.extend(list(iterator)[-1:]))
    return {
        "dataset": name, "samples_from": data.name, "model": model, "precision": precision, "rounds": rounds,
        "seed": seed, "seconds": seconds, "first_round_seconds": first_seconds,
        "accuracy": last[0].metrics(method.name).accuracy,
    }  # fmt: skip


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="only these")
    parser.add_argument("--models", action="append", type=int, help="models per step, a multiple of 20 (20 and 320)")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="only these")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--run", action="append", choices=[*RUNS, "none"], help="whole runs; all by default")
    parser.add_argument("--rounds", type=int, help="of the whole runs, instead of 50 and 500")
    arguments = parser.parse_args()
    size, repeats, models_at_once, precisions = Size(), arguments.repeats, (20, 320), PRECISIONS
    if arguments.quick:
        size, repeats, models_at_once, precisions = QUICK, 1, (20,), ("float32",)
    else:
        require_cuda("this benchmark")
    steps: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []

    def save() -> None:  # after every measurement, so that an interruption loses only the current one
        save_result(arguments, "gpu", {"steps": steps, "runs": runs}, size.device)

    for model, models, precision in product(
        arguments.model or MODELS, arguments.models or models_at_once, arguments.precision or precisions
    ):
        step = measure_step(model, models, precision, repeats, size)
        steps.append(step)
        label = f"{model} {models:4d} models {precision:9s}"
        print(f"{label} {step['microseconds_per_step']:9.1f} us per step", flush=True)
        save()
    for name in arguments.run or RUNS:
        if name != "none":
            _, rounds, of_run, seeds = RUNS[name]
            if arguments.quick:
                rounds, of_run, seeds = 1, precisions, 1
            data = load_or_random(name, size)
            for seed, precision in product(range(seeds), arguments.precision or of_run):
                run = measure_run(name, data, precision, arguments.rounds or rounds, seed, size)
                runs.append(run)
                label = f"{name} ({run['samples_from']} samples, {precision}, seed {seed})"
                duration = f"{run['rounds']} rounds in {run['seconds']:.2f} s after the first"
                print(f"{label}: {duration}, accuracy {run['accuracy']:.2f} %", flush=True)
                save()


if __name__ == "__main__":
    main()
