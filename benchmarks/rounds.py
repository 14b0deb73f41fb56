"""A round of the simulator, of the plain PyTorch loop and of other simulators: same samples, weights and clients.

Every implementation runs in its own process and trains one round at a time; the implementations alternate
(A B C A B C …). The first round of each is a warm-up (loading, compiling, starting workers) and is not timed. The
final models are all evaluated here, which checks that every implementation did the same work.
"""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import fedtilt as ft
from benchmarks.measure import available_cores, matmul_peak, step_operations
from benchmarks.options import make_result_parser, save_result
from benchmarks.processes import CACHE, Implementation, ImplementationError, ImplementationProcess
from fedtilt.engine.settings import TrainSettings

SHAPES = {"mlp": (1, 28, 28), "cnn": (3, 32, 32)}
PATTERN_STD = {"mlp": 12, "cnn": 48}  # of 255; the noise has 48
PREFIX = "fedtilt: "  # of the names of our implementations


@dataclass(frozen=True, kw_only=True)
class Task:
    """One table: the work of a round, and our methods that do it."""

    name: str
    title: str
    model: str
    samples: int
    epochs: int
    methods: tuple[ft.Method, ...]  # the other simulators train the first
    backends: tuple[str, ...] = ()  # that train the first method too, besides the default
    clients: int = 100
    selected: int = 10
    batch_size: int = 10
    lr: float = 0.01
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    simulators: bool = True  # whether the other simulators have this optimiser; the plain loop has

    @property
    def mu(self) -> float | None:
        """The personal model's proximal term, or None without a personal model."""
        personal = self.methods[0].personal
        return None if personal is None else personal.mu

    @property
    def steps(self) -> int:
        """Steps of a round, all models counted."""
        return self.selected * self.epochs * -(-self.samples // self.batch_size) * (1 if self.mu is None else 2)


TASKS = (
    Task(
        name="fedavg", title="FedAvg (one model per client), MLP 784-200-200-10", model="mlp", samples=600, epochs=10,
        methods=(ft.fedavg(),), backends=("fused",),
    ),
    Task(
        name="momentum", title="FedAvg, SGD with momentum 0.9 and weight decay 1e-4, MLP 784-200-200-10", model="mlp",
        samples=600, epochs=10, methods=(ft.fedavg(),), lr=0.001, momentum=0.9, weight_decay=1e-4, simulators=False,
    ),
    Task(
        name="adam", title="FedAvg, Adam, MLP 784-200-200-10", model="mlp", samples=600, epochs=10,
        methods=(ft.fedavg(),), lr=0.001, optimizer="adam", simulators=False,
    ),
    Task(
        name="two-models", title="Ditto and FedTilt (two models per client), MLP 784-200-200-10", model="mlp",
        samples=600, epochs=10, methods=(ft.ditto(), ft.fedtilt(tau=50, lam=100)), backends=("fused",),
    ),
    Task(
        name="cnn", title="FedAvg, CNN 32-64-128 on 3 × 32 × 32", model="cnn", samples=500, epochs=1,
        methods=(ft.fedavg(),),
    ),
)  # fmt: skip

FEDJAX = ("fedjax==0.0.17", "jax==0.4.38", "jaxlib==0.4.38")
OTHER_SIMULATORS = (
    Implementation(name="FedJAX, jit", script="run_fedjax", packages=FEDJAX),
    Implementation(name="FedJAX, pmap", script="run_fedjax", packages=FEDJAX, arguments=("--backend", "pmap")),
    Implementation(name="pfl", script="run_pfl", packages=("torch==2.13.0", "pfl==0.6.0")),
    Implementation(
        name="Flower simulation", script="run_flower", packages=("torch==2.13.0", "flwr[simulation]==1.41.0")
    ),
)
PLAIN_LOOP = Implementation(name="plain PyTorch loop", script="run_plain_loop")
ONE_THREAD = Implementation(
    name="plain PyTorch loop, one thread", script="run_plain_loop", arguments=("--threads", "1")
)


def our_implementations(task: Task) -> list[tuple[Implementation, ft.Method]]:
    """Every method with the default backend, and the first also with the task's other backends."""
    ours = [(Implementation(name=PREFIX + method.name, script="run_fedtilt"), method) for method in task.methods]
    for backend in task.backends:
        name = f"{PREFIX}{task.methods[0].name}, backend {backend}"
        implementation = Implementation(name=name, script="run_fedtilt", arguments=("--backend", backend))
        ours.append((implementation, task.methods[0]))
    return ours


def write_samples(task: Task, folder: Path) -> None:
    """Write samples that take some rounds to learn: ten weak patterns in noise, all classes on every client.

    Patterns are coarse (tiles of 4 × 4 pixels), so that convolutions detect them too.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    shape = SHAPES[task.model]
    tiles = rng.standard_normal((10, shape[0], shape[1] // 4, shape[2] // 4), dtype=np.float32)
    patterns = tiles.repeat(4, axis=2).repeat(4, axis=3)
    y = rng.integers(0, 10, (task.clients, task.samples))
    x = np.empty((*y.shape, *shape), dtype=np.uint8)
    for client in range(task.clients):
        noise = rng.standard_normal((task.samples, *shape), dtype=np.float32)
        x[client] = np.clip(128 + PATTERN_STD[task.model] * patterns[y[client]] + 48 * noise, 0, 255)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    torch.manual_seed(0)
    weights = getattr(ft.models, task.model)().state_dict()
    np.savez(folder / "initial_weights.npz", **{name: value.numpy() for name, value in weights.items()})


def write_workload(task: Task, method: ft.Method, rounds: int, folder: Path, name: str) -> Path:
    """Write the workload of one implementation; the simulator's selection decides the clients of a round."""
    settings = TrainSettings(rounds=rounds, participation=task.selected / task.clients)
    content = {
        "folder": str(folder), "output": str(folder / f"{name}.npz"), "model": task.model, "clients": task.clients,
        "tau": method.objective.tau, "lam": method.objective.lam, "mu": task.mu, "epochs": task.epochs,
        "batch_size": task.batch_size,
        "lr": task.lr, "optimizer": task.optimizer, "momentum": task.momentum, "weight_decay": task.weight_decay,
        "cores": available_cores(),
        "schedule": [settings.selected(number, task.clients) for number in range(1, rounds + 1)],
    }  # fmt: skip
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def training_losses(task: Task, folder: Path, workload: Path) -> dict[str, float]:
    """The training loss of the initial and the shared model, and of the last round's personal models."""
    content = json.loads(workload.read_text())
    net = getattr(ft.models, task.model)()
    x, y = (torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in "xy")

    def loss(weights: dict[str, np.ndarray], x: torch.Tensor, y: torch.Tensor) -> float:
        net.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
        with torch.no_grad():
            return F.cross_entropy(net(x.float() / 255 * 2 - 1), y).item()

    subset = slice(0, 20)  # of every client
    all_x, all_y = x[:, subset].flatten(0, 1), y[:, subset].flatten()
    with np.load(folder / "initial_weights.npz") as initial, np.load(content["output"]) as output:
        models: dict[str, dict[str, np.ndarray]] = {}  # "shared" or a client → weights
        for key in output.files:
            model, name = key.split("/")
            models.setdefault(model, {})[name] = output[key]
        losses = {
            "loss_start": loss({name: initial[name] for name in initial.files}, all_x, all_y),
            "loss_shared": loss(models["shared"], all_x, all_y),
        }
    if task.mu is not None:
        clients = content["schedule"][-1]
        losses["loss_personal"] = float(np.mean([loss(models[str(c)], x[c], y[c]) for c in clients]))
    return losses


def run_task(task: Task, simulators: Sequence[Implementation], repeats: int) -> dict[str, Any]:
    """Run all implementations of one table."""
    folder = CACHE / "work" / task.name
    write_samples(task, folder)
    others = (PLAIN_LOOP, ONE_THREAD, *(simulators if task.simulators else ()))
    entries = [*our_implementations(task), *((other, task.methods[0]) for other in others)]
    results: dict[str, dict[str, Any]] = {}
    running: dict[str, ImplementationProcess] = {}
    workloads: dict[str, Path] = {}
    peak = 0.0
    try:
        for implementation, method in entries:
            name = implementation.name
            file_name = name.replace(" ", "-").replace(":", "").replace(",", "").lower()
            workloads[name] = write_workload(task, method, repeats + 1, folder, file_name)
            results[name] = {}
            try:
                log = CACHE / "logs" / task.name / f"{file_name}.log"
                running[name] = ImplementationProcess(implementation, workloads[name], log)
                running[name].train_round(watch_memory=True)
            except ImplementationError as error:
                _fail(running, results, name, str(error))
        for _ in range(repeats):
            peak = max(peak, matmul_peak())
            for name in list(running):
                try:
                    reply = running[name].train_round()
                except ImplementationError as error:
                    _fail(running, results, name, str(error))
                    continue
                if reply["steps"] != task.steps:
                    _fail(running, results, name, f"failed: {reply['steps']} steps instead of {task.steps}")
                    continue
                results[name].setdefault("seconds", []).append(reply["seconds"])
        for name in list(running):
            try:
                results[name]["versions"] = running[name].finish()["versions"]
                results[name]["peak_memory_mib"] = running[name].peak_memory / 2**20
                results[name] |= training_losses(task, folder, workloads[name])
            except ImplementationError as error:
                _fail(running, results, name, str(error))
        plain = results[PLAIN_LOOP.name]
        for implementation, method in entries:
            result = results[implementation.name]
            if method == task.methods[0] and not same_loss(result, plain):
                losses = f"{result['loss_shared']:.3f} instead of {plain['loss_shared']:.3f}"
                _fail(running, results, implementation.name, f"failed: different work, the final loss is {losses}")
    finally:
        for process in running.values():
            process.stop()
    operations = step_operations(getattr(ft.models, task.model)(), SHAPES[task.model], task.batch_size)
    return {
        "title": task.title, "clients": task.selected, "total_clients": task.clients, "samples": task.samples,
        "epochs": task.epochs, "batch_size": task.batch_size, "steps": task.steps,
        "operations": task.steps * operations, "peak_operations_per_second": peak, "implementations": results,
    }  # fmt: skip


def same_loss(result: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Whether the loss fell as far as with the plain loop; only the order of the batches may differ."""
    if "error" in result or "error" in plain:
        return True
    decreases = [r["loss_start"] - r["loss_shared"] for r in (result, plain)]
    return abs(decreases[0] - decreases[1]) <= 0.1 * abs(decreases[1]) + 0.005


def _fail(
    running: dict[str, ImplementationProcess], results: dict[str, dict[str, Any]], name: str, reason: str
) -> None:
    results[name] = {"error": reason}
    if name in running:
        running.pop(name).stop()


def format_table(task: dict[str, Any]) -> str:
    """One task as text: best seconds per round, our speed-up, share of the peak, memory, losses."""
    results = task["implementations"]
    ours = [n for n in results if n.startswith(PREFIX) and "backend" not in n and "seconds" in results[n]]
    best = {name: min(r["seconds"]) for name, r in results.items() if "seconds" in r}
    heading = (
        f"{task['title']}\n  {task['clients']} of {task['total_clients']} clients × {task['samples']} samples × "
        f"{task['epochs']} epochs, batch {task['batch_size']}: {task['steps']} steps, "
        f"{task['operations'] / 1e9:.1f} GFLOP; peak {task['peak_operations_per_second'] / 1e9:.0f} GFLOP/s\n"
    )
    columns = ["", "best s/round", *(f"{n.removeprefix(PREFIX)} speed-up" for n in ours), "of peak", "memory", "loss"]
    rows = [columns]
    for name, r in results.items():
        if "error" in r:
            rows.append([name, r["error"]])
            continue
        losses = [r["loss_start"], r["loss_shared"], *([r["loss_personal"]] if "loss_personal" in r else [])]
        rows.append(
            [
                name,
                f"{best[name]:.3f}",
                *(f"{best[name] / best[our_name]:.2f} ×" for our_name in ours),
                f"{task['operations'] / best[name] / task['peak_operations_per_second']:.1%}",
                f"{r['peak_memory_mib']:.0f} MiB",
                " → ".join(f"{loss:.3f}" for loss in losses),
            ]
        )
    widths = [max(len(row[i]) for row in rows if len(row) == len(columns)) for i in range(len(columns))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for name, *cells in rows:
        aligned = cells if len(cells) == 1 else [c.rjust(w) for c, w in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join(["", name.ljust(widths[0]), *aligned]))
    return heading + "\n".join(lines)


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds of every implementation")
    parser.add_argument("--task", action="append", choices=[task.name for task in TASKS], help="only these tables")
    parser.add_argument("--no-simulators", action="store_true", help="compare with the plain loop only")
    arguments = parser.parse_args()
    torch.set_num_threads(available_cores())
    repeats = 1 if arguments.quick else arguments.repeats
    simulators = () if arguments.no_simulators or arguments.quick else OTHER_SIMULATORS  # installing them takes minutes
    results = {}
    for task in TASKS:
        if arguments.task and task.name not in arguments.task:
            continue
        if arguments.quick:
            task = dataclasses.replace(task, clients=20, samples=task.samples // 10, epochs=1)
        results[task.name] = run_task(task, simulators, repeats)
        print(format_table(results[task.name]), end="\n\n", flush=True)
    save_result(arguments, "rounds", {"tasks": results, "repeats": repeats})


if __name__ == "__main__":
    main()
