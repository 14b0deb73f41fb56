"""`fp32_deterministic`: the settings inside it, and that it restores the previous ones. torch has these settings on
machines without CUDA too."""

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
    """One of torch's settings; reading fails where its old and new API differ."""
    try:
        return str(eval(setting))
    except RuntimeError:
        return "unreadable"


def all_settings() -> dict[str, str]:
    names = (
        "backends.fp32_precision", "backends.cuda.matmul.fp32_precision", "backends.mkldnn.matmul.fp32_precision",
        "backends.cudnn.fp32_precision", "backends.cudnn.conv.fp32_precision", "backends.cudnn.rnn.fp32_precision",
        "backends.cudnn.deterministic", "backends.cudnn.benchmark", "backends.cuda.matmul.allow_tf32",
        "backends.cudnn.allow_tf32", "get_float32_matmul_precision()",
    )  # fmt: skip
    return {name: read(f"torch.{name}") for name in names}


def check(setting: str) -> None:
    """Apply a setting; check the settings inside `fp32_deterministic` and afterwards."""
    exec(setting)
    before = all_settings()
    for tf32 in (False, True):
        with fp32_deterministic(CUDA, tf32):
            inside = all_settings()
            for part in ("cuda.matmul", "cudnn.conv", "cudnn.rnn"):
                assert inside[f"backends.{part}.fp32_precision"] == ("tf32" if tf32 else "ieee"), (part, inside)
            assert "unreadable" not in inside.values(), inside
            assert inside["backends.cuda.matmul.allow_tf32"] == inside["backends.cudnn.allow_tf32"] == str(tf32)
            assert (inside["backends.cudnn.deterministic"], inside["backends.cudnn.benchmark"]) == ("True", "False")
        after = all_settings()
        assert {n: v for n, v in after.items() if before[n] != "unreadable"} == {
            n: v for n, v in before.items() if v != "unreadable"
        }, (before, after)


@pytest.mark.slow
def test_settings_inside_and_afterwards() -> None:
    process = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")


def test_threads_wait_for_each_other() -> None:
    entered, leave = threading.Event(), threading.Event()
    inside: list[dict[str, str]] = []

    def first() -> None:
        with fp32_deterministic(CUDA):
            entered.set()
            leave.wait(30)

    def second() -> None:
        with fp32_deterministic(CUDA, tf32=True):
            inside.append(all_settings())

    before, threads = all_settings(), [threading.Thread(target=work) for work in (first, second)]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(30)
    assert [settings["backends.cudnn.conv.fp32_precision"] for settings in inside] == ["tf32"]
    assert all_settings() == before


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_and_no_grad_have_no_effect_inside(device: str) -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), fp32_deterministic(torch.device(device)):
        assert torch.is_grad_enabled()
        assert (x @ x).dtype == (torch.float32 if device == "cpu" else torch.bfloat16)  # of that device


def test_on_the_cpu_no_setting_changes() -> None:
    before = all_settings()
    with fp32_deterministic(torch.device("cpu"), tf32=True):
        assert all_settings() == before


if __name__ == "__main__":  # torch is imported once, and every setting is tested in a forked child
    for name, setting in SETTINGS.items():
        child = os.fork()
        if not child:
            check(setting)
            os._exit(0)  # without the end of Python, which takes longer than the test
        if os.waitpid(child, 0)[1]:
            sys.exit(f"with {name} set")
