"""Run each implementation in its own process, with its own Python environment, one round at a time."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT

CACHE = ROOT / ".bench"  # environments, data and logs of the implementations; ignored by Git
SCRIPTS = Path(__file__).parent / "implementations"
TIMEOUT = 600  # seconds to wait for a reply


class ImplementationError(Exception):
    """An implementation cannot run; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A script in implementations/, its arguments, and the packages of its environment (none: this environment)."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def python_for(implementation: Implementation) -> Path:
    """The Python interpreter with the implementation's packages, which are installed on first use."""
    if not implementation.packages:
        return Path(sys.executable)
    environment = CACHE / implementation.script
    python, stamp = environment / "bin" / "python", environment / "installed.txt"
    required = "\n".join(implementation.packages) + "\n"
    if not stamp.exists() or stamp.read_text() != required:
        packages = ", ".join(implementation.packages)
        print(f"  installing {packages} into {environment.relative_to(ROOT)} …", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(environment)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if any(name.startswith("torch==") for name in implementation.packages):
            # Install torch first, so that no other package decides which build is used.
            _run([*pip, "-c", str(ROOT / "constraints.txt"), "torch", "numpy"])
        _run([*pip, *implementation.packages])
        stamp.write_text(required)
    return python


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        last_line = (result.stderr.strip() or result.stdout.strip()).splitlines()[-1]
        raise ImplementationError(f"not installed: {last_line[:160]}")


class ImplementationProcess:
    """A running implementation: `train_round` trains one round, `finish` waits for its models."""

    def __init__(self, implementation: Implementation, workload: Path, log: Path) -> None:
        python = python_for(implementation)
        script = SCRIPTS / f"{implementation.script}.py"
        # PYTHONPATH: worker processes of Ray import the modules in implementations/ too.
        settings = {
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": str(CACHE / "flwr-home"), "PYTHONPATH": str(SCRIPTS), "JAX_PLATFORMS": "cpu",
        }  # fmt: skip
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), str(script), str(workload), *implementation.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1,
                env=_environment() | settings, start_new_session=True,
            )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read_lines, daemon=True).start()
        self.peak_memory = 0  # bytes of the whole process tree, sampled while `watch_memory` is on

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def train_round(self, *, watch_memory: bool = False) -> dict[str, Any]:
        """Train one round; watching the memory costs time, so only the warm-up does it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("round\n")
        except BrokenPipeError:
            raise ImplementationError(self._failure()) from None
        return self._reply(watch_memory)

    def finish(self) -> dict[str, Any]:
        """Wait for the last reply and the end of the process; the models are in the workload's output file."""
        reply = self._reply(watch_memory=False)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.stop()
        return reply

    def stop(self) -> None:
        """Stop the process and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # the process leads its own session
            self._process.wait()

    def _reply(self, watch_memory: bool) -> dict[str, Any]:
        waited = 0.0
        while waited < TIMEOUT:
            interval = 0.1 if watch_memory else TIMEOUT
            try:
                line = self._lines.get(timeout=interval)
            except queue.Empty:
                waited += interval
                self.peak_memory = max(self.peak_memory, tree_memory(self._process.pid))
                continue
            if line is None:
                raise ImplementationError(self._failure())
            return dict(json.loads(line))
        self.stop()
        raise ImplementationError(f"failed: no reply within {TIMEOUT} s, see {self._log.relative_to(ROOT)}")

    def _failure(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"failed: {lines[-1][:120] if lines else 'no message'} ({self._log.relative_to(ROOT)})"


def _environment() -> Mapping[str, str]:
    """The environment variables of this process, without those that would add our packages to another interpreter."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV", "PYTHONPATH")}


def tree_memory(pid: int) -> int:
    """Bytes of memory of a process and its descendants; pages they share count once."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue  # the process has ended
    tree = {pid}
    while children := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= children
    return sum(_process_memory(member) for member in tree)


def _process_memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
