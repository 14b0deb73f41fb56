import json
import shutil
from pathlib import Path

import pytest

from fedtilt import report
from fedtilt.data.sampling import DrawnRows
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import federation_of, load
from tests.helpers.hostile_names import CLIENT, NASTY


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run: 8 clients, half with flipped labels, 2 seeds, HTML as a method name, clients never selected."""
    clients = ["clients.count=8", "clients.max_train=20", "outliers.clients=0.5"]
    train = ["train.rounds=3", "train.epochs=2", "train.participation=0.25", f'methods.fedtilt.name="{NASTY}"']
    spec = load("digits", overrides=clients + train, seeds=2, device="cpu")
    folder = tmp_path_factory.mktemp("runs") / "a & b"
    run_spec(spec, folder)
    for seed in (0, 1):
        federation = federation_of(spec, seed)
        names = {
            "clients": [CLIENT, *federation.client_names[1:]],
            "classes": list(federation.class_names),
            "has_outliers": federation.has_outliers.nonzero().flatten().tolist(),
        }
        path = folder / f"seed-{seed}" / "federation.json"
        drawn = {key: value for key, value in json.loads(path.read_text()).items() if key in DrawnRows._fields}
        path.write_text(json.dumps(drawn | names))
    return folder


@pytest.fixture(scope="session")
def page_file(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write([run_folder], tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def page(page_file: Path) -> str:
    return page_file.read_text()


@pytest.fixture
def copy(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "copy"))
