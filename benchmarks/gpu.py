"""Microseconds per step on a CUDA device, and whole runs. Needs only torch, numpy and safetensors.

    PYTHONPATH=src python -m benchmarks.gpu --out gpu.json

A step trains all models (10 clients × w and v × settings) on one mini-batch of ten samples each. Its time is the
difference between a round of many epochs and one of few, divided by the difference in steps; planning, loading and
aggregation happen once per round and cancel out. Random samples have the size of the real ones (600 of 28 × 28, 500 of
3 × 32 × 32), since the content does not change the cost. Whole runs use the data sets in `FEDTILT_DATA`, or random
samples where they are missing; the result says which. Compilation, some seconds for every model and precision on first
use, is not counted.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

import fedtilt as ft
from benchmarks.measure import write_result
from fedtilt.evaluation.metrics import client_accuracy

MODELS = {"mlp": ((1, 28, 28), 600), "cnn": ((3, 32, 32), 500)}  # sample shape, samples per client
PRECISIONS = ("float32", "tf32", "bfloat16")
RUNS = {  # model, rounds, precisions, seeds
    "mnist": ("mlp", 50, PRECISIONS, 3),
    "cifar10": ("cnn", 500, ("tf32", "bfloat16"), 1),
}
FEW_EPOCHS, MANY_EPOCHS = 2, 10  # of the timed rounds


def random_data(model: str, clients: int, test: int) -> ft.data.Dataset:
    """Random images with labels, as many per client as the real data has."""
    shape, samples = MODELS[model]
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * samples + test, *shape), generator=rng, dtype=torch.uint8)
    y = torch.arange(len(x)) % 10
    train = clients * samples
    return ft.data.Dataset(
        name="random", x_train=x[:train], y_train=y[:train], x_test=x[train:], y_test=y[train:], classes=10, image=True
    )


def simulate_on_gpu(
    methods: list[ft.Method], federation: ft.Federation, model: str, precision: str, **settings: Any
) -> Iterator[ft.Round]:
    """The simulator on the CUDA device."""
    return ft.simulate(methods, federation, getattr(ft.models, model), device="cuda", precision=precision, **settings)


def time_synchronized(function: Callable[[], object]) -> float:
    """Seconds until the call has returned and the device is idle."""
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_step(model: str, models: int, precision: str, repeats: int) -> dict[str, Any]:
    """The time of a step, from the best short and the best long round after a first one that compiles."""
    _, samples = MODELS[model]
    methods = [ft.fedtilt(tau=1 + i / 8, lam=1, name=f"setting {i}") for i in range(models // 20)]
    federation = ft.Federation.build(random_data(model, 10, 100), clients=10, partition="iid")
    torch.cuda.reset_peak_memory_stats()
    first, best = {}, {}
    for epochs in (FEW_EPOCHS, MANY_EPOCHS):
        rounds = simulate_on_gpu(
            methods, federation, model, precision, rounds=10**6, participation=1.0, epochs=epochs, eval_every=10**6
        )
        first[epochs] = time_synchronized(lambda: next(rounds))  # noqa: B023
        best[epochs] = min(time_synchronized(lambda: next(rounds)) for _ in range(repeats))  # noqa: B023
        rounds.close()
    steps = samples // 10  # per epoch
    seconds, more_steps = best[MANY_EPOCHS] - best[FEW_EPOCHS], (MANY_EPOCHS - FEW_EPOCHS) * steps
    return {
        "model": model, "models": models, "precision": precision, "steps": MANY_EPOCHS * steps,
        "first_round_seconds": first[FEW_EPOCHS], "round_seconds": best[MANY_EPOCHS],
        "microseconds_per_step": seconds / more_steps * 1e6,
        "peak_memory_mib": torch.cuda.max_memory_allocated() / 2**20,
    }  # fmt: skip


def load_or_random(name: str) -> ft.data.Dataset:
    """The data set, or random samples of its size where it is missing."""
    try:
        return ft.data.load(name)
    except ft.InputError:
        return random_data(RUNS[name][0], 100, 10_000)


def measure_run(name: str, data: ft.data.Dataset, precision: str, rounds: int, seed: int) -> dict[str, Any]:
    """A run in the paper's setting, with evaluation; the first round compiles and is timed separately."""
    model = RUNS[name][0]
    federation = ft.Federation.build(data, clients=100, classes_per_client=2, seed=seed)
    method = ft.fedtilt(tau=50, lam=100) if model == "mlp" else ft.fedtilt(tau=2, lam=1)
    iterator = simulate_on_gpu([method], federation, model, precision, rounds=rounds + 1, seed=seed)
    first_seconds = time_synchronized(lambda: next(iterator))
    last: list[ft.Round] = []
    seconds = time_synchronized(lambda: last.extend(list(iterator)[-1:]))
    assert last[0].counts is not None
    personal = last[0].counts[method.name].personal
    assert personal is not None
    return {
        "dataset": name, "samples_from": data.name, "model": model, "precision": precision, "rounds": rounds,
        "seed": seed, "seconds": seconds, "first_round_seconds": first_seconds,
        "accuracy": client_accuracy(personal, last[0].total).mean().item(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="only these")
    parser.add_argument("--models", action="append", type=int, help="models per step, a multiple of 20 (20 and 320)")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="only these")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--run", action="append", choices=[*RUNS, "none"], help="whole runs; all by default")
    parser.add_argument("--rounds", type=int, help="of the whole runs, instead of 50 and 500")
    parser.add_argument("--out", type=Path, help="the JSON file to write, instead of one in bench-results/")
    arguments = parser.parse_args()
    steps: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []

    def save() -> None:  # after every measurement, so that an interruption loses only the current one
        write_result("gpu", {"steps": steps, "runs": runs}, device="cuda", out=arguments.out)

    for model, models, precision in product(
        arguments.model or MODELS, arguments.models or (20, 320), arguments.precision or PRECISIONS
    ):
        step = measure_step(model, models, precision, arguments.repeats)
        steps.append(step)
        label = f"{model} {models:4d} models {precision:9s}"
        print(f"{label} {step['microseconds_per_step']:9.1f} us per step", flush=True)
        save()
    for name in arguments.run or RUNS:
        if name != "none":
            _, rounds, precisions, seeds = RUNS[name]
            data = load_or_random(name)
            for seed, precision in product(range(seeds), arguments.precision or precisions):
                run = measure_run(name, data, precision, arguments.rounds or rounds, seed)
                runs.append(run)
                label = f"{name} ({run['samples_from']} samples, {precision}, seed {seed})"
                duration = f"{run['rounds']} rounds in {run['seconds']:.2f} s after the first"
                print(f"{label}: {duration}, accuracy {run['accuracy']:.2f} %", flush=True)
                save()


if __name__ == "__main__":
    main()
