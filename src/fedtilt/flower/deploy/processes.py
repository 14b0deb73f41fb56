"""Background processes that outlive the command that starts them, and can all be stopped.

Flower starts helper processes, one per message. All processes of a cluster inherit its id in an environment variable
and are found by it, never by name.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedtilt.errors import InputError

CLUSTER_VARIABLE = "FEDTILT_CLUSTER"


def environment(cluster_id: str, flwr_home: Path) -> dict[str, str]:
    """The environment of a cluster's Flower processes: no telemetry, no downloads, this Python's programs."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        CLUSTER_VARIABLE: cluster_id,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(flwr_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    }


def start(command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> int:
    """Start a process in a new session, with its output in a file; returns the process id."""
    program = Path(sys.executable).parent / command[0]
    if not program.exists():
        raise InputError(f'{command[0]} is not installed in this Python environment; pip install "fedtilt[flower]"')
    log.parent.mkdir(parents=True, exist_ok=True)
    cwd.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(program), *command[1:]], env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    process.returncode = 0  # the process outlives this object, which would warn; `is_alive` reaps it
    return process.pid


def running(cluster_id: str, started: Sequence[int] = ()) -> list[int]:
    """The running processes of a cluster; without /proc, those of the `started` ones that are running."""
    proc = Path("/proc")
    if not (proc / "self" / "environ").exists():
        return [pid for pid in started if is_alive(pid)]
    entry = f"{CLUSTER_VARIABLE}={cluster_id}".encode()
    pids = []
    for folder in proc.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if entry in (folder / "environ").read_bytes().split(b"\0"):
                    pids.append(int(folder.name))
            except OSError:  # it has ended, or belongs to another user
                continue
    return sorted(pids)


def is_alive(pid: int) -> bool:
    """Whether a process is running; reaps a child that has ended."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass  # not a child of this process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def stop(cluster_id: str, started: Sequence[int] = (), *, timeout: float = 8.0) -> list[int]:
    """Terminate all processes of a cluster, and kill those left after `timeout` seconds; returns the stopped ones.

    Args:
        cluster_id: the id in their environment
        started: the processes that `start` returned, which terminate their helpers themselves
        timeout: seconds
    """
    pids = running(cluster_id, started)
    _send([pid for pid in started if pid in pids], signal.SIGTERM)
    end = time.monotonic() + timeout
    while _remaining(cluster_id, started) and time.monotonic() < end:
        time.sleep(0.2)
    for _ in range(50):
        remaining = _remaining(cluster_id, started)
        if not remaining:
            return pids
        _send(remaining, signal.SIGKILL)
        time.sleep(0.1)
    raise InputError(f"processes {_remaining(cluster_id, started)} do not end; stop them by hand")


def _remaining(cluster_id: str, started: Sequence[int]) -> list[int]:
    for pid in started:
        is_alive(pid)  # reaps
    return running(cluster_id, started)


def _send(pids: Sequence[int], signal_: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal_)
        except ProcessLookupError:
            continue
