"""A round of the simulator beside the plain PyTorch loop and the peers that install: same samples, start and clients.

Contenders stay alive in processes of their own and train one round at a time, in turns (A B C A B C …); the first
round of each is a warm-up (loading, compiling, starting workers), of the others the median counts. The models they end
with are judged here, by one code, as proof that the work was done.
"""

import argparse
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
from contenders import CACHE, Contender, Out, Running
from measure import ROOT, cores, matrix_peak, step_operations, write

import fedtilt as ft
from fedtilt.rounds.settings import TrainSettings
from fedtilt.training import choose_backend

SHAPES = {"mlp": (1, 28, 28), "cnn": (3, 32, 32)}
FAINT = {"mlp": 12, "cnn": 48}  # of 255: how strong the patterns are, beside noise of 48
ENGINE = "fedtilt"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One table: what is trained in a round, and by which methods of ours."""

    name: str
    title: str
    model: str
    samples: int
    epochs: int
    methods: tuple[ft.Method, ...]  # the first is what the peers train
    clients: int = 100
    selected: int = 10
    batch_size: int = 10
    lr: float = 0.01

    @property
    def mu(self) -> float | None:
        """The pull of the personal model, if there is one."""
        return self.methods[0].mu if self.methods[0].personal else None

    @property
    def steps(self) -> int:
        """Steps of a round, all models counted."""
        return self.selected * self.epochs * -(-self.samples // self.batch_size) * (1 if self.mu is None else 2)


TASKS = (
    Task(
        name="fedavg", title="FedAvg (one model per client), MLP 784-200-200-10", model="mlp", samples=600, epochs=10,
        methods=(ft.fedavg(),),
    ),
    Task(
        name="two-models", title="Ditto and FedTilt (two models per client), MLP 784-200-200-10", model="mlp",
        samples=600, epochs=10, methods=(ft.ditto(), ft.fedtilt(tau=50, lam=100)),
    ),
    Task(
        name="cnn", title="FedAvg, CNN 32-64-128 on 3 × 32 × 32", model="cnn", samples=500, epochs=1,
        methods=(ft.fedavg(),),
    ),
)  # fmt: skip

FEDJAX = ("fedjax==0.0.17", "jax==0.4.38", "jaxlib==0.4.38")
PEERS = (
    Contender(name="FedJAX, jit", script="with_fedjax", packages=FEDJAX),
    Contender(name="FedJAX, pmap", script="with_fedjax", packages=FEDJAX, arguments=("--backend", "pmap")),
    Contender(name="pfl", script="with_pfl", packages=("torch==2.13.0", "pfl==0.6.0")),
    Contender(name="Flower simulation", script="with_flower", packages=("torch==2.13.0", "flwr[simulation]==1.41.0")),
)
PLAIN = Contender(name="plain PyTorch loop", script="plain")


def ours(task: Task) -> list[tuple[Contender, ft.Method]]:
    """Our contenders: every method as the engine runs it by itself, and by `fused` where that is not what it takes."""
    net = getattr(ft.models, task.model)()
    names = [f"{ENGINE}: {method.name}" for method in task.methods]
    found = [(Contender(name=name, script="engine"), method) for name, method in zip(names, task.methods, strict=True)]
    if choose_backend(net, "cpu") != "fused":
        try:
            choose_backend(net, "cpu", "fused")
        except ft.InputError:
            return found
        forced = Contender(name=f"{names[0]}, backend fused", script="engine", arguments=("--backend", "fused"))
        found.append((forced, task.methods[0]))
    return found


def prepare(task: Task, folder: Path) -> None:
    """Samples that can be learnt but not at a glance: ten faint patterns in noise, all classes on every client.

    Patterns are coarse (tiles of 4 × 4 pixels), so that convolutions see them too.
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
        x[client] = np.clip(128 + FAINT[task.model] * patterns[y[client]] + 48 * noise, 0, 255)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    torch.manual_seed(0)
    start = getattr(ft.models, task.model)().state_dict()
    np.savez(folder / "start.npz", **{name: value.numpy() for name, value in start.items()})


def work_file(task: Task, method: ft.Method, rounds: int, folder: Path, name: str) -> Path:
    """The work of one contender; who takes part in a round is what the simulator would draw."""
    draws = TrainSettings(rounds=rounds, participation=task.selected / task.clients)
    content = {
        "folder": str(folder), "answer": str(folder / f"{name}.npz"), "model": task.model, "clients": task.clients,
        "tau": method.tau, "lam": method.lam, "mu": task.mu, "epochs": task.epochs, "batch_size": task.batch_size,
        "lr": task.lr, "cores": cores(),
        "schedule": [draws.selected(number, task.clients) for number in range(1, rounds + 1)],
    }  # fmt: skip
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def judge(task: Task, folder: Path, work: Path) -> dict[str, float]:
    """The training loss of the start, of the shared model, and of the last round's personal models on their clients."""
    content = json.loads(work.read_text())
    net = getattr(ft.models, task.model)()
    x, y = (torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in "xy")

    def loss(weights: dict[str, np.ndarray], x: torch.Tensor, y: torch.Tensor) -> float:
        net.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
        with torch.no_grad():
            return F.cross_entropy(net(x.float() / 255 * 2 - 1), y).item()

    some = slice(0, 20)  # of every client
    all_x, all_y = x[:, some].flatten(0, 1), y[:, some].flatten()
    with np.load(folder / "start.npz") as start, np.load(content["answer"]) as answer:
        trained: dict[str, dict[str, np.ndarray]] = {}
        for key in answer.files:
            owner, name = key.split("/")
            trained.setdefault(owner, {})[name] = answer[key]
        found = {
            "loss_start": loss({name: start[name] for name in start.files}, all_x, all_y),
            "loss_shared": loss(trained["shared"], all_x, all_y),
        }
    if task.mu is not None:
        last = content["schedule"][-1]
        found["loss_personal"] = float(np.mean([loss(trained[str(c)], x[c], y[c]) for c in last]))
    return found


def compete(task: Task, peers: Sequence[Contender], turns: int) -> dict[str, Any]:
    """All contenders of one table."""
    folder = CACHE / "work" / task.name
    prepare(task, folder)
    entries = [*ours(task), *((peer, task.methods[0]) for peer in (PLAIN, *peers))]
    outcome: dict[str, dict[str, Any]] = {}
    running: dict[str, Running] = {}
    works: dict[str, Path] = {}
    peak = 0.0
    try:
        for contender, method in entries:
            short = contender.name.replace(" ", "-").replace(":", "").replace(",", "").lower()
            works[contender.name] = work_file(task, method, turns + 1, folder, short)
            outcome[contender.name] = {}
            try:
                started = Running(contender, works[contender.name], CACHE / "logs" / task.name / f"{short}.log")
                running[contender.name] = started
                started.turn(watch=True)
            except Out as reason:
                _drop(running, outcome, contender.name, reason)
        for _ in range(turns):
            peak = max(peak, matrix_peak())
            for name in list(running):
                try:
                    reply = running[name].turn()
                except Out as reason:
                    _drop(running, outcome, name, reason)
                    continue
                if reply["steps"] != task.steps:
                    _drop(running, outcome, name, Out(f"failed: {reply['steps']} steps instead of {task.steps}"))
                    continue
                outcome[name].setdefault("seconds", []).append(reply["seconds"])
        for name in list(running):
            try:
                outcome[name]["versions"] = running[name].finish()["versions"]
                outcome[name]["peak_memory_mib"] = running[name].peak_memory / 2**20
                outcome[name] |= judge(task, folder, works[name])
            except Out as reason:
                _drop(running, outcome, name, reason)
        for contender, method in entries:
            if method == task.methods[0] and not agrees(outcome[contender.name], outcome[PLAIN.name]):
                ends = (
                    f"{outcome[contender.name]['loss_shared']:.3f} instead of {outcome[PLAIN.name]['loss_shared']:.3f}"
                )
                _drop(running, outcome, contender.name, Out(f"failed: other work was done, the loss ends at {ends}"))
    finally:
        for left in running.values():
            left.stop()
    step = step_operations(getattr(ft.models, task.model)(), SHAPES[task.model], task.batch_size)
    return {
        "title": task.title, "clients": task.selected, "of": task.clients, "samples": task.samples,
        "epochs": task.epochs, "batch_size": task.batch_size, "steps": task.steps,
        "operations": task.steps * step, "peak": peak, "contenders": outcome,
    }  # fmt: skip


def agrees(contender: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Whether a contender's loss fell as the plain loop's did; only the order of the batches may tell them apart."""
    if "out" in contender or "out" in plain:
        return True
    gains = [c["loss_start"] - c["loss_shared"] for c in (contender, plain)]
    return abs(gains[0] - gains[1]) <= 0.1 * abs(gains[1]) + 0.005


def _drop(running: dict[str, Running], outcome: dict[str, dict[str, Any]], name: str, reason: Out) -> None:
    outcome[name] = {"out": str(reason)}
    if name in running:
        running.pop(name).stop()


def table(result: dict[str, Any]) -> str:
    """One task as text: seconds a round, how many times ours is faster, share of the matrix peak, memory, losses."""
    contenders = result["contenders"]
    engines = [
        n for n in contenders if n.startswith(f"{ENGINE}:") and "backend" not in n and "seconds" in contenders[n]
    ]
    best = {name: min(c["seconds"]) for name, c in contenders.items() if "seconds" in c}
    head = (
        f"{result['title']}\n  {result['clients']} of {result['of']} clients × {result['samples']} samples × "
        f"{result['epochs']} epochs, batch {result['batch_size']}: {result['steps']} steps, "
        f"{result['operations'] / 1e9:.1f} GFLOP; matrix peak {result['peak'] / 1e9:.0f} GFLOP/s\n"
    )
    columns = ["", "s / round", *(f"{n.split(': ')[1]} is … × faster" for n in engines), "of peak", "memory", "loss"]
    rows = [columns]
    for name, c in contenders.items():
        if "out" in c:
            rows.append([name, c["out"]])
            continue
        losses = [c["loss_start"], c["loss_shared"], *([c["loss_personal"]] if "loss_personal" in c else [])]
        rows.append(
            [
                name,
                f"{best[name]:.3f}",
                *(f"{best[name] / best[engine]:.2f}" for engine in engines),
                f"{result['operations'] / best[name] / result['peak']:.1%}",
                f"{c['peak_memory_mib']:.0f} MiB",
                " → ".join(f"{loss:.3f}" for loss in losses),
            ]
        )
    widths = [max(len(row[i]) for row in rows if len(row) == len(columns)) for i in range(len(columns))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for first, *cells in rows:
        aligned = cells if len(cells) == 1 else [c.rjust(w) for c, w in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join(["", first.ljust(widths[0]), *aligned]))
    return head + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5, help="timed rounds of every contender")
    parser.add_argument("--task", action="append", choices=[task.name for task in TASKS], help="only these tables")
    parser.add_argument("--no-peers", action="store_true", help="only the plain loop beside ours")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, one turn: does everything run?")
    arguments = parser.parse_args()
    torch.set_num_threads(cores())
    turns = 1 if arguments.quick else arguments.turns
    results = {}
    for task in TASKS:
        if arguments.task and task.name not in arguments.task:
            continue
        if arguments.quick:
            task = dataclasses.replace(task, samples=task.samples // 10, epochs=min(task.epochs, 2))
        results[task.name] = compete(task, () if arguments.no_peers else PEERS, turns)
        print(table(results[task.name]), end="\n\n", flush=True)
    path = write("quick" if arguments.quick else "rounds", {"tasks": results, "turns": turns})
    print(f"written to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
