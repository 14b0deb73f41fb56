"""Processes that are started to outlive their starter, and that are all gone when they are stopped.

Flower starts helpers of its own, one for every message. They inherit a mark in their environment, by which they are
found again: no process is ever ended by its name.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedtilt.errors import InputError

MARK = "FEDTILT_TRIAL"


def environment(mark: str, home: Path) -> dict[str, str]:
    """What every Flower process of a trial gets: quiet, offline, its own home, the programs of this Python."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        MARK: mark,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    }


def start(command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> int:
    """Start a process in a session of its own, its output in a file; the process id."""
    program = Path(sys.executable).parent / command[0]
    if not program.exists():
        raise InputError(f'{command[0]} is not installed beside this Python; pip install "fedtilt[flower]"')
    log.parent.mkdir(parents=True, exist_ok=True)
    cwd.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(program), *command[1:]], env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    process.returncode = 0  # it outlives this object, which would warn of that; `is_alive` reaps it
    return process.pid


def marked(mark: str, known: Sequence[int] = ()) -> list[int]:
    """The processes alive that carry a mark; where there is no /proc, those of the known ones that are alive."""
    proc = Path("/proc")
    if not (proc / "self" / "environ").exists():
        return [pid for pid in known if is_alive(pid)]
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it is gone, or another user's
                continue
    return sorted(found)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was started here is reaped."""
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


def stop(mark: str, known: Sequence[int] = (), *, patience: float = 8.0) -> list[int]:
    """End all processes that carry a mark: politely, and after a while for good. Those that were there."""
    there = marked(mark, known)
    polite = [pid for pid in known if pid in there]  # they end their helpers themselves
    _send(polite, signal.SIGTERM)
    until = time.monotonic() + patience
    while _left(mark, known) and time.monotonic() < until:
        time.sleep(0.2)
    for _ in range(50):
        left = _left(mark, known)
        if not left:
            return there
        _send(left, signal.SIGKILL)
        time.sleep(0.1)
    raise InputError(f"processes {_left(mark, known)} do not end; look at them by hand")


def _left(mark: str, known: Sequence[int]) -> list[int]:
    for pid in known:
        is_alive(pid)  # reaps
    return marked(mark, known)


def _send(pids: Sequence[int], what: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            continue
