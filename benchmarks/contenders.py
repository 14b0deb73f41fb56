"""Contenders in processes of their own: an interpreter with the packages a peer needs, one turn at a time."""

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

from measure import ROOT

CACHE = ROOT / ".bench"  # the peers' environments, data and logs; ignored by Git
PEERS = Path(__file__).parent / "peers"
PATIENCE = 600  # seconds until a contender that says nothing is given up


class Out(Exception):
    """A contender that does not run; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Who takes part: a script in peers/, its arguments, and the packages of its environment (none: our own)."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def interpreter(contender: Contender) -> Path:
    """The Python that has the contender's packages, installed on first use; `Out` when they do not install."""
    if not contender.packages:
        return Path(sys.executable)
    home = CACHE / contender.script
    python, stamp = home / "bin" / "python", home / "installed.txt"
    wanted = "\n".join(contender.packages) + "\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"  installing {', '.join(contender.packages)} into {home.relative_to(ROOT)} …", flush=True)
        _checked([sys.executable, "-m", "venv", "--clear", str(home)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if any(name.startswith("torch==") for name in contender.packages):
            # First and alone, so that nothing else decides which build comes.
            _checked([*pip, "-c", str(ROOT / "constraints.txt"), "torch", "numpy"])
        _checked([*pip, *contender.packages])
        stamp.write_text(wanted)
    return python


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Out(f"not installed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:160]}")


class Running:
    """A contender at work: `turn` for a round, `finish` for its models."""

    def __init__(self, contender: Contender, work: Path, log: Path) -> None:
        python = interpreter(contender)
        script = PEERS / f"{contender.script}.py"
        quiet = {
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": str(CACHE / "flwr-home"), "PYTHONPATH": str(PEERS), "JAX_PLATFORMS": "cpu",
        }  # fmt: skip
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), str(script), str(work), *contender.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1,
                env=_environment() | quiet, start_new_session=True,
            )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.peak_memory = 0  # bytes, of the whole process tree, while it was watched

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def turn(self, *, watch: bool = False) -> dict[str, Any]:
        """One round; `watch` its memory, which costs time and is done in the warm-up only."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("round\n")
        except BrokenPipeError:
            raise Out(self._reason()) from None
        return self._reply(watch)

    def finish(self) -> dict[str, Any]:
        """What it says at the end; its models lie where the work says."""
        last = self._reply(watch=False)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.stop()
        return last

    def stop(self) -> None:
        """End it, and what it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session: nobody else is in it
            self._process.wait()

    def _reply(self, watch: bool) -> dict[str, Any]:
        waited = 0.0
        while waited < PATIENCE:
            pause = 0.1 if watch else PATIENCE
            try:
                line = self._lines.get(timeout=pause)
            except queue.Empty:
                waited += pause
                self.peak_memory = max(self.peak_memory, tree_memory(self._process.pid))
                continue
            if line is None:
                raise Out(self._reason())
            return dict(json.loads(line))
        self.stop()
        raise Out(f"failed: silent for {PATIENCE} s, see {self._log.relative_to(ROOT)}")

    def _reason(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"failed: {lines[-1][:120] if lines else 'no message'} ({self._log.relative_to(ROOT)})"


def _environment() -> Mapping[str, str]:
    """Ours, without what would make an interpreter look into our own packages; its own programs come first."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV", "PYTHONPATH")}


def tree_memory(pid: int) -> int:
    """Bytes of memory a process and its descendants hold, pages shared among them counted once."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue  # gone meanwhile
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(_held(member) for member in family)


def _held(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
