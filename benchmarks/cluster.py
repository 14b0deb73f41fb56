"""What a Ray cluster costs and gains on one machine: overhead, memory of the driver, GPUs shared by workers.

python -m benchmarks.cluster overhead      a round on Ray against forked workers, on the same cores
python -m benchmarks.cluster memory        the driver's memory while 10,000 clients train
python -m benchmarks.cluster aggregation   the driver's memory while 100 models of ten million parameters are aggregated
python -m benchmarks.cluster aggregation --clients 1000 --rules mean     needs 40 GB of disk
python -m benchmarks.cluster gpu           rounds with 1, 2 and 4 workers that share one GPU
python -m benchmarks.cluster states        rounds with personal models that are moved, and that stay on the nodes
python -m benchmarks.cluster arithmetic    bandwidth, memory and time of large federations, as in docs/cluster.md
"""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fedtilt as ft
from benchmarks.measure import available_cores
from benchmarks.memory import resident_mib
from benchmarks.options import make_result_parser, require_cuda, save_result
from fedtilt.cluster.connection import connected
from fedtilt.engine.client_states import ClientStates
from fedtilt.errors import InputWarning
from fedtilt.executors import sharded_models
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.executors.ray_executor import RayExecutor
from fedtilt.training import LocalJob

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


def overhead(rounds: int, sizes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Seconds of a round with forked workers and with as many workers of a local Ray; they alternate.

    Args:
        rounds: that are timed
        sizes: by model, the samples of a client and the epochs
    """
    workers, result = available_cores(), {}
    for model, (samples, epochs) in sizes.items():
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


RULES = {
    "mean": ft.fedavg(),
    "q = 1": ft.fedtilt(tau=0, lam=0, q=1.0, mu=math.inf),
    "median": ft.Method(name="median", aggregator="median"),
    **{rule: ft.Method(name=rule, aggregator={"rule": rule, "bad_share": 0.2}) for rule in ("trimmed_mean", "krum")},
}


def aggregation(clients: int, parameters: int, rules: Sequence[str]) -> dict[str, Any]:
    """The driver's memory and the seconds of a round in which the models of all clients stay on the cluster."""
    sharded_models.SHARDED_BYTES = 0  # for a small size too
    federation, model = random_federation((16,), clients, 4), _mlp_of(parameters)
    result = {}
    with connected("local"):
        for name in rules:
            settings = {"rounds": 1, "participation": 1.0, "local_steps": 1, "cluster": "auto"}
            before = resident_mib()
            Path("/proc/self/clear_refs").write_text("5")  # the highest resident memory counts from here
            (finished,) = ft.simulate([RULES[name]], federation, model, **settings)
            growth = _peak_mib() - before
            size = 4 * clients * parameters / 2**20
            print(
                f"{name}: {clients} models of {parameters:,} parameters, {size:,.0f} MiB; the driver grows by "
                f"{growth:.0f} MiB, the round takes {finished.seconds:.1f} s"
            )
            result[name] = {"driver_mib": growth, "models_mib": size, "seconds": finished.seconds}
    return {"clients": clients, "parameters": parameters, "rules": result}


def _mlp_of(parameters: int) -> Callable[..., torch.nn.Module]:
    """A model of 16 inputs and about this many parameters."""
    width = int(parameters**0.5) - 14

    def mlp(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return ft.models.mlp(input_shape, classes, hidden=(width, width))

    return mlp


def _peak_mib() -> float:
    """The highest resident memory of this process in MiB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def states(models: int, rounds: int) -> dict[str, Any]:
    """Seconds of a client's round when its personal model is moved, when it stays on the nodes, and of its training."""
    clients, result = 8, {}
    for parameters in (200_000, 1_000_000, 10_000_000)[:models]:
        federation = random_federation((16,), clients, 40)
        net = ft.models.build(_mlp_of(parameters), federation.input_shape, federation.outputs, seed=0)
        w = ft.models.parameters_to_vector(net)
        batches = BatchSettings(seed=0, epochs=1, batch_size=10, last_batch="even")
        training = ClientTraining(federation, net, "autograd", batches)
        seconds: dict[str, float] = {}
        for name, on_nodes in (("moved", False), ("on nodes", True)):
            executor = RayExecutor(
                training, device=torch.device("cpu"), precision="float32", address="local",
                workers=available_cores(), stack_size=None, timeout=600.0, notice=print, on_nodes=on_nodes,
            )  # fmt: skip
            start = {client: w.clone() for client in range(clients)}
            for number in range(1, rounds + 2):
                jobs = {c: [LocalJob(start=v, anchor=w, prox=0.1, tau=0.0, lam=0.0, lr=0.01)] for c, v in start.items()}
                started = time.perf_counter()
                start = {client: trained[0].parameters for client, trained in executor.train(number, jobs)}
                if number > 1:  # the first round starts workers
                    seconds[name] = min(seconds.get(name, math.inf), (time.perf_counter() - started) / clients)
            executor.close()
        alone = InProcessExecutor(training, torch.device("cpu"), "float32")
        started = time.perf_counter()
        list(alone.train(1, {0: [LocalJob(start=w, anchor=w, prox=0.1, tau=0.0, lam=0.0, lr=0.01)]}))
        seconds["training"] = (time.perf_counter() - started) / available_cores()
        result[parameters] = seconds
        print(
            f"{len(w):,} parameters, 4 steps: {seconds['moved'] * 1e3:.1f} ms a client with models moved, "
            f"{seconds['on nodes'] * 1e3:.1f} ms on the nodes, {seconds['training'] * 1e3:.1f} ms of training alone"
        )
    return {"seconds": result}


def arithmetic() -> dict[str, Any]:
    """A round of a million clients' federation, for some models and numbers of clients a round."""
    core, gpu_rate, network, passes = 2e10, 2e13, 1.25e9, 6000  # flop/s, flop/s, bytes/s (10 Gbit/s), samples · epochs
    rows, nodes = [], 8
    print(
        "| model | clients a round | models moved | models on the driver | 64 cores | 8 GPUs | moved | on the nodes |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for parameters in (200_000, 10_000_000):
        for clients in (100, 1_000, 10_000):
            size = 4 * parameters
            moved = 3 * size * clients  # a personal model to and from the worker, and the update back
            operations = 2 * 6 * parameters * passes * clients  # two models
            row = {
                "parameters": parameters, "clients": clients, "moved": moved, "driver": 2 * size * clients,
                "cores": operations / (64 * core), "gpus": operations / (8 * gpu_rate),
                "moved_seconds": moved / network,
                # the shared model to every node, and the blocks of all updates between nodes, all at once
                "on_nodes_seconds": nodes * size / network + clients * size / (nodes * network),
            }  # fmt: skip
            rows.append(row)
            print(
                f"| {parameters / 1e6:g} M | {clients:,} | {_bytes(moved)} | {_bytes(row['driver'])} | "
                f"{_time(row['cores'])} | {_time(row['gpus'])} | {_time(row['moved_seconds'])} | "
                f"{_time(row['on_nodes_seconds'])} |"
            )
    return {"rows": rows}


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1g} s"


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("what", choices=["overhead", "memory", "aggregation", "gpu", "states", "arithmetic"])
    parser.add_argument("--clients", type=int, help="of aggregation (default: 100; with --quick 6)")
    parser.add_argument("--rules", nargs="+", choices=RULES, help="of aggregation (default: all)")
    arguments = parser.parse_args()
    if arguments.what != "aggregation" and (arguments.clients or arguments.rules):
        parser.error(f"--clients and --rules are for aggregation, not for {arguments.what}; leave them out")
    if arguments.what == "gpu":
        require_cuda("this benchmark")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    warnings.simplefilter("ignore", InputWarning)  # of the random data
    quick = arguments.quick
    result = {
        "overhead": lambda: overhead(*((1, {"mlp": (60, 1)}) if quick else (15, {"mlp": (600, 10), "cnn": (500, 1)}))),
        "memory": lambda: memory(200, 8) if quick else memory(10_000, 200),
        "aggregation": lambda: aggregation(
            *((6, 500_000) if quick else (arguments.clients or 100, 10_000_000)), arguments.rules or list(RULES)
        ),
        "gpu": lambda: gpu(1 if quick else 5),
        "states": lambda: states(*((1, 1) if quick else (3, 5))),
        "arithmetic": arithmetic,
    }[arguments.what]()
    save_result(arguments, f"cluster-{arguments.what}", result, "cuda" if arguments.what == "gpu" else "cpu")


if __name__ == "__main__":
    main()
