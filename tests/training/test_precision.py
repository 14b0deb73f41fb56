"""Products on CUDA: what holds inside, and that the program around gets back what it had. torch keeps these settings
on machines without CUDA too."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from fedtilt.training.precision import fp32_deterministic

CUDA = torch.device("cuda")
SETTINGS = {
    "nothing": "pass",
    "old, high": "torch.set_float32_matmul_precision('high')",
    "old, medium": "torch.set_float32_matmul_precision('medium')",
    "old, matmul": "torch.backends.cuda.matmul.allow_tf32 = True",
    "old, cudnn": "torch.backends.cudnn.allow_tf32 = False",
    "old, benchmark": "torch.backends.cudnn.benchmark = True",
    "new, matmul": "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "new, conv": "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "new, rnn": "torch.backends.cudnn.rnn.fp32_precision = 'ieee'",
    "new, all tf32": "torch.backends.fp32_precision = 'tf32'",
    "new, all ieee": "torch.backends.fp32_precision = 'ieee'",
}


def read(setting: str) -> str:
    """One of torch's settings; torch refuses where its old and new ways differ."""
    try:
        return str(eval(setting))
    except RuntimeError:
        return "refused"


def everything() -> dict[str, str]:
    names = (
        "backends.fp32_precision", "backends.cuda.matmul.fp32_precision", "backends.mkldnn.matmul.fp32_precision",
        "backends.cudnn.fp32_precision", "backends.cudnn.conv.fp32_precision", "backends.cudnn.rnn.fp32_precision",
        "backends.cudnn.deterministic", "backends.cudnn.benchmark", "backends.cuda.matmul.allow_tf32",
        "backends.cudnn.allow_tf32", "get_float32_matmul_precision()",
    )  # fmt: skip
    return {name: read(f"torch.{name}") for name in names}


def check(setting: str) -> None:
    """With that set, what holds inside and afterwards."""
    exec(setting)
    before = everything()
    for tf32 in (False, True):
        with fp32_deterministic(CUDA, tf32):
            inside = everything()
            for part in ("cuda.matmul", "cudnn.conv", "cudnn.rnn"):
                assert inside[f"backends.{part}.fp32_precision"] == ("tf32" if tf32 else "ieee"), (part, inside)
            assert "refused" not in inside.values(), inside
            assert inside["backends.cuda.matmul.allow_tf32"] == inside["backends.cudnn.allow_tf32"] == str(tf32)
            assert (inside["backends.cudnn.deterministic"], inside["backends.cudnn.benchmark"]) == ("True", "False")
        after = everything()
        assert {n: v for n, v in after.items() if before[n] != "refused"} == {
            n: v for n, v in before.items() if v != "refused"
        }, (before, after)


def test_inside_and_afterwards() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_take_turns() -> None:
    entered, leave = threading.Event(), threading.Event()
    seen: list[dict[str, str]] = []

    def first() -> None:
        with fp32_deterministic(CUDA):
            entered.set()
            leave.wait(30)

    def second() -> None:
        with fp32_deterministic(CUDA, tf32=True):
            seen.append(everything())

    before, threads = everything(), [threading.Thread(target=work) for work in (first, second)]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(30)
    assert [found["backends.cudnn.conv.fp32_precision"] for found in seen] == ["tf32"]
    assert everything() == before


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_neither_autocast_nor_no_grad_come_in(device: str) -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), fp32_deterministic(torch.device(device)):
        assert torch.is_grad_enabled()
        assert (x @ x).dtype == (torch.float32 if device == "cpu" else torch.bfloat16)  # each keeps to its own device


def test_a_cpu_is_left_alone() -> None:
    before = everything()
    with fp32_deterministic(torch.device("cpu"), tf32=True):
        assert everything() == before


if __name__ == "__main__":  # torch is imported once, and every setting is tried in a child
    for name, setting in SETTINGS.items():
        child = os.fork()
        if not child:
            check(setting)
            sys.exit()
        if os.waitpid(child, 0)[1]:
            sys.exit(f"with {name} set")
