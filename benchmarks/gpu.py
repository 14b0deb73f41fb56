"""Microseconds a step on a CUDA device, and whole runs: needs torch, numpy and safetensors only.

    PYTHONPATH=src python benchmarks/gpu.py --out gpu.json

A step trains all lanes (10 clients × w and v × settings) on one mini-batch of ten samples each. Its time is what a
round of many epochs takes more than one of few, over the steps it has more, so that planning, loading and settling,
which a round does once, are not in it. Random samples have the size of the real ones (600 of 28 × 28, 500 of 3 × 32 ×
32): what they show does not change the cost. Whole runs use the data sets where `FEDTILT_DATA` has them and random
samples where not; the result says which. Nothing here counts compilation, which takes some seconds for every model and
precision the first time.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from measure import write

import fedtilt as ft
from fedtilt.evaluation.metrics import client_accuracy

MODELS = {"mlp": ((1, 28, 28), 600), "cnn": ((3, 32, 32), 500)}  # sample, samples of a client
PRECISIONS = ("float32", "tf32", "bfloat16")
RUNS = {  # model, rounds, precisions, seeds
    "mnist": ("mlp", 50, PRECISIONS, 3),
    "cifar10": ("cnn", 500, ("tf32", "bfloat16"), 1),
}
FEW, MANY = 2, 10  # epochs of the rounds that are timed


def random_data(model: str, clients: int, test: int) -> ft.data.Dataset:
    """Noise with labels, as many training samples a client as the real data has."""
    shape, samples = MODELS[model]
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * samples + test, *shape), generator=rng, dtype=torch.uint8)
    y = torch.arange(len(x)) % 10
    cut = clients * samples
    return ft.data.Dataset(
        name="random", x_train=x[:cut], y_train=y[:cut], x_test=x[cut:], y_test=y[cut:], classes=10, image=True
    )


def simulate_prepared(
    methods: list[ft.Method], fed: ft.Federation, model: str, precision: str, **settings: Any
) -> Iterator[ft.Round]:
    """The simulator on the device."""
    return ft.simulate(methods, fed, getattr(ft.models, model), device="cuda", precision=precision, **settings)


def synchronised(work: Callable[[], object]) -> float:
    """Seconds until the device has done it too."""
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def step(model: str, jobs: int, precision: str, turns: int) -> dict[str, Any]:
    """The best of some rounds, short and long, after one of each that compiles."""
    _, samples = MODELS[model]
    methods = [ft.fedtilt(tau=1 + i / 8, lam=1, name=f"setting {i}") for i in range(jobs // 20)]
    fed = ft.Federation.build(random_data(model, 10, 100), clients=10, partition="iid")
    torch.cuda.reset_peak_memory_stats()
    first, best = {}, {}
    for epochs in (FEW, MANY):
        rounds = simulate_prepared(
            methods, fed, model, precision, rounds=10**6, participation=1.0, epochs=epochs, eval_every=10**6
        )
        first[epochs] = synchronised(lambda: next(rounds))  # noqa: B023
        best[epochs] = min(synchronised(lambda: next(rounds)) for _ in range(turns))  # noqa: B023
        rounds.close()
    steps = samples // 10  # of an epoch
    return {
        "model": model, "models": jobs, "precision": precision, "steps": MANY * steps,
        "first_round_seconds": first[FEW], "round_seconds": best[MANY],
        "microseconds_per_step": (best[MANY] - best[FEW]) / ((MANY - FEW) * steps) * 1e6,
        "peak_memory_mib": torch.cuda.max_memory_allocated() / 2**20,
    }  # fmt: skip


def samples_of(name: str) -> ft.data.Dataset:
    """The data set where it is at hand, noise of its size where not."""
    try:
        return ft.data.load(name)
    except ft.InputError:
        return random_data(RUNS[name][0], 100, 10_000)


def whole(name: str, data: ft.data.Dataset, precision: str, rounds: int, seed: int) -> dict[str, Any]:
    """A run in the paper's setting, judged as usual; the first round compiles and is counted apart."""
    model = RUNS[name][0]
    fed = ft.Federation.build(data, clients=100, classes_per_client=2, seed=seed)
    method = ft.fedtilt(tau=50, lam=100) if model == "mlp" else ft.fedtilt(tau=2, lam=1)
    going = simulate_prepared([method], fed, model, precision, rounds=rounds + 1, seed=seed)
    first = synchronised(lambda: next(going))
    last: list[ft.Round] = []
    seconds = synchronised(lambda: last.extend(list(going)[-1:]))
    assert last[0].counts is not None
    own = last[0].counts[method.name].personal
    assert own is not None
    return {
        "data": data.name, "asked": name, "model": model, "precision": precision, "rounds": rounds, "seed": seed,
        "seconds": seconds, "first_round_seconds": first, "accuracy": client_accuracy(own, last[0].total).mean().item(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="only these")
    parser.add_argument("--lanes", action="append", type=int, help="a multiple of 20; 20 and 320 by default")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="only these")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--run", action="append", choices=[*RUNS, "none"], help="whole runs; all by default")
    parser.add_argument("--rounds", type=int, help="of the whole runs, instead of 50 and 500")
    parser.add_argument("--out", type=Path, help="the JSON file to write, instead of one in bench-results/")
    arguments = parser.parse_args()
    steps: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []

    def record() -> None:  # as it goes, so that an interruption leaves what was measured
        write("gpu", {"steps": steps, "runs": runs}, device="cuda", out=arguments.out)

    for model in arguments.model or MODELS:
        for jobs in arguments.jobs or (20, 320):
            for precision in arguments.precision or PRECISIONS:
                steps.append(step(model, jobs, precision, arguments.turns))
                found = steps[-1]
                print(
                    f"{model} {jobs:4d} lanes {precision:9s} {found['microseconds_per_step']:9.1f} us a step",
                    flush=True,
                )
                record()
    for name in arguments.run or RUNS:
        if name != "none":
            _, rounds, precisions, seeds = RUNS[name]
            data = samples_of(name)
            for seed, precision in product(range(seeds), arguments.precision or precisions):
                runs.append(whole(name, data, precision, arguments.rounds or rounds, seed))
                run = runs[-1]
                what = f"{name} ({run['data']} samples, {precision}, seed {seed})"
                took = f"{run['rounds']} rounds in {run['seconds']:.2f} s after the first"
                print(f"{what}: {took}, accuracy {run['accuracy']:.2f} %", flush=True)
                record()


if __name__ == "__main__":
    main()
