"""Processes that generate the code of the parts of a graph at the same time.

Torch's compiler is Python and uses one core. What a process generates is in torch's cache, where the process that
trains finds it.
"""

import contextlib
import hashlib
import json
import os
import queue
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

import torch

from fedtilt.training.stacked import compiler_worker

_MAX_PROCESSES = 8  # each has a CUDA context for some seconds, half a GiB
_TIMEOUT_SECONDS = 300  # of all processes without a reply, which takes a few seconds


class CompilerProcesses:
    """Processes that wait for graphs; as a context manager, they end with it."""

    def __init__(self, device: torch.device, count: int) -> None:
        command = [sys.executable, "-P", "-W", "ignore", compiler_worker.__file__, str(device)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        self._processes = [
            subprocess.Popen(
                [*command, torch.get_float32_matmul_precision()], env=environment, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, start_new_session=True,
            )
            for _ in range(count)
        ]  # fmt: skip

    def __enter__(self) -> "CompilerProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    cast(IO[str], stream).close()

    def generate(self, texts: Sequence[str], settings: dict[str, Any]) -> None:
        """Put the code of graphs into torch's cache, and compile their kernels in torch's own processes meanwhile.

        What no process has generated is missing there; why is on the terminal.
        """
        if not self._processes:
            return
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.codecache import CodeCacheFuture

        message, pending, kernels = json.dumps(settings), sorted(texts, key=len), []
        replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def serve(process: subprocess.Popen[str]) -> None:
            requests, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
            try:
                with contextlib.suppress(IndexError, BrokenPipeError):  # none is pending, or the process has ended
                    while True:
                        requests.write(f"{message}\n{pending.pop()}\n")
                        requests.flush()
                        if not (reply := answers.readline()).endswith("\n"):
                            break  # the process was killed
                        replies.put(reply)
            finally:
                replies.put(None)

        with ThreadPoolExecutor(len(self._processes)) as threads:
            for process in self._processes:
                threads.submit(serve, process)
            try:
                with contextlib.suppress(queue.Empty):
                    for _ in self._processes:
                        while reply := replies.get(timeout=_TIMEOUT_SECONDS):
                            kernels += [AsyncCompile().triton(*kernel) for kernel in json.loads(reply)]
            finally:
                self._kill()  # an interrupt would wait for the threads, and these for the processes
        for kernel in kernels:
            if isinstance(kernel, CodeCacheFuture):  # of a process; Triton's cache has it then
                kernel.result()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def process_count(device: torch.device) -> int:
    """How many processes help to compile for a device: as many as half of the cores, the others compile kernels."""
    is_frozen = getattr(sys, "frozen", False)  # the executable is an application, which would start again
    if device.type != "cuda" or not sys.platform.startswith("linux") or is_frozen:
        return 0
    return min(_MAX_PROCESSES, len(os.sched_getaffinity(0)) // 2)


def known_file(description: str) -> Path:
    """A file that exists where torch's cache has what is described here, as far as text can tell."""
    lasting = re.sub(r" at 0x[0-9a-f]+", "", description)
    name = hashlib.sha256(f"{torch.__version__} {lasting}".encode()).hexdigest()
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "fedtilt" / name
