"""CIFAR-N's labels of human annotators: the layout of its files, wrong files, and who sees which label."""

import io
import os
import pickle
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.data.corrections import corrected
from fedtilt.data.published import catalog
from fedtilt.data.published.annotations import with_annotations
from fedtilt.errors import InputError
from fedtilt.spec.read import load as read_spec
from fedtilt.spec.write import dump

ENTRY = catalog.entry("cifar10")
RNG = np.random.default_rng(0)
TRUE = np.arange(40) % 10
HUMAN = {
    "clean_label": TRUE,
    **{key: np.where(RNG.random(40) < 0.3, (TRUE + 1) % 10, TRUE) for key in ENTRY.annotations.labels},
}


@pytest.fixture
def data():
    x = torch.from_numpy(RNG.integers(0, 256, (40, 3, 32, 32), np.uint8))
    y = torch.from_numpy(TRUE)
    return ft.data.Dataset(name="cifar10", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20], classes=10, image=True)


def write(path, content, **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path, **settings)
    return path


def as_numpy_1(path):
    """The same file with the name of the module that NumPy 1 writes, as in the published files."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(out, "w") as after:
        for name in before.namelist():
            after.writestr(name, before.read(name).replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    path.write_bytes(out.getvalue())


@pytest.mark.parametrize("layout", ["NumPy 2", "NumPy 1", "before torch 1.6", "int32", "a column", "tensors"])
@pytest.mark.parametrize("key", ENTRY.annotations.labels)
def test_the_labels_of_a_file_in_the_layout_of_cifar_n(tmp_path, data, layout, key):
    content = {
        name: {"int32": v.astype(np.int32), "a column": v[:, None], "tensors": torch.from_numpy(v)}.get(layout, v)
        for name, v in HUMAN.items()
    }
    new = layout != "before torch 1.6"
    path = write(tmp_path / "cifar10" / "CIFAR-10_human.pt", content, _use_new_zipfile_serialization=new)
    if layout == "NumPy 1":
        as_numpy_1(path)
    found = with_annotations(ENTRY, data, tmp_path, key)
    assert found.noisy_train.tolist() == HUMAN[key].tolist()
    assert found.y_train.tolist() == TRUE.tolist()
    assert found.name == f"cifar10 {key}"


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize(
    "content",
    [
        {**HUMAN, "worse_label": Harmful()},
        {**HUMAN, "worse_label": np.array(["a"] * 40, dtype=object)},
        {**HUMAN, "worse_label": np.full(40, 0.5)},
        {key: value for key, value in HUMAN.items() if key != "worse_label"},
        [1, 2],
    ],
    ids=["code", "objects", "fractions", "no such labels", "a list"],
)
def test_a_file_of_anything_else_is_an_error_and_runs_nothing(tmp_path, monkeypatch, data, content):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "cifar10" / "CIFAR-10_human.pt", content)
    with pytest.raises(InputError, match="CIFAR-10_human.pt has no arrays clean_label and worse_label") as caught:
        with_annotations(ENTRY, data, tmp_path, "worse_label")
    assert not (tmp_path / "harmed").exists()
    for blob in (path.read_bytes()[:200], b"", b"<html>", pickle.dumps(HUMAN)):
        path.write_bytes(blob)
        with pytest.raises(InputError, match="download it again"):
            with_annotations(ENTRY, data, tmp_path, "worse_label")
    assert "\n" not in str(caught.value)


def test_labels_in_another_order_or_of_other_images_are_an_error(tmp_path, data):
    order = RNG.permutation(40)
    for content in ({k: v[order] for k, v in HUMAN.items()}, {k: v[:-1] for k, v in HUMAN.items()}):
        write(tmp_path / "cifar10" / "CIFAR-10_human.pt", content)
        with pytest.raises(InputError, match="has other true labels than 'cifar10'"):
            with_annotations(ENTRY, data, tmp_path, "worse_label")
    write(tmp_path / "cifar10" / "CIFAR-10_human.pt", {**HUMAN, "worse_label": TRUE + 1})
    with pytest.raises(InputError, match="the label 10 in noisy_train; labels go from 0 to 9"):
        with_annotations(ENTRY, data, tmp_path, "worse_label")


def test_what_cannot_be_read_is_named(tmp_path, data):
    with pytest.raises(InputError, match=r"needs CIFAR-10_human\.pt of CIFAR-N \(noisylabels\.com\) in .*cifar10"):
        with_annotations(ENTRY, data, tmp_path, "worse_label")
    with pytest.raises(InputError, match=r"'noisy_label' is unknown; CIFAR-10_human\.pt has aggre_label"):
        with_annotations(ENTRY, data, tmp_path, "noisy_label")
    with pytest.raises(InputError, match="'digits' has its own alone"):
        ft.data.load("digits", labels="worse_label")


def test_a_spec_names_the_labels(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text('[data]\nname = "cifar10"\nlabels = "worse_label"\n[[methods]]\npreset = "fedavg"\n')
    spec = read_spec(path)
    assert spec.data.labels == "worse_label"
    path.write_text(dump(spec))
    assert read_spec(path) == spec
    path.write_text('[data]\nname = "digits"\nlabels = "worse_label"\n[[methods]]\npreset = "fedavg"\n')
    with pytest.raises(InputError, match="data.labels = 'worse_label' has no effect here; set data.name = 'cifar10'"):
        read_spec(path)


@pytest.fixture
def noisy(data):
    return replace(data, noisy_train=torch.from_numpy(HUMAN["worse_label"]))


def test_clients_train_with_the_labels_of_annotators_and_are_divided_by_the_true_ones(data, noisy):
    settings = {"clients": 4, "partition": "classes", "validation": 0.2, "seed": 3}
    plain, federation = ft.Federation.build(data, **settings), ft.Federation.build(noisy, **settings)
    wrong = 0
    for client in range(4):
        rows = federation.train_index[client]
        assert torch.equal(rows, plain.train_index[client])
        assert torch.equal(federation.train(client, seed=0, round=1)[1], noisy.noisy_train[rows])
        assert torch.equal(federation.clean_train(client)[1], data.y_train[rows])
        assert torch.equal(federation.outlier_mask(client), noisy.noisy_train[rows] != data.y_train[rows])
        assert torch.equal(federation.validation(client)[1], plain.validation(client)[1])
        wrong += int(federation.outlier_mask(client).sum())
    assert wrong > 0
    with_noise = ft.Federation.build(noisy, validation_outliers=True, **settings)
    rows = torch.cat(list(with_noise.validation_index))
    assert torch.equal(with_noise.evaluation("validation")[1], noisy.noisy_train[rows])
    with pytest.raises(InputError, match="validation_outliers"):
        ft.Federation.build(data, validation_outliers=True, **settings)


def test_outliers_of_a_round_come_on_top_and_are_not_stored(noisy):
    federation = ft.Federation.build(noisy, clients=2, partition="iid", outliers="flips", outlier_rate=0.5)
    for client in range(2):
        stored = noisy.noisy_train[federation.train_index[client]]
        assert torch.equal(federation.stored_train(client)[1], stored)
        assert not torch.equal(federation.train(client, seed=0, round=1)[1], stored)


def test_a_correction_is_of_the_label_that_the_annotators_gave(tmp_path, noisy):
    federation = ft.Federation.build(noisy, clients=2, partition="iid")
    position = int(federation.outlier_mask(0).nonzero()[0])
    row, sample = federation.row_names(0)[position], int(federation.train_index[0][position])
    given, true = int(noisy.noisy_train[sample]), int(noisy.y_train[sample])
    path = tmp_path / "suspects.csv"
    path.write_text(f"row,label,looks_like\n{row},{given},{true}\n")
    after = corrected(federation, relabel=str(path))
    assert after.train(0, seed=0, round=1)[1][position] == true
    others = [n for n in range(len(federation.train_index[0])) if n != position]
    assert torch.equal(after.train(0, seed=0, round=1)[1][others], federation.train(0, seed=0, round=1)[1][others])
    assert len(corrected(federation, exclude=str(path)).train_index[0]) == len(others)


def test_data_that_cannot_carry_both_labels_is_an_error(data, noisy):
    with pytest.raises(InputError, match="client 'a' has noisy_train beside the true labels"):
        ft.Federation.from_clients({"a": noisy})
    for wrong in (torch.zeros(3, dtype=torch.int64), torch.zeros(40), torch.full((40,), 10), [0] * 40):
        with pytest.raises(InputError, match="noisy_train"):
            replace(data, noisy_train=wrong)


def test_the_audit_is_of_the_labels_of_annotators_and_its_precision_is_known():
    digits = ft.data.load("digits")
    wrong = torch.rand(len(digits.y_train), generator=torch.Generator().manual_seed(0)) < 0.15
    human = replace(digits, noisy_train=torch.where(wrong, (digits.y_train + 1) % 10, digits.y_train))
    federation = ft.Federation.build(human, clients=8, partition="iid", max_train=120)
    settings = {"rounds": 8, "participation": 0.5, "lr": 0.1, "audit": True, "workers": 0}
    audit = ft.run([ft.fedtilt(tau=0, lam=-2)], federation, ft.models.logistic, **settings).audit()
    for client in range(8):
        of_client = audit.client == client
        assert torch.equal(audit.label[of_client], federation.stored_train(client)[1][audit.sample[of_client]])
    mask = torch.stack([federation.outlier_mask(int(n))[i] for n, i in zip(audit.client, audit.sample, strict=True)])
    named = audit.score >= 0.5
    assert float(mask[named].float().mean()) > 0.8
    assert float(named[mask].float().mean()) > 0.6
