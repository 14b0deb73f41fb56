"""Systems without fork, locks of files and folders that can be opened: the same results, with the mechanisms off."""

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

RUN = """
import hashlib, json, sys
import torch
import fedtilt as ft
from fedtilt.runs.export import export_model

federation = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20, outliers="flips", seed=0)
settings = dict(epochs=1, participation=1.0, device="cpu")
for rounds in (1, 2):  # the second call resumes the first
    result = ft.run([ft.fedtilt(tau=1, lam=-2, mu=0.1)], federation, ft.models.mlp, rounds=rounds, out=sys.argv[1],
                    backend="autograd", **settings)
weights = export_model(sys.argv[1], "fedtilt", 0).tensors
bits = {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in weights.items()}
print(json.dumps([result["fedtilt"].accuracy, bits]))
"""
WINDOWS = """
import os, sys
import torch, numpy, pyarrow, sklearn.datasets, multiprocessing, subprocess  # these need the real system
sys.modules["fcntl"] = None
for name in ("fork", "O_NOFOLLOW", "getuid", "sysconf", "sched_getaffinity"):
    delattr(os, name)
os_open = os.open

def open_files_only(path, *arguments, **keywords):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return os_open(path, *arguments, **keywords)

os.open = open_files_only
sys.platform = "win32"
"""


def test_without_fork_and_locks_the_bits_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS + RUN, str(there)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    train(here)
    assert json.loads(done.stdout) == json.loads(capsys.readouterr().out)
    assert {path.relative_to(there) for path in there.rglob("*")} == {
        path.relative_to(here) for path in here.rglob("*")
    }


def train(folder: Path) -> None:
    """The same with the mechanisms of this system."""
    with mock.patch.object(sys, "argv", ["", str(folder)]):
        exec(RUN, {})
