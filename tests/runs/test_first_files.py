"""A run that is killed while it writes its first files leaves a folder that can be used again."""

import os
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt import spec
from fedtilt.files import read_json
from fedtilt.runs import spec_run
from fedtilt.storage import provenance

SETTINGS = ["clients.count=3", "clients.max_train=10", "train.rounds=1", "train.epochs=1", "train.workers=0"]


def killed_at(monkeypatch: pytest.MonkeyPatch, module: object, function: str, folder: Path) -> list[str]:
    """Start a run of three seeds in a process that ends at the first call of a function; the files that it leaves."""
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # the threads of the parent are not here
        monkeypatch.setattr(module, function, lambda *_, **__: os._exit(9))
        spec_run.run_spec(spec.load("digits", overrides=SETTINGS, seeds=3, device="cpu"), folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    return sorted(path.name for path in folder.iterdir())


def test_before_the_first_and_the_second_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert killed_at(monkeypatch, provenance, "write_json", folder) == [".lock"]
    assert killed_at(monkeypatch, spec_run, "write_toml", folder) == [".lock", "run.json"]
    with pytest.raises(
        ft.InputError, match="run that was stopped before it began; start it again with the same folder"
    ):
        spec_run.resume(folder)
    one_seed = spec.load("digits", overrides=SETTINGS, device="cpu")
    results = spec_run.run_spec(one_seed, folder)
    assert read_json(folder / "run.json")["seeds"] == list(results) == [0]  # nothing of the three seeds is left
    with pytest.raises(ft.InputError, match="is not empty; use fedtilt resume"):
        spec_run.run_spec(one_seed, folder)


def test_after_the_second_file_it_is_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert killed_at(monkeypatch, spec_run, "train_to_end", folder) == [".lock", "run.json", "spec.toml"]
    assert list(spec_run.resume(folder)) == [0, 1, 2]


def test_a_file_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    for name, sentence in (("run.json", "run.json is damaged"), ("spec.toml", "is not empty; choose another folder")):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("{}")
        with pytest.raises(ft.InputError, match=sentence):
            spec_run.run_spec(spec.load("digits", overrides=SETTINGS, device="cpu"), folder)
        assert (folder / name).read_text() == "{}"
