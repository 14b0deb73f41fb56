"""What a Ray cluster costs and gains on one machine: overhead, memory of the driver, GPUs shared by workers.

python -m benchmarks.cluster overhead     a round on Ray against forked workers, on the same cores
python -m benchmarks.cluster memory       the driver's memory while 10,000 clients train
python -m benchmarks.cluster gpu          rounds with 1, 2 and 4 workers that share one GPU
python -m benchmarks.cluster states       moving personal models against training them
python -m benchmarks.cluster arithmetic   bandwidth, memory and time of large federations, as in docs/cluster.md
"""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

import torch

import fedtilt as ft
from benchmarks.measure import available_cores, write_result
from benchmarks.memory import resident_mib
from fedtilt.cluster.connection import connected, tensors_as_arrays
from fedtilt.rounds.client_states import ClientStates

SHAPES = {"mlp": (1, 28, 28), "cnn": (3, 32, 32)}


def random_federation(shape: tuple[int, ...], clients: int, samples: int) -> ft.Federation:
    """Clients with random samples: their values do not change the time of a step."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(clients * samples, *shape, generator=rng)
    y = torch.arange(len(x)) % 10
    data = ft.data.Dataset(
        name="random", x_train=x, y_train=y, x_test=x[:1000], y_test=y[:1000], classes=10,
        class_names=tuple(map(str, range(10))), image=False, client_train=None, client_test=None, client_names=None,
    )  # fmt: skip
    return ft.Federation.build(data, clients=clients, partition="iid")


def rounds_of(model: str, federation: ft.Federation, **settings: Any) -> Iterator[ft.Round]:
    """An endless run of the paper's setting: 10 clients a round, evaluated never."""
    defaults = {
        "rounds": 10**6, "eval_every": 10**6, "participation": 10 / federation.clients, "batch_size": 10, "lr": 0.01,
    }  # fmt: skip
    return iter(ft.simulate([ft.ditto()], federation, getattr(ft.models, model), **(defaults | settings)))


def overhead(rounds: int) -> dict[str, Any]:
    """Seconds of a round with forked workers and with as many workers of a local Ray; they alternate."""
    workers, result = available_cores(), {}
    for model, samples, epochs in (("mlp", 600, 10), ("cnn", 500, 1)):
        federation = random_federation(SHAPES[model], 20, samples)
        settings = {"epochs": epochs, "workers": workers}
        runs = {
            "forked": rounds_of(model, federation, **settings),
            "ray": rounds_of(model, federation, **settings, cluster="local"),
        }
        best = dict.fromkeys(runs, float("inf"))
        for number in range(rounds + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                next(run)
                if number:  # the first round starts workers
                    best[name] = min(best[name], time.perf_counter() - start)
        for run in runs.values():
            run.close()  # type: ignore[attr-defined]
        share = best["ray"] / best["forked"] - 1
        print(f"{model}: forked {best['forked']:.3f} s, Ray {best['ray']:.3f} s, {share:+.1%} ({workers} workers)")
        result[model] = best | {"overhead": share}
    return result


def memory(clients: int, rounds: int) -> dict[str, Any]:
    """Resident memory of the driver after every round, 100 clients a round."""
    federation = random_federation((16,), clients, 4)

    def small_mlp(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return ft.models.mlp(input_shape, classes, hidden=(64,))

    settings = {"participation": 100 / clients, "epochs": 1, "rounds": rounds, "eval_every": rounds}
    states = ClientStates(None, limit_bytes=2 * 2**20)
    trace = [
        resident_mib()
        for _ in ft.simulate([ft.ditto()], federation, small_mlp, client_states=states, cluster="local", **settings)
    ]
    quarter = len(trace) // 4
    print(f"{clients} clients: {trace[quarter]:.0f} MiB after {quarter} rounds, {trace[-1]:.0f} MiB after {rounds}")
    return {"clients": clients, "trace_mib": trace}


def gpu(rounds: int) -> dict[str, Any]:
    """Seconds of a round of 96 clients with 1, 2 and 4 workers on one GPU, and with none, in this process."""
    federation, result = random_federation(SHAPES["cnn"], 96, 500), {}
    for workers in (0, 1, 2, 4):
        where = {"device": "cuda:all", "workers": workers, "stack_size": 24} if workers else {"device": "cuda"}
        run = rounds_of("cnn", federation, epochs=2, participation=1.0, **where)
        times = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            next(run)
            times.append(time.perf_counter() - start)
        run.close()  # type: ignore[attr-defined]
        result[workers] = min(times[1:])
        print(f"{workers or 'no'} workers: {result[workers]:.3f} s a round of 96 clients")
    return {"seconds": result}


def states(size: int) -> dict[str, Any]:
    """Seconds to move a personal model to a worker and back, against those of its training."""
    result = {}
    with connected("local") as ray:

        class Echo:
            def send(self, tensor: Any) -> Any:
                return tensor

        echo = ray.remote(num_cpus=1)(Echo).remote()
        for name, parameters in (("mlp", 199_210), ("cnn", 356_810), ("10 million", 10_000_000))[:size]:
            tensor, times = torch.zeros(parameters), []
            for _ in range(10):
                start = time.perf_counter()
                with tensors_as_arrays():
                    reference = echo.send.remote(tensor)
                ray.get(reference)
                times.append(time.perf_counter() - start)
            step = 6 * parameters * 10 / 2e10  # operations of a step on ten samples, at 20 Gflop/s of a core
            result[name] = {"move": min(times), "steps": min(times) / step}
            print(f"{name}: {min(times) * 1e3:.1f} ms to a worker and back, the time of {min(times) / step:.1f} steps")
    return result


def arithmetic() -> dict[str, Any]:
    """A round of a million clients' federation, for some models and numbers of clients a round."""
    core, gpu_rate, network, passes = 2e10, 2e13, 1.25e9, 6000  # flop/s, flop/s, bytes/s (10 Gbit/s), samples · epochs
    rows = []
    print("| model | clients a round | sent and received | models on the driver | 64 cores | 8 GPUs | network |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for parameters in (200_000, 10_000_000):
        for clients in (100, 1_000, 10_000):
            size = 4 * parameters
            moved = 3 * size * clients  # a personal model to and from the worker, and the update back
            operations = 2 * 6 * parameters * passes * clients  # two models
            row = {
                "parameters": parameters, "clients": clients, "moved": moved, "driver": 2 * size * clients,
                "cores": operations / (64 * core), "gpus": operations / (8 * gpu_rate), "network": moved / network,
            }  # fmt: skip
            rows.append(row)
            print(
                f"| {parameters / 1e6:g} M | {clients:,} | {_bytes(moved)} | {_bytes(row['driver'])} | "
                f"{_time(row['cores'])} | {_time(row['gpus'])} | {_time(row['network'])} |"
            )
    return {"rows": rows}


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1g} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "memory", "gpu", "states", "arithmetic"])
    parser.add_argument("--quick", action="store_true", help="a small size, to see that it works")
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quick = arguments.quick
    result = {
        "overhead": lambda: overhead(2 if quick else 15),
        "memory": lambda: memory(200, 8) if quick else memory(10_000, 200),
        "gpu": lambda: gpu(1 if quick else 5),
        "states": lambda: states(1 if quick else 3),
        "arithmetic": arithmetic,
    }[arguments.what]()
    if not quick:
        write_result(f"cluster-{arguments.what}", result, device="cuda" if arguments.what == "gpu" else "cpu")


if __name__ == "__main__":
    main()
