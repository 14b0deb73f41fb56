"""The user's own images: folders, manifests, the cache of decoded images, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedtilt.data import Federation, from_torch, images
from fedtilt.data.sources.images import describe_images
from fedtilt.errors import InputError, InputWarning

pytestmark = pytest.mark.filterwarnings("ignore::fedtilt.errors.InputWarning")  # these data sets are small


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "images"


def save(path, value, size=(4, 6), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if mode in ("L", "F") else (*size, len(mode))
    kind = np.float32 if mode == "F" else np.uint8
    Image.fromarray(np.full(shape, value, kind)).save(path)
    return path


def folder(root, layout, count=4):
    """Images whose pixels are their number; `layout` has the classes' folders."""
    for number, name in enumerate(layout):
        for i in range(count):
            save(root / name / f"{i}.png", 10 * number + i)
    return root


def test_class_folders(tmp_path, cache):
    data = images(folder(tmp_path / "pets", ["cat", "dog"]))
    assert repr(data) == "Dataset('pets': 6 training and 2 test samples of shape (3, 4, 6), 2 classes)"
    assert (data.class_names, data.client_names, data.image) == (("cat", "dog"), None, True)
    assert torch.equal(data.y_train, (data.x_train[:, 0, 0, 0] >= 10).long())
    assert sorted(torch.cat([data.x_train, data.x_test])[:, 2, 3, 5].tolist()) == [0, 1, 2, 3, 10, 11, 12, 13]
    proportional = images(tmp_path / "pets", split="proportional")
    assert proportional.y_test.tolist() == [0, 1]
    assert [data.drawn_rows().split, proportional.drawn_rows().split] == ["random", "proportional"]
    assert sorted(Federation.build(data, clients=1, partition="iid").row_names(0))[:2] == ["cat/2.png", "cat/3.png"]


def test_tiny_imagenet_is_read_as_published(tmp_path, cache):
    root = tmp_path / "tiny-imagenet-200"
    for number, name in enumerate(["n01", "n02"]):
        for i in range(3):
            save(root / "train" / name / "images" / f"{name}_{i}.JPEG", 100 * number + 10 * i, (8, 8))
        (root / "train" / name / f"{name}_boxes.txt").write_text("")
    for i in range(2):
        save(root / "val" / "images" / f"val_{i}.JPEG", 50, (8, 8))
        save(root / "test" / "images" / f"test_{i}.JPEG", 60, (8, 8))
    annotations = root / "val" / "val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn02\t0\t0\t7\t7\nval_1.JPEG\tn01\t0\t0\t7\t7\n")
    data = images(root)
    assert (data.class_names, data.x_train.shape, data.x_test.shape) == (("n01", "n02"), (6, 3, 8, 8), (2, 3, 8, 8))
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(data.y_train, (data.x_train[:, 0, 0, 0] > 60).long())
    assert data.y_test.tolist() == [1, 0]
    annotations.write_text("val_0.JPEG\tn03\t0\t0\t7\t7\n")
    with pytest.raises(InputError, match="line 1 has no image of val/images and class of train; unpack it again"):
        images(root)


def test_client_folders_inside_splits(tmp_path, cache):
    root = folder(tmp_path / "pets", ["train/b/cat", "train/a/cat", "train/a/dog", "Test/a/cat", "Test/b/cat"])
    data = images(root)
    assert data.client_names == ("a", "b")
    fed = Federation.build(data, partition="column", outliers="corruptions")
    assert data.x_train[fed.train_index[1]][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert fed.clean_train(0)[1].tolist() == [0] * 4 + [1] * 4
    assert data.x_test[fed.test_index[0]][:, 0, 0, 0].tolist() == [30, 31, 32, 33]
    with pytest.raises(InputError, match="test_share = 0.5 has no effect, because test data is given"):
        images(root, test_share=0.5)


def test_manifest(tmp_path, cache):
    for number in range(5):
        save(tmp_path / f"{number}.png", number, mode="L")
    lines = ["path,label,client,split", "0.png,no,x,train", "1.png,yes,x,test", "2.png,no,y,train", "3.png,no,y,train"]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    data = images(tmp_path / "list.csv")
    assert (data.name, data.class_names, data.client_names) == ("list", ("no", "yes"), ("x", "y"))
    assert data.x_train.flatten(1)[:, 0].tolist() == [0, 2, 3]
    assert (data.x_test.flatten(1)[:, 0].tolist(), data.y_test.tolist()) == ([1], [1])
    assert data.client_train.tolist() == [0, 1, 1]


def test_the_pixels_equal_those_of_pillow(tmp_path, cache):
    rng = np.random.default_rng(0)
    for name in ("a/1", "a/2", "b/1", "b/2"):
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 7, 3), np.uint8)).save(path)
    data = images(tmp_path, size=(5, 6), channels=1, test_share=0.5)
    expected = {
        np.asarray(
            Image.open(tmp_path / f"{name}.png").convert("L").resize((6, 5), Image.Resampling.BILINEAR)
        ).tobytes()
        for name in ("a/1", "a/2", "b/1", "b/2")
    }
    assert {x.numpy().tobytes() for x in torch.cat([data.x_train, data.x_test])} == expected


def test_the_cache_is_used_until_an_image_or_a_setting_changes(tmp_path, cache):
    root = folder(tmp_path / "pets", ["cat", "dog"])
    first = images(root)
    (file,) = cache.iterdir()
    written = file.stat().st_mtime_ns
    again = images(root)
    assert file.stat().st_mtime_ns == written
    assert torch.equal(first.x_train, again.x_train)
    again.x_train[0] = 99  # changes a copy in memory, not the file
    assert torch.equal(images(root).x_train, first.x_train)
    images(root, size=8)
    assert len(list(cache.iterdir())) == 2
    save(root / "cat/0.png", 77)
    os.utime(root / "cat/0.png", ns=(1, 1))
    changed = images(root)
    assert 77 in torch.cat([changed.x_train, changed.x_test])[:, 0, 0, 0].tolist()
    assert len(list(cache.iterdir())) == 3


def test_from_a_damaged_cache_the_images_are_decoded_again(tmp_path, cache):
    root = folder(tmp_path / "pets", ["cat", "dog"])
    data = images(root)
    x_train, x_test = data.x_train.clone(), data.x_test.clone()  # it maps the file
    (file,) = cache.iterdir()
    content = file.read_bytes()
    damages = [content[: len(content) // 2], content[:-1], b"", content + b"x"]
    damages += [
        content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :] for at in range(0, len(content), 9)
    ]
    for damaged in damages:
        file.write_bytes(damaged)
        with pytest.warns(InputWarning, match=r"\.npy was damaged: the images are decoded again"):
            again = images(root)
        assert torch.equal(again.x_train, x_train)
        assert torch.equal(again.x_test, x_test)
        assert [path.name for path in cache.iterdir()] == [file.name]
        assert file.read_bytes() == content


def test_both_splits_are_views_of_the_mapped_file(tmp_path, cache):
    data = images(folder(tmp_path / "pets", ["cat", "dog"]))
    assert data.x_test.data_ptr() == data.x_train.data_ptr() + data.x_train.numel()
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(cache) in maps.read_text()


def test_nothing_is_left_behind_by_a_broken_image(tmp_path, cache):
    root = folder(tmp_path / "pets", ["cat", "dog"])
    content = (root / "dog/3.png").read_bytes()
    (root / "dog/3.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"image .*dog/3.png cannot be read \(.*\); replace it or leave it out"):
        images(root)
    assert list(cache.iterdir()) == []
    (root / "dog/3.png").write_text("not an image")
    with pytest.raises(InputError, match=r"dog/3.png cannot be read"):
        images(root)


@pytest.mark.parametrize(
    ("image", "settings", "message"),
    [
        ({"size": (5, 6)}, {}, r"dog/9.png has 5 × 6 pixels, but .*cat/2.png has 4 × 6; resize all with size"),
        ({"mode": "L"}, {}, r"dog/9.png has 1 channels, but .*cat/2.png has 3; convert all with channels = 1"),
        ({"mode": "F"}, {}, r"dog/9.tiff has more than 16 bits per pixel \(mode F\); save it with 8 or 16"),
        ({"size": (5, 6)}, {"size": 8}, None),
        ({"mode": "L"}, {"channels": 3}, None),
        ({"mode": "RGBA"}, {"channels": 4}, None),
    ],
)
def test_mixed_images(tmp_path, cache, image, settings, message):
    root = folder(tmp_path / "pets", ["cat", "dog"])
    save(root / f"dog/9.{'tiff' if image.get('mode') == 'F' else 'png'}", 5, **image)
    if message is None:
        assert len(images(root, **settings).y_train) == 7
        return
    with pytest.raises(InputError, match=message):
        images(root, **settings)


def test_describe(tmp_path):
    root = folder(tmp_path / "pets", ["north/cat", "south/dog"])
    description = describe_images(root)
    assert description.uniform
    assert description.lines == [
        "8 images, 2 classes, 2 clients",
        "split: none; a share is test data (test_share)",
        "size: 4 × 6",
        "channels: 3",
    ]
    save(root / "south/dog/9.png", 5, size=(8, 8), mode="L")
    lines, uniform = describe_images(root)
    assert not uniform
    assert lines[2].startswith("size: 4 × 6 (8 of them, such as ")
    assert lines[2].endswith("9.png); choose one with size (data.image_size in a spec)")
    assert "1 (1 of them, such as" in lines[3]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no images"),
        (["0.png"], r"has 0.png; the folders are CLASS/…, CLIENT/CLASS/…"),
        (["cat/0.png", "a/dog/0.png"], "has cat/0.png but also a/dog/0.png; the folders are"),
        (["a/b/c/0.png"], "has a/b/c/0.png; the folders are"),
        (["a/b/c/d/e/0.png"], "has folders below .*; the folders are"),
        (["train/cat/0.png", "val/cat/0.png"], "has 'val' beside 'train'; a folder with splits has train and test"),
        (["test/cat/0.png"], "has no training images, only test"),
        (["notes.txt"], "has no images"),
    ],
)
def test_wrong_folders(tmp_path, files, message):
    (tmp_path / ".hidden").write_text("ignored")
    for name in files:
        save(tmp_path / name, 1) if name.endswith("png") else (tmp_path / name).write_text("text")
    with pytest.raises(InputError, match=message):
        images(tmp_path)


def test_stray_files_are_skipped_and_named(tmp_path, cache):
    root = folder(tmp_path / "pets", ["cat", "dog"])
    (root / "cat/Thumbs.db").write_bytes(b"of a file manager")
    (root / "desktop.ini").write_text("of a file manager")
    assert not images(root).warnings
    plain = images(root)
    (root / "dog/notes.txt").write_text("the vet says")
    data = images(root)
    assert torch.equal(data.x_train, plain.x_train)
    (text,) = data.warnings
    assert text.startswith("1 files are no images (")
    assert text.endswith(f"and are skipped, such as {root / 'dog/notes.txt'}")
    assert text in describe_images(root).lines


def test_sixteen_bits(tmp_path, cache):
    root = tmp_path / "scans"
    pixels = np.arange(24, dtype=np.uint16).reshape(4, 6) * 2849  # up to 65,527
    for n, name in enumerate(["ill", "well"] * 4):
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels + np.uint16(n)).save(root / name / f"{n}.png")
    data = images(root)
    assert data.x_train.shape == (6, 1, 4, 6)
    assert torch.equal(data.x_train[0, 0], torch.from_numpy((pixels // 257).astype(np.uint8)))
    assert describe_images(root).lines[-1] == "channels: 1"
    samples = [(Image.fromarray(pixels), n % 2) for n in range(8)]
    train = from_torch(_Samples(samples)).x_train
    assert (train.dtype, train.shape) == (torch.uint8, (6, 1, 4, 6))
    dark = tmp_path / "dark"
    for name in ("ill", "well"):
        (dark / name).mkdir(parents=True)
        for n in range(4):
            Image.fromarray(pixels // 20).save(dark / name / f"{n}.png")
    with pytest.warns(InputWarning, match="16-bit images have values below 4,096 alone"):
        images(dark)
    with pytest.raises(InputError, match=r"has x of 16-bit images; give them with 8 bits: \(x // 257\)"):
        Federation.from_clients([(np.stack([pixels] * 8), [0, 1] * 4)])


class _Samples(torch.utils.data.Dataset):
    """Samples in memory."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, position):
        return self.samples[position]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'path'; its columns are none"),
        ("path,class\n", "has no column 'label'; its columns are path, class"),
        ("path,label,age\n", "has the column 'age'; the columns are path, label, client, split"),
        ("path,label\n", "has 0 rows"),
        ("path,label\n0.png\n", "needs path, label in row 2, got '0.png'"),
        ("path,label\n0.png,a\n\n1.png,a\n", "names .*1.png in row 4, which does not exist"),
        ("path,label\n0.png,a\n0.png,b\n", "has .*0.png in rows 2 and 3; list it once"),
        ("path,label,split\n0.png,a,val\n", "has split = 'val' in row 2; write train or test"),
    ],
)
def test_wrong_manifests(tmp_path, text, message):
    save(tmp_path / "0.png", 1)
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        images(tmp_path / "list.csv")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": (1, 2, 3)}, r"size = \(1, 2, 3\) has 3 numbers; give height and width"),
        ({"size": 0}, "size must be a whole number ≥ 1, got 0"),
        ({"channels": 2}, "channels = 2 is not possible"),
    ],
)
def test_wrong_settings(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        images(tmp_path, **settings)


def test_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match=r"images https://example.org/x is a URL; download it first"):
        images("https://example.org/x")
    with pytest.raises(InputError, match=r"images .*nowhere does not exist; give a folder of images, or a CSV file"):
        images(tmp_path / "nowhere")


def test_an_unwritable_cache_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write into .*file/cache: Not a directory; choose another folder"):
        images(folder(tmp_path / "pets", ["cat"]), cache=tmp_path / "file" / "cache")
