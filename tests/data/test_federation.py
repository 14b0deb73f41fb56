"""Federations: which client has which samples, model inputs, and independence of the order of calls."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtilt.data import Dataset, Federation, Outliers, load, table
from fedtilt.errors import InputError


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def bytes_dataset(train=4000, test=1000):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (train + test, 1, 4, 4), dtype=torch.uint8, generator=g)
    y = torch.arange(train + test) % 10
    return Dataset(
        name="bytes", x_train=x[:train], y_train=y[:train], x_test=x[train:], y_test=y[train:], classes=10, image=True
    )


def test_samples_are_model_inputs():
    data = bytes_dataset()
    fed = Federation.build(data, clients=20)
    x, y = fed.train(3, seed=0, round=1)
    raw = data.x_train[fed.train_index[3]]
    assert x.dtype == torch.float32
    assert torch.allclose(x, raw.float() / 127.5 - 1, atol=1e-6)
    assert torch.equal(y, data.y_train[fed.train_index[3]])
    assert torch.equal(x, fed.clean_train(3)[0])
    assert torch.equal(x, fed.model_input(raw))
    assert float(x.min()) >= -1
    assert float(x.max()) <= 1


def test_table_features_are_not_scaled(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,site,y\n" + "".join(f"{n},{'xyz'[n % 3]},{n % 2}\n" for n in range(60)))
    data = table(path, target="y", client="site")
    fed = Federation.build(data, validation=0.2)
    assert fed.clients == 3
    assert fed.client_names == ("x", "y", "z")
    assert fed.train_sizes().tolist() == [12, 12, 12]
    assert [len(rows) for rows in fed.validation_index] == [3, 3, 3]
    assert torch.equal(fed.test(1)[0], data.x_test[data.client_test == 1])


def test_attributes(digits):
    fed = Federation.build(digits, clients=20)
    assert (fed.clients, fed.classes, fed.input_shape, fed.image) == (20, 10, (1, 8, 8), True)
    assert fed.client_names[:3] == ("0", "1", "2")
    assert fed.class_names == tuple("0123456789")
    assert not fed.has_outliers.any()


@pytest.mark.parametrize("split", ["random", "proportional"])
@pytest.mark.parametrize("partition", ["classes", "dirichlet", "iid"])
def test_train_and_validation_use_every_sample_once(digits, partition, split):
    digits = replace(digits, split=split)
    fed = Federation.build(digits, clients=15, partition=partition, validation=0.25)
    rows = torch.cat([*fed.train_index, *fed.validation_index])
    assert rows.sort().values.tolist() == list(range(len(digits.y_train)))
    counts = fed.class_counts("train") + fed.class_counts("validation")
    assert counts.sum(0).tolist() == digits.y_train.bincount().tolist()
    assert fed.class_counts("test").sum(0).tolist() == digits.y_test.bincount().tolist()
    assert torch.equal(fed.class_counts().sum(1), fed.train_sizes())
    share = fed.class_counts("validation") - 0.25 * counts
    assert (float(share.abs().max()) <= 1.5) == (split == "proportional")  # the number of rows is rounded too
    assert fed.fixed_shares("test") == (partition != "iid")
    assert fed.fixed_shares("validation") == (split == "proportional")
    assert min(len(rows) for rows in fed.validation_index) >= 1


def test_evaluation_is_ordered_by_client(digits):
    fed = Federation.build(digits, clients=12, validation=0.2)
    for split, samples in (("test", fed.test), ("validation", fed.validation), ("train", fed.clean_train)):
        x, y, client = fed.evaluation(split)
        for n in (0, 7):
            assert torch.equal(fed.model_input(x[client == n]), samples(n)[0])
            assert torch.equal(y[client == n], samples(n)[1])
    assert fed.evaluation()[0].dtype == digits.x_test.dtype
    with pytest.raises(InputError, match="split = 'all'"):
        fed.evaluation("all")


def test_max_train_keeps_rows_as_the_data_set_says(digits):
    random = Federation.build(digits, clients=20, max_train=20).class_counts()
    assert int(random[random > 0].min()) < 9
    fed = Federation.build(replace(digits, split="proportional"), clients=20, max_train=20)
    assert fed.train_sizes().tolist() == [20] * 20
    counts = fed.class_counts()
    assert int(counts[counts > 0].min()) >= 9
    both = Federation.build(digits, clients=20, max_train=20, validation=0.2)
    assert both.train_sizes().tolist() == [16] * 20


@pytest.mark.parametrize("kind", ["corruptions", "gaussian", "flips"])
def test_outliers_depend_on_round_and_client_only(digits, kind):
    fed = Federation.build(digits, clients=10, outliers=kind)
    first = fed.train(4, seed=0, round=1)
    fed.train(3, seed=0, round=9)
    again = Federation.build(digits, clients=10, outliers=kind).train(4, seed=0, round=1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = fed.train(4, seed=0, round=2)
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    clean = fed.clean_train(4)
    assert not all(torch.equal(a, b) for a, b in zip(first, clean, strict=True))
    assert set(first[1].tolist()) <= set(clean[1].tolist())
    if kind == "corruptions":
        assert float(first[0].abs().max()) <= 1
    if kind == "gaussian":
        is_outlier = (first[0] != clean[0]).flatten(1).any(1)
        noise = (first[0] - clean[0])[is_outlier]
        assert float(noise.std()) == pytest.approx(2.0, rel=0.1)  # 1 in [0, 1] units is 2 for the model


def test_only_the_chosen_clients_have_outliers(digits):
    fed = Federation.build(digits, clients=20, outliers="flips", outlier_clients=0.3, outlier_rate=1.0)
    assert int(fed.has_outliers.sum()) == 6
    for client in range(20):
        changed = not torch.equal(fed.train(client, seed=0, round=1)[1], fed.clean_train(client)[1])
        assert changed == bool(fed.has_outliers[client])
    few = Federation.build(digits, clients=20, outliers=Outliers(kind="flips", clients=0.001))
    assert int(few.has_outliers.sum()) == 1
    assert fed.outliers == Outliers(kind="flips", rate=1.0, clients=0.3)


def test_the_partition_depends_on_the_seed_only(digits):
    a, b = (Federation.build(digits, clients=20, outliers=kind, seed=1) for kind in ("none", "flips"))
    assert all(torch.equal(x, y) for x, y in zip(a.train_index, b.train_index, strict=True))
    other = Federation.build(digits, clients=20, seed=2)
    assert not all(torch.equal(x, y) for x, y in zip(a.train_index, other.train_index, strict=True))


def test_ten_thousand_clients_copy_no_samples():
    data = bytes_dataset(train=60_000, test=20_000)
    fed = Federation.build(data, clients=10_000)
    assert fed.class_counts().sum() == 60_000
    assert fed.dataset.x_train is data.x_train


def test_held_classes_are_those_of_the_training_samples():
    fed = Federation.build(bytes_dataset(train=600, test=100), clients=7, partition="dirichlet", validation=0.2)
    for client, classes in enumerate(fed.client_classes):
        assert torch.equal(classes, fed.clean_train(client)[1].unique())


def two_clients(client_train, client_test, names=("A", "B")):
    return Dataset(
        name="wards",
        x_train=torch.zeros(4, 2),
        y_train=torch.tensor([0, 1, 0, 1]),
        x_test=torch.zeros(len(client_test), 2),
        y_test=torch.zeros(len(client_test)).long(),
        classes=2,
        client_train=torch.tensor(client_train),
        client_test=torch.tensor(client_test).long(),
        client_names=names,
    )


def test_clients_without_data():
    with pytest.raises(InputError, match=r"client 'B' has no training data"):
        Federation.build(two_clients([0, 0, 0, 0], [0, 1]), partition="column")
    with pytest.raises(InputError, match=r"no client has test data in .*; add test samples, or choose fewer"):
        Federation.build(two_clients([0, 0, 1, 1], []), partition="column")
    fed = Federation.build(two_clients([0, 0, 0, 1], [0]), partition="column", validation=0.01)
    assert fed.test(1)[0].shape == (0, 2)
    assert fed.train_sizes().tolist() == [2, 1]  # one of three is for validation, a single sample is not
    assert [len(rows) for rows in fed.validation_index] == [1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 2000}, "clients = 2000"),
        ({"partition": "random"}, "unknown partition 'random'; choose one of classes, dirichlet, iid, column"),
        ({"partition": "column"}, "needs a client column"),
        ({"validation": 1.0}, "validation must be a number ≥ 0 and < 1, got 1.0"),
        ({"max_train": 0}, "max_train must be a whole number ≥ 1, got 0"),
        ({"outliers": "flip"}, "outliers = 'flip'"),
        ({"outliers": "flips", "outlier_rate": 2}, "outlier_rate must be a number ≥ 0 and ≤ 1, got 2"),
        ({"clients": "20"}, "clients must be a whole number ≥ 1, got '20'"),
        ({"clients": 20.0}, "clients must be a whole number ≥ 1, got 20.0"),
        ({"classes_per_client": "2"}, "classes_per_client must be a whole number ≥ 1, got '2'"),
        ({"classes_per_client": 2.5}, "classes_per_client must be a whole number ≥ 1, got 2.5"),
        ({"partition": "dirichlet", "alpha": "0.5"}, "alpha must be a number, got '0.5'"),
        ({"validation": "0.2"}, "validation must be a number, got '0.2'"),
        ({"validation": float("nan")}, "validation must be a number, got nan"),
        ({"max_train": "20"}, "max_train must be a whole number ≥ 1, got '20'"),
        ({"max_train": 20.0}, "max_train must be a whole number ≥ 1, got 20.0"),
        ({"seed": "5"}, "seed must be a whole number, got '5'"),
        ({"seed": 5.7}, "seed must be a whole number, got 5.7"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"outliers": "flips", "outlier_rate": "0.3"}, "outlier_rate must be a number, got '0.3'"),
        ({"outliers": "gaussian", "outlier_strength": "1"}, "outlier_strength must be a number, got '1'"),
        ({"outliers": "flips", "outlier_clients": "all"}, "outlier_clients must be a number, got 'all'"),
        (
            {"outliers": None},
            "outliers = None is unknown; choose one of none, corruptions, gaussian, flips, or pass a ft.data.Outl",
        ),
        ({"outliers": {"kind": "flips"}}, "outliers = {'kind': 'flips'} is unknown; choose one of none"),
        (
            {"outliers": Outliers(kind="flips"), "outlier_rate": 0.5},
            r"outlier_rate = 0.5 does not apply to Outliers\(kind='flips', .*\); use Outliers\(rate=0.5\)$",
        ),
        (
            {"outliers": Outliers(kind="gaussian"), "outlier_strength": 2},
            "outlier_strength = 2 does not apply to Outl",
        ),
        ({"outliers": Outliers(kind="flips"), "outlier_clients": 0.1}, "outlier_clients = 0.1 does not apply to Outl"),
        ({"alpha": 2}, "alpha = 2.0 has no effect here; set partition = 'dirichlet', or leave it out"),
        ({"partition": "iid", "classes_per_client": 3}, "classes_per_client = 3 has no effect here; set partition ="),
        (
            {"outliers": "flips", "validation_outliers": True},
            "validation_outliers = True has no effect here; set valid",
        ),
        ({"validation": 0.2, "validation_outliers": True}, "validation_outliers = True has no effect here; set outl"),
        ({"outliers": Outliers(kind="flips"), "outlier_rate": "x"}, "outlier_rate = 'x' does not apply to Outl"),
    ],
)
def test_bad_settings_are_refused(digits, settings, message):
    with pytest.raises(InputError, match=message):
        Federation.build(digits, **settings)


def test_corruptions_need_images():
    with pytest.raises(InputError, match="'corruptions' needs images"):
        Federation.build(load("toy-1"), partition="column", outliers="corruptions")


def test_numpy_and_tensor_settings_equal_python_numbers(digits):
    plain = {"clients": 12, "classes_per_client": 2, "alpha": 0.5, "validation": 0.25, "max_train": 20, "seed": 3}
    arrays = {"clients": np.int64(12), "classes_per_client": np.uint8(2), "alpha": np.float32(0.5),
           "validation": torch.tensor(0.25), "max_train": torch.tensor(20), "seed": np.array(3)}  # fmt: skip
    for partition, other in (("classes", "alpha"), ("dirichlet", "classes_per_client")):
        a, b = (
            Federation.build(
                digits, partition=partition, outliers="flips", **{k: v for k, v in s.items() if k != other}
            )
            for s in (plain, arrays)
        )
        for name in ("train_index", "validation_index", "test_index"):
            assert all(torch.equal(x, y) for x, y in zip(getattr(a, name), getattr(b, name), strict=True))
    fed = Federation.build(
        digits, clients=5, outliers="flips", outlier_rate=np.float32(0.5), outlier_clients=np.int64(1)
    )
    assert fed.outliers == Outliers(kind="flips", rate=0.5)
    assert type(fed.outliers.rate) is float


def test_outliers_accept_default_settings_beside_them(digits):
    outliers = Outliers(kind="flips", rate=0.1)
    assert Federation.build(digits, outliers=outliers, outlier_rate=0.3, outlier_clients=1).outliers is outliers


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("digits", r"dataset = 'digits' is a name; pass ft.data.load\('digits'\), or ft.data.table for your own file"),
        (None, r"dataset is a NoneType; pass a ft.data.Dataset, such as ft.data.load\('digits'\) returns"),
        (torch.zeros(3), "dataset is a Tensor; pass a ft.data.Dataset"),
    ],
)
def test_a_dataset_of_another_type_is_refused(data, message):
    with pytest.raises(InputError, match=message):
        Federation.build(data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": "classes"}, "clients = 100 is not possible; choose 1 to 4, the number of training samples"),
        (
            {"partition": "iid", "clients": 5},
            "clients = 5 is not possible; choose 1 to 4, the number of training samples",
        ),
        (
            {"partition": "classes", "clients": 3},
            "clients = 3 with classes_per_client = 2 puts class 0 on 3 clients, but it has 2 training samples; "
            "use fewer clients or classes",
        ),
        (
            {"partition": "dirichlet", "clients": 4, "alpha": 1e-9},
            "alpha = 1e-09 left some of clients = 4 without training data in each of 100 draws; "
            "use a larger alpha or fewer clients",
        ),
    ],
)
def test_too_many_clients_for_data_with_a_client_column(settings, message):
    data = two_clients([0, 0, 1, 1], [0, 1])
    with pytest.raises(InputError) as error:
        Federation.build(data, **settings)
    assert str(error.value) == f"{message}, or partition = 'column' for the data's own 2 clients"
    without_clients = replace(data, client_train=None, client_test=None, client_names=None)
    with pytest.raises(InputError) as error:
        Federation.build(without_clients, **settings)
    assert str(error.value) == message


def test_other_errors_do_not_mention_columns():
    data = two_clients([0, 0, 1, 1], [0, 1])
    for settings in ({"clients": 0}, {"clients": 2, "classes_per_client": 3}):
        with pytest.raises(InputError) as error:
            Federation.build(data, partition="classes", **settings)
        assert "column" not in str(error.value)


def test_data_with_clients_of_its_own_is_divided_by_them():
    data = two_clients([0, 0, 1, 1], [0, 1])
    for settings in ({}, {"clients": 2}, {"partition": "column"}, {"partition": "column", "clients": 2}):
        assert Federation.build(data, **settings).client_names == ("A", "B")
    with pytest.raises(
        InputError, match="clients = 3 differs from the 2 clients that 'wards' has of its own; leave it o"
    ):
        Federation.build(data, clients=3)


def test_clients_have_numbers_and_names():
    fed = Federation.build(two_clients([0, 0, 1, 1], [0, 1]), validation=0.5)
    for samples in (fed.test, fed.validation, fed.clean_train):
        assert all(torch.equal(a, b) for a, b in zip(samples("B"), samples(1), strict=True))
    assert torch.equal(fed.train("B", seed=0, round=1)[1], fed.train(1, seed=0, round=1)[1])
    for unknown in ("north", 99, -1):
        with pytest.raises(InputError, match=f"client {unknown} does not exist; the clients are A, B"):
            fed.test(unknown)
    numbered = Federation.build(two_clients([0, 0, 1, 1], [0, 1], names=("100", "200")))
    assert torch.equal(numbered.test("200")[0], numbered.test(1)[0])
    with pytest.raises(InputError, match="client 200 does not exist: numbers begin at 0; give the name as text, '200'"):
        numbered.test(200)


def test_samples_without_a_source_are_named_by_their_numbers():
    fed = Federation.build(two_clients([0, 1, 0, 1], [0, 1]))
    assert fed.row_names("B") == ["training sample 1", "training sample 3"]
    assert fed.row_names("B", "test") == ["test sample 1"]


@pytest.mark.parametrize("kind", ["flips", "gaussian", "corruptions"])
def test_validation_data_may_have_the_outliers_of_the_training_data(kind: str) -> None:
    settings = {"clients": 10, "validation": 0.4, "outliers": kind, "outlier_rate": 0.5, "outlier_clients": 0.5}
    clean = Federation.build(load("digits"), seed=3, **settings)
    noisy = Federation.build(load("digits"), seed=3, validation_outliers=True, **settings)
    for client in range(10):
        (x, y), (x_noisy, y_noisy) = clean.validation(client), noisy.validation(client)
        changed = (x != x_noisy).flatten(1).any(1) | (y != y_noisy)
        assert bool(changed.any()) == bool(clean.has_outliers[client])
        assert set(y_noisy.tolist()) <= set(noisy.client_classes[client].tolist())
        assert all(torch.equal(a, b) for a, b in zip(clean.test(client), noisy.test(client), strict=True))
    x, y, owner = noisy.evaluation("validation")
    for client in (0, 9):
        assert torch.equal(noisy.model_input(x[owner == client]), noisy.validation(client)[0])
        assert torch.bincount(y[owner == client], minlength=10).equal(noisy.class_counts("validation")[client])
