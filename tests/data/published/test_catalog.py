"""The catalogue and its readers: round trips through files, and errors that name the file and the problem."""

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest
import torch

from fedtilt.data import Dataset, Federation, data_folder, download, load, names, verify
from fedtilt.data.published import catalog
from fedtilt.data.published.cifar import read_cifar
from fedtilt.data.published.entry import Content, Entry, read_content
from fedtilt.data.published.toy import SETUPS
from fedtilt.errors import InputError

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def arrays(train=6, test=4):
    rng = np.random.default_rng(0)
    out = []
    for count in (train, test):
        out += [rng.integers(0, 256, (count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8) % 10]
    return out


def write_idx(folder, compressed=True):
    folder.mkdir(parents=True)
    for name, array in zip(IDX, arrays(), strict=True):
        blob = idx(array)
        (folder / (name + ".gz" * compressed)).write_bytes(gzip.compress(blob) if compressed else blob)


@pytest.mark.parametrize(
    ("name", "folder", "compressed"),
    [
        ("mnist", "mnist", True),
        ("mnist", "mnist", False),
        ("mnist", "MNIST/raw", False),
        ("fashion-mnist", "fashion-mnist", True),
        ("fashion-mnist", "FashionMNIST/raw", True),
    ],
)
def test_idx_round_trip(tmp_path, name, folder, compressed):
    write_idx(tmp_path / folder, compressed)
    data = load(name, tmp_path)
    x_train, y_train, x_test, y_test = arrays()
    assert data.x_train.dtype == torch.uint8
    assert data.input_shape == (1, 28, 28)
    assert (data.x_train[:, 0].numpy() == x_train).all()
    assert (data.x_test[:, 0].numpy() == x_test).all()
    assert data.y_train.tolist() == y_train.tolist()
    assert data.y_test.tolist() == y_test.tolist()
    assert len(data.class_names) == 10


def test_folder_from_the_environment(tmp_path, monkeypatch):
    write_idx(tmp_path / "data" / "mnist")
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "data"))
    assert len(load("mnist").y_train) == 6
    with pytest.raises(InputError, match="is not downloaded"):
        load("mnist", tmp_path / "elsewhere")  # the argument takes precedence
    monkeypatch.delenv("FEDTILT_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "fedtilt"


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_missing_files_name_the_folder_and_the_remedy(tmp_path, name):
    with pytest.raises(InputError) as caught:
        load(name, tmp_path)
    for part in (name, str(tmp_path), f"fedtilt data download {name}", "FEDTILT_DATA"):
        assert part in str(caught.value)


def flip_last_byte_of_crc(blob):
    return blob[:-8] + bytes([blob[-8] ^ 1]) + blob[-7:]


GOOD = idx(arrays()[1])


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (gzip.compress(GOOD)[:-12], "ends early"),
        (flip_last_byte_of_crc(gzip.compress(GOOD)), "CRC"),
        (b"<html>not found</html>", "gzip"),
        (gzip.compress(b"\0\0\x09\x01" + GOOD[4:]), "magic number is 0x00000901 instead of 0x00000801"),
        (gzip.compress(b""), "magic number"),
        (gzip.compress(GOOD[:6]), "header"),
        (gzip.compress(GOOD[:-1]), "header says 14"),
        (gzip.compress(idx(np.zeros(5, np.uint8))), "5 labels for 6 images"),
        (gzip.compress(idx(np.full(6, 11, np.uint8))), "label 11"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_idx_files_are_reported(tmp_path, blob, message):
    write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / f"{IDX[1]}.gz"
    path.write_bytes(blob)
    with pytest.raises(InputError) as caught:
        load("mnist", tmp_path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "fedtilt data download mnist --force" in str(caught.value)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_damaged_bit_of_the_published_content_is_reported(tmp_path, suffix):
    blob = idx(arrays()[0])
    content, path = Content("images", len(blob), hashlib.md5(blob).hexdigest()), tmp_path / f"images{suffix}"

    def write(data):
        path.write_bytes(gzip.compress(data) if suffix else data)

    write(blob)
    assert read_content(path, content, "mnist") == blob
    for at in range(0, len(blob), 31):
        write(blob[:at] + bytes([blob[at] ^ (1 << at % 8)]) + blob[at + 1 :])
        with pytest.raises(InputError, match="its content is not the published one; download it again"):
            read_content(path, content, "mnist")
    write(blob[:-1])
    assert read_content(path, content, "mnist") == blob[:-1]  # its reader compares it with its header


def peak_memory(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_file_that_decompresses_to_more_than_published_is_not_decompressed_to_its_end(tmp_path):
    write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / f"{IDX[1]}.gz"
    path.write_bytes(gzip.compress(bytes(100 << 20), 1))

    def read():
        with pytest.raises(InputError, match="its content has more than 60008 bytes; download it again"):
            load("mnist", tmp_path)

    assert peak_memory(read) < 60 << 20  # the published images have 45 MiB
    assert [s.note for s in verify("mnist", tmp_path)][1] == "its content has more than 60008 bytes"


def test_images_of_another_size_are_refused(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / f"{IDX[0]}.gz").write_bytes(gzip.compress(idx(np.zeros((6, 8, 8), np.uint8))))
    with pytest.raises(InputError, match="8 × 8 instead of 28 × 28"):
        load("mnist", tmp_path)


def cifar_files(records=3):
    rng = np.random.default_rng(1)
    files = {}
    for file, _, _ in catalog.entry("cifar10").contents:
        rows = rng.integers(0, 256, (records, 3073), np.uint8)
        rows[:, 0] %= 10
        files[file] = rows
    return files


def write_tar(path, blobs):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, blob in blobs.items():
            member = tarfile.TarInfo(name)
            member.size = len(blob)
            tar.addfile(member, io.BytesIO(blob))


@pytest.mark.parametrize("layout", ["bin", "bin.gz", "below cifar10", "tar", "flat tar"])
def test_cifar_round_trip(tmp_path, layout):
    files = cifar_files()
    blobs = {file: rows.tobytes() for file, rows in files.items()}
    if "tar" in layout:
        folder = tmp_path if layout == "flat tar" else tmp_path / "cifar10"
        write_tar(folder / "cifar-10-binary.tar.gz", {"../../evil": b"x", **blobs})
    for file, blob in blobs.items() if "tar" not in layout else ():
        path = tmp_path / ("cifar10" if layout == "below cifar10" else ".") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if layout == "bin.gz":
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(blob))
        else:
            path.write_bytes(blob)
    data = read_cifar(catalog.entry("cifar10"), tmp_path, 0, records=3)
    rows = np.concatenate(list(files.values()))
    assert data.x_train.shape == (15, 3, 32, 32)
    assert (data.x_train.flatten(1).numpy() == rows[:15, 1:]).all()
    assert data.y_train.tolist() == rows[:15, 0].tolist()
    assert data.y_test.tolist() == rows[15:, 0].tolist()
    assert catalog.find_folder("cifar10", tmp_path) is not None


def test_the_class_of_cifar_100_follows_the_superclass(tmp_path):
    rows = np.random.default_rng(2).integers(0, 100, (8, 2 + 3072), np.uint8)
    blobs = {"cifar-100-binary/train.bin": rows[:4].tobytes(), "cifar-100-binary/test.bin": rows[4:].tobytes()}
    write_tar(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", blobs)
    data = read_cifar(catalog.entry("cifar100"), tmp_path, 0, labels=2, records=4)
    assert (data.classes, data.y_train.tolist(), data.y_test.tolist()) == (
        100,
        rows[:4, 1].tolist(),
        rows[4:, 1].tolist(),
    )
    assert (data.x_test.flatten(1).numpy() == rows[4:, 2:]).all()


def test_damaged_cifar_archives_are_reported(tmp_path):
    entry, path = catalog.entry("cifar10"), tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    blobs = {file: rows.tobytes() for file, rows in cifar_files().items()}
    last = list(blobs)[-1]
    for change, message in (({last: b"short"}, f"{last} has 5 bytes"), ({}, "not in it")):
        write_tar(path, {**{k: v for k, v in blobs.items() if k != last}, **change})
        with pytest.raises(InputError, match=message):
            read_cifar(entry, tmp_path, 0, records=3)
    write_tar(path, blobs)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"nonsense", whole[:5000] + b"\0" * 500 + whole[5500:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"cifar-10-binary\.tar\.gz is damaged.*--force"):
            read_cifar(entry, tmp_path, 0, records=3)


def test_an_archive_with_more_than_published_is_not_read_to_its_end(tmp_path):
    entry, path = catalog.entry("cifar10"), tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    blobs = {file: rows.tobytes() for file, rows in cifar_files().items()}
    write_tar(path, {"large": bytes(20 << 20), **blobs})
    with pytest.raises(InputError, match="its content has more than 10541074 bytes"):
        read_cifar(entry, tmp_path, 0, records=3)
    write_tar(path, blobs)
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(20 << 20)))  # behind the end of the archive
    with pytest.raises(InputError, match="its content has more than 10541074 bytes"):
        read_cifar(entry, tmp_path, 0, records=3)


def test_digits_are_built_in_and_split_by_class():
    data = load("digits")
    assert data.x_train.shape == (1198, 1, 8, 8)
    assert data.x_test.shape == (599, 1, 8, 8)
    assert data.image
    assert float(data.x_train.max()) == 1.0
    assert float(data.x_train.min()) == 0.0
    share = data.y_test.bincount() / (data.y_test.bincount() + data.y_train.bincount())
    assert float((share - 1 / 3).abs().max()) < 0.01
    assert torch.equal(data.x_train, load("digits", seed=5).x_train)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("toy-1", (100, 100), (20, 20)), ("toy-2", (150, 50), (30, 10)), ("toy-3", (150, 50), (30, 10))],
)
def test_toys_have_the_paper_s_distributions(name, train, test):
    data = load(name)
    for client in (0, 1):
        for k in (0, 1):
            rows = data.x_train[(data.client_train == client) & (data.y_train == k)]
            group = SETUPS[name].groups[client][k]
            assert len(rows) == train[k]
            assert ((data.client_test == client) & (data.y_test == k)).sum() == test[k]
            error = 4 * group.deviation / train[k] ** 0.5
            assert rows.mean(0).tolist() == pytest.approx(group.centre, abs=error)
            assert rows.std(0).tolist() == pytest.approx([group.deviation] * 2, rel=4 / (2 * train[k]) ** 0.5)
    assert torch.equal(data.x_train, load(name).x_train)
    assert not torch.equal(data.x_train, load(name, seed=1).x_train)


def test_toy_noise_changes_a_tenth_of_the_first_class(monkeypatch):
    noisy = load("toy-3")
    monkeypatch.setattr("fedtilt.data.published.toy._add_noise", lambda *args: None)
    clean = load("toy-3")
    changed = (noisy.x_train != clean.x_train).any(1)
    for client in (0, 1):
        assert changed[(clean.client_train == client) & (clean.y_train == 0)].sum() == 15
    assert not changed[clean.y_train == 1].any()
    assert float((noisy.x_train - clean.x_train)[changed].std()) == pytest.approx(0.15, rel=0.4)
    assert torch.equal(noisy.x_test, clean.x_test)


def test_every_entry_has_a_reader(tmp_path):
    for name in names():
        entry = catalog.entry(name)
        assert entry.name == name
        assert callable(entry.reader)
        if entry.files:
            assert catalog.find_folder(name, tmp_path) is None
        if entry.files or entry.sites:  # see test_federations
            continue
        data = load(name)
        assert (len(data.y_train), len(data.y_test), data.classes) == (entry.train, entry.test, entry.classes)


def test_a_new_entry_is_loaded_with_its_reader(tmp_path, monkeypatch):
    calls = []

    def reader(entry, folder, seed):
        calls.append((entry.name, folder, seed))
        return load("toy-1")

    entry = Entry(name="mine", description="mine", reader=reader, train=400, test=80, classes=2)
    monkeypatch.setitem(catalog.CATALOG, "mine", entry)
    assert load("mine", tmp_path, seed=3).name == "toy-1"
    assert calls == [("mine", tmp_path, 3)]


def test_unknown_names_are_refused_with_the_list_of_names():
    for use in (load, catalog.entry, catalog.find_folder, download, verify):
        with pytest.raises(InputError) as caught:
            use("imagenet")
        assert str(caught.value) == f"unknown data set 'imagenet'; choose one of {', '.join(names())}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": torch.tensor([0, 1])}, "3 samples in x_train but 2 labels"),
        ({"y_train": torch.tensor([0, 1, 2])}, "label 2 in y_train"),
        ({"x_train": torch.full((3, 2), float("nan"))}, "NaN"),
        ({"x_test": torch.zeros(3, 4)}, "same shape"),
        ({"x_train": torch.zeros(3, 2).double()}, "float64"),
        ({"class_names": ("a",)}, "1 class_names"),
        ({"image": True}, "image = True"),
        ({"client_train": torch.zeros(3).long()}, "give all or none"),
        (
            {"x_train": np.zeros((3, 2), np.float32)},
            "^data set 'mine' has x_train of type numpy.ndarray; make it a tensor with torch.from_numpy$",
        ),
        ({"x_test": [[0.0, 0.0]] * 3}, "^data set 'mine' has x_test of type list; make it a tensor with torch.tensor$"),
        ({"y_train": np.array([0, 1, 1])}, "y_train of type numpy.ndarray; make it a tensor with torch.from_numpy"),
        ({"y_test": (0, 1, 1)}, "y_test of type tuple; make it a tensor with torch.tensor"),
        ({"x_test": None}, "x_test of type NoneType"),
        ({"x_train": torch.zeros(3, 2, device="meta")}, "x_train on meta; give x_train.cpu"),
        ({"client_test": [0, 0, 0]}, "client_test of type list; make it a tensor with torch.tensor"),
        ({"classes": "2"}, "classes of data set 'mine' must be a whole number ≥ 1, got '2'"),
        ({"classes": 2.0}, "classes of data set 'mine' must be a whole number ≥ 1, got 2.0"),
        ({"class_names": ("a", None)}, "^data set 'mine' has None among its class_names; give text or plain numbers$"),
        ({"class_names": (b"a", "b")}, "has b'a' among its class_names"),
        ({"class_names": 2}, "^data set 'mine' has class_names = 2; give a tuple of names$"),
        ({"client_names": [("A", 1)]}, r"has \('A', 1\) among its client_names"),
    ],
)
def test_datasets_are_checked(change, message):
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    with pytest.raises(InputError, match=message):
        Dataset(**{"name": "mine", "x_train": x, "y_train": y, "x_test": x, "y_test": y, "classes": 2, **change})


def test_names_and_numbers_of_a_dataset_become_python_values():
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    data = Dataset(
        name="mine", x_train=x, y_train=y, x_test=x, y_test=y, classes=np.int64(2),
        class_names=np.array(["no", "yes"]), client_train=y, client_test=y, client_names=[np.int64(7), np.float32(0.5)],
    )  # fmt: skip
    assert json.dumps([data.classes, data.class_names, data.client_names]) == '[2, ["no", "yes"], ["7", "0.5"]]'
    assert {type(name) for name in data.class_names + data.client_names} == {str}
    assert Federation.build(data, partition="column").client_names == ("7", "0.5")


def test_the_seed_of_a_toy_is_a_whole_number():
    assert torch.equal(load("toy-1", seed=np.int64(5)).x_train, load("toy-1", seed=5).x_train)
    with pytest.raises(InputError, match="seed must be a whole number, got '5'"):
        load("toy-1", seed="5")


@pytest.mark.skipif("FEDTILT_DATA" not in os.environ, reason="FEDTILT_DATA names no folder with the real files")
def test_real_mnist():
    data = load("mnist")
    assert (len(data.y_train), len(data.y_test)) == (60_000, 10_000)
    assert float(data.x_train.float().mean()) / 255 == pytest.approx(0.1307, abs=5e-5)
