"""Processes that are found again, stopped in order, and never mistaken for others."""

import os
import sys
import time
from pathlib import Path

import pytest

from fedtilt.flower.deploy import processes
from fedtilt.flower.deploy.processes import Process

PYTHON = Path(sys.executable).name
CHILD = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'], "
CHILD += "start_new_session=True); time.sleep(99)"
NODE = """
import os, signal, sys, time
from pathlib import Path

def stop(*_):
    time.sleep(0.3)  # time enough for the link to end, if it is stopped at once
    Path("goodbye").write_text(str(Path(f"/proc/{sys.argv[1]}/cmdline").read_bytes() != b""))
    sys.exit()

signal.signal(signal.SIGTERM, stop)
Path("ready").touch()
time.sleep(99)
"""


@pytest.fixture
def cluster_id() -> str:
    return f"test-{os.getpid()}-{time.time_ns()}"


def start(cluster_id: str, folder: Path, *arguments: str) -> Process:
    env = processes.environment(cluster_id, folder)
    return processes.start([PYTHON, *arguments], env, folder / "log.txt", folder)


def test_every_process_and_its_children_are_stopped(tmp_path: Path, cluster_id: str) -> None:
    process = start(cluster_id, tmp_path, "-c", CHILD)
    while len(processes.running(cluster_id)) < 2:
        time.sleep(0.05)
    assert process.pid in processes.stop(cluster_id, [process], timeout=0.5)
    assert processes.running(cluster_id) == []
    assert not processes.is_alive(process)


def test_a_process_that_got_the_id_of_another_is_left_alone(tmp_path: Path, cluster_id: str) -> None:
    process = start("another cluster", tmp_path, "-c", "import time; time.sleep(99)")
    earlier = Process(process.pid, "1")  # the id is in use again
    assert not processes.is_alive(earlier)
    assert processes.running(cluster_id, [earlier]) == []
    assert processes.stop(cluster_id, [earlier]) == []
    assert processes.is_alive(process)
    processes.stop("another cluster", [process])
    assert not processes.is_alive(process)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_sites_are_stopped_while_the_superlink_still_runs(tmp_path: Path, cluster_id: str) -> None:
    link = start(cluster_id, tmp_path, "-c", "import time; time.sleep(99)")
    node = start(cluster_id, tmp_path, "-c", NODE, str(link.pid))
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    assert processes.stop(cluster_id, [node], [link]) == sorted([link.pid, node.pid])
    assert (tmp_path / "goodbye").read_text() == "True"


def test_only_the_owner_can_read_what_a_process_writes(tmp_path: Path, cluster_id: str) -> None:
    folder = tmp_path / "site"
    code = "import pathlib; pathlib.Path('state').mkdir(); pathlib.Path('state/model').touch(); print('x')"
    process = start(cluster_id, folder, "-c", code)
    while processes.is_alive(process):
        time.sleep(0.05)
    assert {path.name for path in folder.rglob("*")} == {"log.txt", "state", "model"}
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
