"""A run folder whose methods an earlier version recorded as flat settings: read and exported, but not resumed."""

from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt import spec
from fedtilt.files import read_json, write_json, write_toml
from fedtilt.runs.export import export_model
from fedtilt.runs.spec_run import run_spec

TINY = [
    "train.rounds=1", "train.epochs=1", "train.workers=0", "clients.count=4", "clients.max_train=8", "device=cpu",
    "model.hidden=[4]", "train.participation=1",
]  # fmt: skip
FLAT = {"tau": 0.0, "lam": 0.0, "q": 0.0, "mu": "inf", "prox": 0.0, "aggregator": "tilted", "bad_share": 0.1}
REJECTED = (
    "is a run of an earlier version, in which methods had other keys; fedtilt report and export read it, but to "
    "continue it install that version, or start a new run in another folder (--out, or out= in Python)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of FedPer, as the earlier version recorded it."""
    folder = tmp_path / "run"
    run_spec(spec.load("digits", overrides=TINY, methods=["fedper"]), folder)
    path = folder / "seed-0/fingerprint.json"
    fingerprint = read_json(path)
    local = {"rule": "local", "names": ["last"], "first_epochs": None, "trains": True}
    assert fingerprint["methods"]["fedper"]["local"] == local
    fingerprint["methods"]["fedper"] = {"name": "fedper", **FLAT, "local": ["last"]}
    write_json(path, fingerprint)
    return folder


def test_it_is_exported_with_the_local_parts_of_a_client(folder: Path, tmp_path: Path, fedtilt) -> None:
    shared, own = export_model(folder, "fedper"), export_model(folder, "fedper", 1)
    assert shared.sources["local_parameters"] == "initial"
    assert own.sources["local_parameters"] == "of the client"
    differ = [name for name, tensor in shared.tensors.items() if not torch.equal(tensor, own.tensors[name])]
    assert sorted(differ) == ["3.bias", "3.weight"]  # the last layer
    done = fedtilt("export", str(folder), "--method", "fedper", "--to", str(tmp_path / "model.safetensors"))
    assert done.code == 0, done.err
    assert "method.mu | inf" in (tmp_path / "model.md").read_text()


def test_it_is_reported_and_checked(folder: Path, fedtilt) -> None:
    for command in ("report", "metrics", "check"):
        done = fedtilt(command, str(folder))
        assert done.code == 0, done.err
    assert "fedper" in (folder / "report.html").read_text()


def test_it_is_not_resumed(folder: Path, fedtilt) -> None:
    with pytest.raises(ft.InputError) as error:
        ft.resume(folder, rounds=2)
    assert str(error.value) == f"{folder / 'seed-0'} {REJECTED}"
    text = (folder / "spec.toml").read_text().partition("# sha256")[0]
    write_toml(folder / "spec.toml", f'{text}aggregator = "krum"\nbad_share = 0.1\n')  # keys that have moved
    rejected = fedtilt("resume", str(folder), "--rounds", "2")
    assert rejected.code == 2
    assert " ".join(rejected.err.split()).endswith(f"{folder} {REJECTED}")
