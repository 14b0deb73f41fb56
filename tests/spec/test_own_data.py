"""Specs with the user's own images and LEAF data."""

import json

import numpy as np
import pytest
from PIL import Image

from fedtilt import spec
from fedtilt.spec import federation_of

pytestmark = pytest.mark.filterwarnings("ignore::fedtilt.errors.InputWarning")  # these data sets are small

METHOD = '[[methods]]\npreset = "fedavg"\n'


def write(folder, text):
    (folder / "mine.toml").write_text(text + METHOD)
    return folder / "mine.toml"


def test_images(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "cache"))
    for number, name in enumerate(["north/cat", "north/dog", "south/cat"]):
        for i in range(4):
            path = tmp_path / "photos" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((5, 4), 20 * number + i, np.uint8)).save(path)
    loaded = spec.load(write(tmp_path, '[data]\nimages = "photos"\nimage_size = [8, 6]\ntest_share = 0.5\n'))
    federation = federation_of(loaded, 3)
    assert (federation.client_names, federation.class_names) == (("north", "south"), ("cat", "dog"))
    assert federation.input_shape == (1, 8, 6)
    assert federation.train_sizes().tolist() == [4, 2]
    again = spec.load(write(tmp_path, spec.dump(loaded).partition("[[methods]]")[0]))
    assert again == loaded  # the run folder has the same spec


def test_leaf(tmp_path):
    content = {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[0.5], [0.25]], "y": [0, 1]}}}
    for split in ("train", "test"):
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / "all.json").write_text(json.dumps(content))
    federation = federation_of(spec.load(write(tmp_path, '[data]\nleaf = "data"\n')), 0)
    assert federation.client_names == ("a",)
    assert federation.clean_train(0)[0].tolist() == [[0.5], [0.25]]
