"""The projects that we write and show are Flower apps that Flower Hub would take."""

import importlib
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedtilt.flower.deploy.project import write_project
from fedtilt.flower.flwr_internals import FLWR_VERSION

ROOT = Path(__file__).parents[3]
publish = importlib.import_module("flwr.cli.app_cmd.publish")  # the package has a function of this name


@pytest.fixture(params=["template", "example"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "example":
        return ROOT / "examples/flower-quickstart"
    write_project(tmp_path / "mine", sites=2)
    return tmp_path / "mine"


def test_flwr_build_bundles_it_in_format_1(project: Path, tmp_path: Path) -> None:
    flwr = Path(sys.executable).with_name("flwr")
    done = subprocess.run([flwr, "build", "--app", project], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "missing the following recommended properties" not in done.stdout
    (bundle,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as files:
        config = tomllib.loads(files.read("pyproject.toml").decode())
        names = set(files.namelist())
    app = config["tool"]["flwr"]["app"]
    assert app["fab-format-version"] == 1
    assert app["flwr-version-target"].startswith(f"{FLWR_VERSION}.")
    package = app["components"]["serverapp"].partition(".")[0]
    assert {"LICENSE", "pyproject.toml", f"{package}/__init__.py", f"{package}/task.py"} <= names
    assert not any(name.startswith("data/") for name in names)  # a site's table is never sent


def test_flower_hub_would_take_it(project: Path) -> None:
    """What `flwr app publish` checks before it uploads."""
    config, warnings = publish.load_and_validate(project / "pyproject.toml", check_module=False)
    assert not warnings
    publish._validate_app_name(project.name, "Flower App directory name")
    publish._validate_description(config["project"]["description"])
    files = publish._collect_file_paths(project)
    publish._validate_files(files)
    names = {file.relative_to(project.resolve()).as_posix() for file in files}
    assert {"pyproject.toml", "LICENSE"} <= names
    assert not any(name.startswith("data/") for name in names)


def test_the_projects_need_the_flower_that_we_need(project: Path) -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["flower"]
    theirs = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [text.replace("[simulation]", "") for text in theirs if text.startswith("flwr")] == ours
