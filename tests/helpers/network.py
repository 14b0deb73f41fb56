"""Flower projects for the tests that start a real SuperLink and SuperNodes, and a way to wait for their files."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtilt.flower.deploy.local_cluster import LocalCluster, free_port
from fedtilt.flower.deploy.project import write_project
from tests.helpers.toy_federation import SPEC

TASK = """
from pathlib import Path
from fedtilt.flower import Task
TASK = Task(spec=Path(__file__).parent.parent / "spec.toml")
"""


def write_app(folder: Path, spec: str = SPEC, task: str = TASK) -> Path:
    """A Flower project that divides the spec's data set among its sites, as in the simulator."""
    write_project(folder)
    (folder / "spec.toml").write_text(spec)
    (folder / "federation/task.py").write_text(task)
    return folder


@contextmanager
def running_superlink(home: Path, sites: int) -> Iterator[LocalCluster]:
    """A SuperLink whose SuperNodes are not started; `site_port` is free, for a proxy in front of it."""
    cluster = LocalCluster(home=home, sites=sites, id=secrets.token_hex(8), port=free_port(), site_port=free_port())
    try:
        cluster.start_superlink()
        yield cluster
    finally:
        cluster.down()
    assert cluster.running() == []


def wait_until(condition: Callable[[], object], timeout: float = 240) -> None:
    """Wait for a condition; only a very busy machine comes near the timeout."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not true after {timeout} s"
        time.sleep(0.2)
