"""Real federations for the tests of the network: a spec over the toy data, and waiting for what a server wrote."""

import time
from collections.abc import Callable
from pathlib import Path

from fedtilt.flower.deploy.project import write_project
from tests.helpers.toy_federation import SPEC

TASK = """
from pathlib import Path
from fedtilt.flower import Task
TASK = Task(spec=Path(__file__).parent.parent / "spec.toml")
"""


def write_app(folder: Path, spec: str = SPEC, task: str = TASK) -> Path:
    """A Flower project whose sites share the spec's own data, as in the simulator."""
    write_project(folder)
    (folder / "spec.toml").write_text(spec)
    (folder / "federation/task.py").write_text(task)
    return folder


def wait_until(done: Callable[[], object], seconds: float = 240) -> None:
    """Wait for a sign; only a very busy machine comes near the limit."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)
