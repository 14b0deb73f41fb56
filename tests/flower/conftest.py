"""Fixtures of the deployment tests, which need Flower."""

import importlib.util
from pathlib import Path

import pytest

from tests.helpers.flower_identity import flower_identity  # noqa: F401 (a fixture)
from tests.helpers.toy_federation import SPEC

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["*.py"]


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "small.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def deployment(spec: Path, tmp_path: Path) -> object:
    from fedtilt.flower import Task
    from tests.helpers.loopback import Deployment

    return Deployment(Task(spec=spec), tmp_path)
