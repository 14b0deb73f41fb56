"""What the tests of real deployments share; without Flower there is nothing to test."""

import importlib.util
from pathlib import Path

import pytest

from .toy import SPEC

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["*.py"]


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "small.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages carry the identity of the process that makes them; Flower sets it in its own processes."""
    from flwr.supercore.task_identity import TaskIdentity

    for key, value in {"_run_id": 1, "_node_id": 1, "_task_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, key, value)


@pytest.fixture
def deployment(spec: Path, tmp_path: Path) -> object:
    from fedtilt.flower import Task

    from .loopback import Deployment

    return Deployment(Task(spec=spec), tmp_path)
