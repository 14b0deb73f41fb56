"""The protocol of all implementations: a workload file comes in, a line on stdin starts a round, JSON goes out.

An implementation runs in its own interpreter, since the frameworks need packages that conflict; so this file uses only
numpy and the standard library. All implementations get the same samples, the same initial weights and the same clients
in every round. They write their final models to a file, and the benchmark evaluates them.
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
class Workload:
    """What to train, on which data, for how many rounds."""

    folder: str  # with x.npy (clients, n, …) uint8, y.npy (clients, n) and initial_weights.npz
    output: str  # the file for the trained models
    model: str  # mlp or cnn
    clients: int
    tau: float
    lam: float
    mu: float | None  # None: one model per client; a number: also a personal one with this proximal term
    schedule: list[list[int]]  # the clients of every round
    epochs: int
    batch_size: int
    lr: float
    optimizer: str  # sgd or adam, with the meaning of torch.optim; its state is new in every round
    momentum: float
    weight_decay: float
    cores: int

    @classmethod
    def read(cls, path: str) -> "Workload":
        """The workload in a JSON file."""
        return cls(**json.loads(Path(path).read_text()))

    @property
    def workers(self) -> int:
        """The largest number of processes, up to one per core, that divides the clients of a round."""
        return max(n for n in range(1, self.cores + 1) if len(self.schedule[0]) % n == 0)

    def samples(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's samples as float32 in [−1, 1], shape (n, …), and its labels."""
        x = np.load(Path(self.folder, "x.npy"), mmap_mode="r")[client]
        y = np.load(Path(self.folder, "y.npy"), mmap_mode="r")[client]
        return x.astype(np.float32) / 255 * 2 - 1, np.array(y)

    def all_samples(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The samples of every scheduled client, to load before the first round: loading is not timed."""
        return {client: self.samples(client) for client in sorted({c for clients in self.schedule for c in clients})}

    def initial_weights(self) -> dict[str, np.ndarray]:
        """The initial weights."""
        with np.load(Path(self.folder, "initial_weights.npz")) as arrays:
            return {name: arrays[name] for name in arrays.files}


class RoundRequests:
    """The rounds that the benchmark requests: iterate over them, add to `steps`, then call `finish`."""

    def __init__(self, workload: Workload) -> None:
        # Reserve the pipe for replies; whatever libraries print goes to the log.
        self._pipe = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.workload = workload
        self.steps = 0  # training steps of this round, all models counted

    def __iter__(self) -> Iterator[list[int]]:
        for clients in self.workload.schedule:
            if not sys.stdin.readline():
                raise SystemExit("the benchmark process has ended")
            self.steps = 0
            start = time.perf_counter()
            yield clients
            self._send(seconds=time.perf_counter() - start, steps=self.steps)

    def _send(self, **values: object) -> None:
        print(json.dumps(values), file=self._pipe)

    def finish(self, shared: Weights, personal: Mapping[int, Weights], **versions: str) -> None:
        """Write the trained models, `personal` by client, and send the versions."""
        arrays = {f"shared/{name}": np.asarray(value) for name, value in shared.items()}
        for client, weights in personal.items():
            arrays |= {f"{client}/{name}": np.asarray(value) for name, value in weights.items()}
        np.savez(self.workload.output, **arrays)
        self._send(versions=versions)
