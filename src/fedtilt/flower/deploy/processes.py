"""Background processes that outlive the command that starts them, and can all be stopped.

Flower starts helper processes, one per message. All processes of a cluster inherit its id in an environment variable
and are found by it, never by name. A process id alone is not enough to stop a process: the id may have been given to
another one since, so it is stored together with the time its process started.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedtilt.errors import InputError
from fedtilt.flower.deploy import programs

CLUSTER_VARIABLE = "FEDTILT_CLUSTER"


class Process(NamedTuple):
    """A process that `start` started."""

    pid: int
    start_time: str  # tells it from a later process with the same id


def environment(cluster_id: str, flwr_home: Path) -> dict[str, str]:
    """The environment of a cluster's Flower processes."""
    flower = programs.environment(flwr_home)
    flower["PATH"] = os.pathsep.join([flower["PATH"], os.environ.get("PATH", "")])
    return {**os.environ, **flower, CLUSTER_VARIABLE: cluster_id, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}


def start(command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> Process:
    """Start a process in a new session, with its output in a file; only its owner can read what it writes."""
    program = Path(sys.executable).parent / command[0]
    for folder in (log.parent, cwd):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        process = subprocess.Popen(
            [str(program), *command[1:]], env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, umask=0o077,
        )  # fmt: skip
    process.returncode = 0  # the process outlives this object, which would warn; `is_alive` reaps it
    return Process(process.pid, _start_time(process.pid) or "")


def _start_time(pid: int) -> str | None:
    """When a process started, in the words of the system; None if it is not running."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:  # the command, in parentheses, may contain anything; the start time is the 20th field after it
            state, *fields = stat.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return None
        return None if state == "Z" else fields[18]
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip() or None


def is_alive(process: Process) -> bool:
    """Whether a process is running; reaps a child that has ended."""
    try:
        if os.waitpid(process.pid, os.WNOHANG)[0] == process.pid:
            return False
    except ChildProcessError:
        pass  # not a child of this process
    return _start_time(process.pid) == process.start_time


def _alive(started: Sequence[Process]) -> list[int]:
    return [process.pid for process in started if is_alive(process)]


def running(cluster_id: str, started: Sequence[Process] = ()) -> list[int]:
    """The ids of a cluster's running processes; without /proc, those of the `started` ones that are running."""
    proc = Path("/proc")
    alive = _alive(started)  # reaps those that have ended
    if not (proc / "self" / "environ").exists():
        return alive
    entry = f"{CLUSTER_VARIABLE}={cluster_id}".encode()
    pids = set(alive)  # a SuperExec hides its environment, also from its owner
    for folder in proc.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if entry in (folder / "environ").read_bytes().split(b"\0"):
                    pids.add(int(folder.name))
            except OSError:  # it has ended, or belongs to another user
                continue
    return sorted(pids)


def stop(cluster_id: str, *stages: Sequence[Process], timeout: float = 8.0) -> list[int]:
    """Terminate all processes of a cluster, and kill those that stay; returns the ids of the stopped ones.

    `stages` are the processes that `start` returned, those to stop first in the first; they terminate their helpers.
    Each stage, and then the helpers, have `timeout` seconds to end.
    """
    started = [process for stage in stages for process in stage]
    pids = running(cluster_id, started)
    for stage in stages:
        end(stage, timeout)
    _wait_while(partial(running, cluster_id, started), timeout)
    for _ in range(50):
        remaining = running(cluster_id, started)
        if not remaining:
            return pids
        _send(remaining, signal.SIGKILL)
        time.sleep(0.1)
    raise InputError(f"processes {running(cluster_id, started)} do not end; stop them by hand")


def end(started: Sequence[Process], timeout: float = 8.0) -> None:
    """Terminate processes that `start` returned, and kill those that stay; they terminate their helpers."""
    _send(_alive(started), signal.SIGTERM)
    _wait_while(partial(_alive, started), timeout)
    _send(_alive(started), signal.SIGKILL)
    _wait_while(partial(_alive, started), timeout)


def _wait_while(pids: Callable[[], Sequence[int]], timeout: float) -> None:
    end = time.monotonic() + timeout
    while pids() and time.monotonic() < end:
        time.sleep(0.1)


def _send(pids: Sequence[int], signal_: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal_)
        except ProcessLookupError:
            continue
