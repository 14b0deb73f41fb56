"""What every contender speaks: the work comes in as a file, a round is trained when a line arrives, JSON goes out.

A contender runs in an interpreter of its own, since peers need packages that do not go together; so this file uses
nothing but numpy and the standard library. All contenders get the same samples, the same initial weights and the same
clients in every round; the models they end with are written to a file and judged by the benchmark, not by themselves.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Weights = Mapping[str, np.ndarray]  # by parameter name, in PyTorch's names, order and layout


@dataclass(frozen=True, kw_only=True)
class Work:
    """One job: what to train, on what, and how often."""

    folder: str  # holds x.npy (clients, n, …) uint8, y.npy (clients, n) and start.npz
    answer: str  # where the trained models go
    model: str  # mlp or cnn
    clients: int
    tau: float
    lam: float
    mu: float | None  # None: one model per client; a number: also a personal one, pulled by it
    schedule: list[list[int]]  # the clients of every round
    epochs: int
    batch_size: int
    lr: float
    cores: int

    @property
    def workers(self) -> int:
        """As many processes as there are cores, if the clients of a round divide among them."""
        return max(n for n in range(1, self.cores + 1) if len(self.schedule[0]) % n == 0)

    def samples(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's samples as float32 in [−1, 1], shape (n, …), and its labels."""
        x = np.load(Path(self.folder, "x.npy"), mmap_mode="r")[client]
        y = np.load(Path(self.folder, "y.npy"), mmap_mode="r")[client]
        return x.astype(np.float32) / 255 * 2 - 1, np.array(y)

    def every(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The samples of every client that will take part: loading is no part of a round."""
        return {client: self.samples(client) for client in sorted({c for clients in self.schedule for c in clients})}

    def start(self) -> dict[str, np.ndarray]:
        """The initial weights."""
        with np.load(Path(self.folder, "start.npz")) as stored:
            return {name: stored[name] for name in stored.files}


class Turns:
    """The rounds, each when its turn comes; iterate over it, add to `steps`, and `finish`."""

    def __init__(self, work: Work) -> None:
        # What libraries print goes to the log; the pipe is ours alone.
        self._pipe = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.work = work
        self.steps = 0  # steps really made in this round, all models counted

    def __iter__(self) -> Iterator[list[int]]:
        for clients in self.work.schedule:
            if not sys.stdin.readline():
                raise SystemExit("the benchmark is gone")
            self.steps = 0
            begun = time.perf_counter()
            yield clients
            self.say(seconds=time.perf_counter() - begun, steps=self.steps)

    def say(self, **values: object) -> None:
        """One line of JSON to the benchmark."""
        print(json.dumps(values), file=self._pipe)

    def finish(self, shared: Weights, personal: Mapping[int, Weights], **versions: str) -> None:
        """Hand the models over; `personal` by client."""
        arrays = {f"shared/{name}": np.asarray(value) for name, value in shared.items()}
        for client, weights in personal.items():
            arrays |= {f"{client}/{name}": np.asarray(value) for name, value in weights.items()}
        np.savez(self.work.answer, **arrays)
        self.say(versions=versions)


def work_of(path: str) -> Work:
    """The job in a file."""
    return Work(**json.loads(Path(path).read_text()))
