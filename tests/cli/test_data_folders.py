"""`fedtilt data show` on folders of images, manifests and LEAF data."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedtilt.cli import app
from fedtilt.errors import InputError


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "cache"))
    for name in ("north/cat", "north/dog", "south/cat"):
        for i in range(4):
            path = tmp_path / "photos" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((5, 4), i, np.uint8)).save(path)
    return tmp_path / "photos"


def show(*args):
    return CliRunner().invoke(app, ["data", "show", *map(str, args)], catch_exceptions=True)


def test_a_folder_of_images(photos):
    result = show(photos)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[:4] == [
        "12 images, 2 classes, 2 clients",
        "split: none; a share is test data (test_share)",
        "size: 5 × 4",
        "channels: 1",
    ]
    assert "photos  2 clients, 2 classes" in lines
    assert "9 training samples (3 to 6 each), 3 test" in lines
    assert "clients: 0 = north, 1 = south" in lines
    assert "'north' (6), 'south' (3) have fewer than 10 training samples" in result.output.replace("\n", " ")


def test_images_of_several_sizes_are_described_but_not_read(photos):
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(photos / "south/cat/9.png")
    result = show(photos)
    assert result.exit_code == 0
    assert "9 × 9 (1 of them, such as" in result.output
    assert "training samples" not in result.output


def test_a_manifest_and_images_without_clients(photos):
    rows = [f"photos/north/{name}/{i}.png,{name}" for name in ("cat", "dog") for i in range(4)]
    (photos.parent / "list.csv").write_text("\n".join(["path,label", *rows]))
    result = show(photos.parent / "list.csv")
    assert "8 images, 2 classes, no clients of their own" in result.output
    assert "list  1 clients, 2 classes" in result.output


def test_leaf_data(tmp_path):
    content = {"users": ["ann"], "num_samples": [2], "user_data": {"ann": {"x": [[0.5], [0.25]], "y": [0, 1]}}}
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "all.json").write_text(json.dumps(content))
    result = show(tmp_path)
    assert result.exit_code == 0
    assert "1 clients, 2 classes" in result.output


def test_options_of_tables_and_specs_are_refused(photos):
    for option in (["--target", "y"], ["--set", "clients.count=3"]):
        assert isinstance(show(photos, *option).exception, InputError)
