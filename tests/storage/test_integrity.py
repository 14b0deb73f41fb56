"""`fedtilt check`: every kind of file is read, damage is named, and nothing is changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedtilt.files import write_json
from fedtilt.locks import locked
from fedtilt.report import write
from fedtilt.runs.spec_run import resume, run_spec
from fedtilt.spec import load
from fedtilt.storage.integrity import check_run
from tests.helpers.callbacks import Calls

SETTINGS = [
    "clients.count=3", "clients.max_train=10", "train.rounds=3", "train.participation=1.0", "train.epochs=1",
    "train.workers=0", "train.eval_every=1", "storage.checkpoint_seconds=0",
]  # fmt: skip
KINDS = {  # file → kind, and what is damaged there
    "run.json": "settings and records",
    "spec.toml": "settings and records",
    "schema.json": "settings and records",
    "report.html": "pages",
    "results.json": "names and results",
    "seed-0/fingerprint.json": "settings and records",
    "seed-0/federation.json": "names and results",
    "seed-0/model.json": "names and results",
    "seed-0/backend.json": "names and results",
    "seed-0/predictions.safetensors": "constants and predictions",
    "seed-0/metrics.jsonl": "lines of metrics",
    "seed-0/counts/round-00002.safetensors": "counts",
    "seed-0/checkpoints/round-00003/manifest.json": "checkpoints",
    "seed-0/checkpoints/round-00003/server.safetensors": "checkpoints",
    "seed-0/checkpoints/round-00003/clients.safetensors": "checkpoints",
    "seed-0/clients/states-000003": "states of clients",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_spec(load("digits", overrides=SETTINGS, device="cpu"), folder)
    write([folder], folder / "report.html")
    write_json(folder / "schema.json", {"target": "digit"})  # as the server of a deployment writes it
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def test_an_intact_run(finished: Path) -> None:
    before = contents(finished)
    checks = {check.kind: check for check in check_run(finished)}
    assert {kind: check.checked for kind, check in checks.items()} == {
        "settings and records": 4,
        "pages": 1,
        "names and results": 4,
        "constants and predictions": 1,
        "lines of metrics": 9,  # three methods, three rounds
        "counts": 3,
        "checkpoints": 2,
        "states of clients": 12,  # two methods with personal models, three clients, two checkpoints
    }
    assert not any(check.damaged for check in checks.values())
    assert contents(finished) == before


def test_every_file_is_checked(finished: Path, tmp_path: Path) -> None:
    written_again = {"seed-0/clients/states-000002", *(f"seed-0/counts/round-0000{n}.safetensors" for n in (1, 3))}
    older = {
        f"seed-0/checkpoints/round-00002/{name}"
        for name in ("manifest.json", "server.safetensors", "clients.safetensors")
    }
    assert contents(finished).keys() == KINDS.keys() | written_again | older
    for file, kind in KINDS.items():
        copy = Path(shutil.copytree(finished, tmp_path / "copy"))
        content = bytearray((copy / file).read_bytes())
        content[-30] ^= 2
        (copy / file).write_bytes(content)
        damaged = {check.kind: check.damaged for check in check_run(copy) if check.damaged}
        assert list(damaged) == [kind], file
        assert len(damaged[kind]) == 1
        assert damaged[kind][0].startswith(str(copy / file)), file
        shutil.rmtree(copy)


def test_the_command(fedtilt: Callable, finished: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "run"))
    result = fedtilt("check", str(copy))
    assert result.code == 0
    assert result.out.splitlines()[-1] == f"{copy} is intact"
    states = copy / "seed-0/clients/states-000003"
    states.write_bytes(states.read_bytes()[:-1])
    result = fedtilt("check", str(copy))
    assert result.code == 1
    assert "that client starts again from the shared model" in result.out
    name = json.loads((copy / "seed-0/federation.json").read_text())["clients"][2]
    assert result.out.splitlines()[-2:] == [
        f"damaged: {states} is damaged: client {name} of fedtilt in the checkpoint of round 3",
        f"{copy} is damaged",
    ]
    result = fedtilt("check", str(copy), "--json")
    assert result.code == 1
    values = json.loads(result.out)
    assert values["intact"] is False
    assert [len(part["damaged"]) for part in values["files"]] == [0, 0, 0, 0, 0, 0, 0, 1]
    with locked(copy):
        assert "is in use by a run, which changes its files" in fedtilt("check", str(copy)).err
    assert "is not a run folder" in fedtilt("check", str(tmp_path)).err


def test_what_it_says_is_what_a_resume_does(finished: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "run"))
    for file in ("seed-0/federation.json", "seed-0/model.json", "results.json", "seed-0/predictions.safetensors"):
        (copy / file).write_bytes((copy / file).read_bytes()[:-20])
    assert sum(len(check.damaged) for check in check_run(copy)) == 4
    calls = Calls()
    resume(copy, callbacks=[calls])
    assert calls.notices == []
    assert contents(copy) == contents(finished)  # written again
