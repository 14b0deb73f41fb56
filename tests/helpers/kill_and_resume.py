"""Kill and resume a run many times, and compare its final state with an uninterrupted run. Used by test_run_folder.py.

    python -m tests.helpers.kill_and_resume FOLDER KILLS CASE [SEED]

The process forks a child for every attempt, so that torch is imported once; the child is killed with SIGKILL after a
random part of the time of an uninterrupted run, which SEED draws. Every attempt resumes the last one; a run that
finishes is compared, and a new one is started.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

import fedtilt as ft
from fedtilt.storage.run_folder import RunFolder
from fedtilt.training import native
from tests.helpers.recipe_model import RecipeModel

torch.set_num_threads(1)
native.available()  # loaded once, for all children
FEDERATION = ft.Federation.build(
    ft.data.load("digits"), clients=6, outliers="flips", max_train=20, seed=3
)  # fmt: skip


def mlp(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return ft.models.mlp(input_shape, classes, hidden=(8,))


RECIPE = {
    "lr": 0.02,
    "momentum": 0.9,
    "schedule": {"name": "step", "decay": 0.5, "every": 5},
    "server_optimizer": "yogi",
}
CASES = {
    "plain": (mlp, {"lr": 0.1}),
    "local": (RecipeModel, RECIPE | {"local": ["head.*"]}),
    "average": (RecipeModel, RECIPE | {"buffers": "average", "optimizer": "adam", "momentum": 0.0}),
}


def train(folder: Path, workers: int, case: str) -> None:
    methods = [ft.ditto(0.1), ft.fedtilt(tau=1, lam=-2, mu=0.1)]
    model, recipe = CASES[case]
    settings = {"rounds": 15, "participation": 0.5, "epochs": 1, "eval_every": 2} | recipe
    # a memory limit of a few models: most of them are on disk
    ft.run(
        methods, FEDERATION, model, out=folder, checkpoint_seconds=0, memory_limit=3 * 2500, workers=workers, **settings
    )


def hashes_of(folder: Path) -> dict[str, str]:
    """Hashes of what the server and every client keep, the counts and the metrics."""
    seed = folder / "seed-0"
    state = RunFolder(seed).latest()
    assert state is not None
    assert state.round == 15
    kept = {f"server {method}": server for method, server in state.server.items()}
    kept |= {f"client {m} {n}": state.client_states.get((m, n)) for m, n in state.client_states.owners()}
    tensors = {
        f"{owner} {name}": tensor for owner, named in kept.items() for name, tensor in named.to_tensors().items()
    }
    hashes = {key: hashlib.sha256(value.numpy().tobytes()).hexdigest() for key, value in tensors.items()}
    for file in [seed / "metrics.jsonl", *sorted((seed / "counts").iterdir())]:
        hashes[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return hashes


def attempt(folder: Path, workers: int, case: str, seconds: float) -> bool:
    """Start or resume a run, and kill it after so many seconds; whether it finished before."""
    child = os.fork()
    if not child:
        code = 1
        try:
            train(folder, workers, case)
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            assert os.waitstatus_to_exitcode(status) == 0, "the run failed"
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def main(folder: Path, kills_wanted: int, case: str, seed: int) -> None:
    reference = folder / "reference"
    start = time.monotonic()
    assert attempt(reference, 0, case, 600.0)
    duration = time.monotonic() - start
    expected = hashes_of(reference)
    rng = random.Random(seed)
    kills = finished = 0
    run = folder / "run"
    while kills < kills_wanted or not finished:
        seconds = rng.uniform(0.01, 0.5) * duration if kills < kills_wanted else 600.0
        if attempt(run, kills % 3, case, seconds):
            finished += 1
            assert hashes_of(run) == expected, "a resumed run differs from an uninterrupted one"
            shutil.rmtree(run)
        else:
            kills += 1
    print(json.dumps({"kills": kills, "finished": finished, "hashes": len(expected)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
