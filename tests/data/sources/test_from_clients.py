"""Federations of data that comes client by client."""

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fedtilt.data import Dataset, Federation, from_torch, load, table
from fedtilt.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::fedtilt.errors.InputWarning")  # these data sets are small

X = np.arange(60, dtype=np.float64).reshape(20, 3)
Y = np.arange(20) % 2
X32 = torch.from_numpy(X).float()
NUMBERS = Dataset(name="n", x_train=X32, y_train=X32[:, 0], x_test=X32, y_test=X32[:, 0], task="regression")


def dataset(class_names=("no", "yes"), test=4, **fields):
    x, y = torch.from_numpy(X).float(), torch.from_numpy(Y)
    return Dataset(
        name="part", x_train=x[:12], y_train=y[:12], x_test=x[12 : 12 + test], y_test=y[12 : 12 + test],
        classes=len(class_names), class_names=class_names, **fields,
    )  # fmt: skip


def test_arrays_are_float32_with_a_share_of_test_data():
    fed = Federation.from_clients([(X, Y), (X[:8] + 100, ["1", "0"] * 4)], names=["north", "south"])
    assert fed.client_names == ("north", "south")
    assert fed.class_names == ("0", "1")
    assert fed.train_sizes().tolist() == [15, 6]
    x, y = fed.clean_train(1)
    assert x.dtype == torch.float32
    assert float(x.min()) >= 100
    assert torch.equal(y, 1 - torch.from_numpy(((x[:, 0].numpy() - 100) / 3).astype(np.int64) % 2))
    both = torch.cat([fed.clean_train(0)[0], fed.test(0)[0]])
    assert sorted(both[:, 0].tolist()) == X[:, 0].tolist()


def test_a_dictionary_names_the_clients_and_a_pair_has_its_own_test_data():
    train, test = (X[:6], Y[:6]), (X[6:9], Y[6:9])
    fed = Federation.from_clients({"a": (train, test), "b": (X[10:14], Y[10:14])}, test_share=0.5)
    assert fed.client_names == ("a", "b")
    assert fed.clean_train(0)[0].tolist() == X[:6].tolist()
    assert fed.test(0)[0].tolist() == X[6:9].tolist()
    assert len(fed.test(1)[1]) == 2


def test_classes_of_datasets_are_matched_by_name():
    other = dataset(class_names=("yes", "no"))
    fed = Federation.from_clients([dataset(), other])
    assert fed.class_names == ("no", "yes")
    assert torch.equal(fed.clean_train(0)[1], torch.arange(12) % 2)
    assert torch.equal(fed.clean_train(1)[1], 1 - torch.arange(12) % 2)
    assert torch.equal(fed.test(1)[1], 1 - torch.arange(4) % 2)


def test_equals_the_same_data_with_a_client_column():
    data = load("toy-2")
    parts = [
        Dataset(
            name="toy", x_train=data.x_train[data.client_train == n], y_train=data.y_train[data.client_train == n],
            x_test=data.x_test[data.client_test == n], y_test=data.y_test[data.client_test == n], classes=2,
        )
        for n in (0, 1)
    ]  # fmt: skip
    settings = {"outliers": "gaussian", "outlier_clients": 0.5, "validation": 0.2, "max_train": 50, "seed": 3}
    fed = Federation.from_clients(parts, **settings)
    same = Federation.build(data, partition="column", **settings)
    assert torch.equal(fed.has_outliers, same.has_outliers)
    for client in (0, 1):
        for a, b in [
            (fed.train(client, seed=1, round=2), same.train(client, seed=1, round=2)),
            (fed.validation(client), same.validation(client)),
            (fed.test(client), same.test(client)),
        ]:
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1], b[1])


def test_bytes_are_images_in_any_layout():
    images = np.arange(8 * 5 * 6 * 3, dtype=np.uint8).reshape(8, 5, 6, 3)
    last = Federation.from_clients([(images, Y[:8])])
    first = Federation.from_clients([(images.transpose(0, 3, 1, 2), Y[:8])], outliers="corruptions")
    assert last.image
    assert last.input_shape == first.input_shape == (3, 5, 6)
    assert torch.equal(last.dataset.x_train, first.dataset.x_train)
    assert Federation.from_clients([(images[..., 0], Y[:8])]).input_shape == (1, 5, 6)
    assert not Federation.from_clients([(images[:, 0, 0], Y[:8])]).image


def test_tokens_and_dictionaries():
    tokens = {"input_ids": X.astype(np.int32), "attention_mask": X > 3}
    fed = Federation.from_clients([(tokens, Y), ({key: value[:8] for key, value in tokens.items()}, Y[:8])])
    assert {tensor.dtype for tensor in fed.test(0)[0].values()} == {torch.int64}
    assert Federation.from_clients([(X.astype(int), Y)]).clean_train(0)[0].dtype == torch.int64
    with pytest.raises(InputError, match="outliers = 'gaussian' adds noise to numbers, and 'clients' has tokens"):
        Federation.from_clients([(tokens, Y)], outliers="gaussian")


class Photos(torch.utils.data.Dataset):
    """As torchvision's: PIL images, indices as labels, and the names of all classes."""

    classes = ("cat", "dog", "owl")

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        from PIL import Image

        return Image.fromarray(np.full((4, 5, 3), index, np.uint8)), index % 2


def test_torch_datasets_are_read_once():
    fed = Federation.from_clients([Photos(8), (Subset(Photos(8), [3, 5]), Photos(2))])
    assert fed.class_names == ("cat", "dog", "owl")
    assert fed.image
    assert fed.input_shape == (3, 4, 5)
    assert fed.dataset.x_train[fed.train_index[1]][:, 0, 0, 0].tolist() == [3, 5]
    assert fed.clean_train(1)[1].tolist() == [1, 1]
    assert len(fed.test(0)[1]) == 2


def test_torch_samples_may_be_dictionaries():
    rows = [{"input_ids": torch.tensor([n, n + 1]), "mask": torch.ones(2).bool(), "labels": n % 2} for n in range(8)]

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(rows)

        def __getitem__(self, index):
            return rows[index]

    fed = Federation.from_clients([Rows()])
    assert fed.input_shape == {"input_ids": (2,), "mask": (2,)}
    assert fed.dataset.x_train["mask"].dtype == torch.int64
    with pytest.raises(InputError, match="sample 0 of client '0' has input_ids, mask, labels; name the one"):
        Federation.from_clients([Rows()], target="y")


def test_from_torch_has_no_clients_of_its_own():
    data = from_torch(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), class_names=["no", "yes", "maybe"])
    assert data.client_names is None
    assert data.class_names == ("no", "yes", "maybe")
    assert (len(data.y_train), len(data.y_test)) == (15, 5)
    assert Federation.build(data, clients=3, partition="iid").clients == 3
    pair = from_torch(Photos(6), Photos(3), name="photos")
    assert repr(pair) == "Dataset('photos': 6 training and 3 test samples of shape (3, 4, 5), 3 classes)"


class Unequal(Photos):
    def __getitem__(self, index):
        return np.zeros((3, 4 + (index == 2))), 0


class Stream(IterableDataset):
    def __init__(self, samples=()):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


class OneHot(Photos):
    def __getitem__(self, index):
        return torch.zeros(3), torch.eye(4)[index]


def by_name(batch):
    x, y = zip(*batch, strict=True)
    return {"x": x, "label": y}


def test_loaders_and_iterable_datasets_read_like_their_samples():
    samples = [(torch.tensor([float(n), 0]), n % 3) for n in range(20)]
    x, y = torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])
    plain = from_torch(TensorDataset(x, y))
    loaders = [
        Stream(samples), DataLoader(Stream(samples), batch_size=6), DataLoader(TensorDataset(x, y), batch_size=7),
        DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True),  # in the order of the samples
        DataLoader(samples, batch_size=3, collate_fn=by_name), samples,
    ]  # fmt: skip
    for loader in loaders:
        data = from_torch(loader)
        assert torch.equal(data.x_train, plain.x_train)
        assert torch.equal(data.y_test, plain.y_test)
    with pytest.raises(InputError, match=r"labels of shape \(20, 1\); give one per sample: y\[:, 0\]$"):
        from_torch(TensorDataset(x, y[:, None]))  # of which argmax(1) would be 0
    half = from_torch(DataLoader(TensorDataset(x, y), sampler=range(10)))  # some of the samples
    assert len(half.y_train) + len(half.y_test) == 10
    fed = Federation.from_clients([DataLoader(Photos(12), batch_size=5), DataLoader(Photos(8))])
    assert fed.class_names == ("cat", "dog", "owl")
    assert fed.image


class Bare(Photos):
    def __getitem__(self, index):
        return torch.zeros(3)


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ([], {}, "data has 0 clients"),
        (X, {}, "data is a ndarray; give a list with the data of each client"),
        ([X], {}, "client '0' is a ndarray; give a ft.data.Dataset, arrays"),
        ([(X, Y)], {"names": ["a", "b"]}, "names has 2 names for 1 clients"),
        ([(X, Y)] * 2, {"names": ["a", "a"]}, "two clients have the name 'a'"),
        ({"a": (X, Y)}, {"names": ["a"]}, "leave names out"),
        ([(X, Y[:5])], {}, "client '0' has 20 samples in x but 5 labels"),
        ([(X, Y + 0.5)], {}, "client '0' has the label 0.5, which is no class"),
        ([(X[:2], ["a", None])], {}, "client '0' has a sample without a label; leave it out"),
        ([(X[:2], np.array(["a", np.nan], object))], {}, "client '0' has a sample without a label; leave it out"),
        ([(X, np.eye(20))], {}, r"client '0' has labels of shape \(20, 20\); give one per sample: y.argmax"),
        ([(X, Y)], {"class_names": ["only"]}, "client '0' has the label 1; with 1 classes"),
        ([(X, ["a"] * 20)], {"class_names": ["b", "c"]}, "has the class 'a', but the classes of class_names are b, c"),
        ([(X * 1e300, Y)], {}, "client '0' has x with numbers beyond float32, such as"),
        ([([["a", "b"]] * 20, Y)], {}, "client '0' has x of dtype <U1; give numbers: encode text as tokens first"),
        ([([[1], [1, 2]], [0, 1])], {}, "client '0' has x with samples of different sizes"),
        ([(X, Y), (X[:, :2], Y)], {}, r"client '1' has x of shape \(2,\) and float32, but client '0' has x of"),
        ([(X, Y), (X.astype(int), Y)], {}, r"client '1' has x of shape \(3,\) and int64, but"),
        ([dataset(), dataset(("no", "maybe"))], {}, "client '1' has the class 'maybe', but the classes of"),
        ([dataset(), dataset(("no", "yes", "x"))], {}, "client '1' has the class 'x'"),
        ([dataset(("no", "yes", "x")), dataset()], {}, "client '1' has no class 'x'"),
        ([load("toy-2")], {}, "client '0' is a data set with clients of its own, such as '1'; use Federation.build"),
        ([((X, Y), (X, Y))], {"test_share": 0.5}, "test_share = 0.5 has no effect, because test data is given"),
        ([(X, Y)], {"test_share": 1}, "test_share = 1.0 must be > 0 and < 1"),
        ([(X, Y)], {"partition": "iid"}, "partition = 'iid' does not apply to this data; leave it out"),
        ([(X, Y)], {"target": "y"}, "target = 'y' does not apply to this data"),
        ([Unequal(4)], {}, r"sample 2 of client '0' has shape \(3, 5\) and dtype float64, but sample 0 has \(3, 4\)"),
        ([Stream()], {}, "client '0' has 0 samples"),
        ([OneHot(4)], {}, r"sample 0 of client '0' has a label of shape \(4,\); give one per sample: label.argmax\(\)"),
        ([Bare(3)], {}, r"sample 0 of client '0' is a Tensor; give pairs \(x, label\)"),
        ([Photos(0)], {}, "client '0' has 0 samples"),
        ([(Photos(2), 3)], {}, "the test data of client '0' is a int"),
    ],
)  # fmt: skip
def test_errors_name_the_client(data, settings, message):
    with pytest.raises(InputError, match=message):
        Federation.from_clients(data, **settings)


def test_huggingface_partitions():
    from flwr_datasets.partitioner import IidPartitioner

    features = datasets.Features(
        {"input_ids": datasets.List(datasets.Value("int32"), 4), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    rows = {"input_ids": [[n, n, n, 0] for n in range(20)], "label": [n % 2 for n in range(20)]}
    partitioner = IidPartitioner(num_partitions=4)
    partitioner.dataset = datasets.Dataset.from_dict(rows, features=features)
    fed = Federation.from_clients((partitioner.load_partition(n) for n in range(4)), outliers="flips")
    assert (fed.clients, fed.class_names, fed.input_shape) == (4, ("bad", "good"), (4,))
    x = torch.cat([fed.clean_train(n)[0] for n in range(4)] + [fed.test(n)[0] for n in range(4)])
    assert sorted(x[:, 0].tolist()) == list(range(20))
    x, y = fed.clean_train(2)
    assert torch.equal(y, x[:, 0] % 2)
    with pytest.raises(InputError, match=r"data is a IidPartitioner; give a list .* \[data.load_partition\(i\) for"):
        Federation.from_clients(partitioner)


def frame(start, columns=("age", "drug", "ill")):
    rows = [{"age": start + n, "drug": "ab"[n % 2], "ill": ("no", "yes")[n % 3 == 0]} for n in range(12)]
    return pd.DataFrame(rows, index=[f"{start}-{n}" for n in range(12)])[list(columns)]


def test_data_frames_share_one_schema_and_column_order_does_not_matter():
    fed = Federation.from_clients({"south": frame(0), "north": frame(40, ("ill", "drug", "age"))}, target="ill", seed=2)
    assert fed.client_names == ("south", "north")
    assert fed.class_names == ("no", "yes")
    assert [column.name for column in fed.dataset.schema.columns] == ["age", "drug"]
    mean = float(fed.dataset.x_train[:, 0].mean())
    assert mean == pytest.approx(0, abs=1e-6)  # standardised together
    assert fed.clean_train(0)[0][:, 0].max() < 0 < fed.clean_train(1)[0][:, 0].min()
    assert all(name.startswith("row 40-") for name in fed.row_names("north"))


def test_pairs_of_data_frames_have_their_own_test_data(tmp_path):
    pairs = [(frame(0), frame(5)[:4]), (frame(40), frame(45)[:4])]
    fed = Federation.from_clients(pairs, target="ill")
    assert fed.train_sizes().tolist() == [12, 12]
    assert fed.row_names(1, "test") == [f"row 45-{n}" for n in range(4)]
    assert "split" not in [column.name for column in fed.dataset.schema.columns]


def test_files_are_tables(tmp_path):
    frame(0).to_csv(tmp_path / "a.csv", index=False)
    fed = Federation.from_clients([tmp_path / "a.csv", frame(3)], names=["a", "b"], target="ill", test_share=0.5)
    assert fed.train_sizes().tolist() == [6, 6]
    assert fed.dataset.name == "clients"


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ([frame(0)], {}, "needs a target"),
        ([frame(0), (X, Y)], {"target": "ill"}, "client '1' has no table, but other clients have"),
        ([frame(0)], {"target": "ill", "partition": "iid"}, "partition = 'iid' does not apply to clients with tables"),
        ([frame(0)], {"target": "ill", "class_names": ["no"]}, "class_names = .* does not apply to clients"),
        ([(frame(0), frame(1)), frame(0)], {"target": "ill"}, "client '1' has no test data, but client '0' has"),
        ([(frame(0), frame(1))], {"target": "ill", "test_share": 0.5}, "client '0' has its own test data; leave"),
        ([(frame(0), frame(1, ("age", "ill")))], {"target": "ill"}, "client '0' has 'drug' in one of train and test"),
        ([(frame(0), Y)], {"target": "ill"}, "client '0' has a DataFrame and labels; add the labels to it as a column"),
        ([(frame(0), "b.csv")], {"target": "ill"}, "client '0' has a pair with a file; read both as DataFrames"),
        ([frame(0), frame(1, ("age", "ill"))], {"target": "ill"}, "table DataFrame of client '1' has no column 'drug'"),
    ],
)  # fmt: skip
def test_errors_about_tables(data, settings, message):
    with pytest.raises(InputError, match=message):
        Federation.from_clients(data, **settings)


def test_every_sample_says_where_it_comes_from():
    fed = Federation.from_clients({"a": (X[:8], Y[:8]), "b": ((X, Y), (X[:2], Y[:2]))}, test_share=0.5)
    assert fed.row_names("b", "test") == [
        "sample 0 of the test data of client 'b'",
        "sample 1 of the test data of client 'b'",
    ]
    names = fed.row_names("a") + fed.row_names("a", "test")
    assert sorted(names) == [f"sample {n} of client 'a'" for n in range(8)]
    for name, x in zip(fed.row_names("a"), fed.clean_train(0)[0], strict=True):
        assert x[0] == X[int(name.split()[1]), 0]


def test_groups_and_weights_of_datasets_are_kept():
    fields = {
        "group_train": {"ward": torch.arange(12) % 3}, "group_test": {"ward": torch.arange(4) % 3},
        "weight_train": torch.ones(12), "weight_test": torch.zeros(4), "warnings": ("a sentence",),
    }  # fmt: skip
    first, second = (
        dataset(group_names={"ward": ("x", "y", "z")}, **fields),
        dataset(group_names={"ward": ("w", "y", "z")}, **fields),
    )
    data = Federation.from_clients([first, second]).dataset
    assert data.group_names == {"ward": ("w", "x", "y", "z")}
    assert data.group_train["ward"].tolist() == [1, 2, 3] * 4 + [0, 2, 3] * 4
    assert data.weight_test.tolist() == [0.0] * 8
    assert data.warnings == ["client '0': a sentence", "client '1': a sentence"]
    with pytest.raises(
        InputError, match="client '1' has x of .*, but client '0' has .* with groups by ward, with weights"
    ):
        Federation.from_clients([first, dataset()])


def numbers(n, first=0.0):
    x = torch.linspace(0, 1, 3 * n).reshape(n, 3)
    return x, first + torch.arange(n) / 2


def test_numbers_as_targets():
    """Arrays, data sets, PyTorch's and Hugging Face's; proportional rows are of each client's quarters."""
    x, y = numbers(16)
    fed = Federation.from_clients([(x, y), (x + 2, y + 100)], task="regression", split="proportional")
    data = fed.dataset
    assert (data.task, fed.outputs) == ("regression", 1)
    assert data.y_train.dtype == torch.float32
    for client, low in ((0, 0.0), (1, 100.0)):
        kept = data.y_test[data.client_test == client]
        assert ((kept - low) // 2).tolist() == [0, 1, 2, 3]  # one of each quarter
    assert data.target.mean == pytest.approx(data.y_train.double().mean().item())
    rows = datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist()})
    part = Dataset(name="n", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4], task="regression")
    for client in ((x.numpy(), y.tolist()), TensorDataset(x, y), rows, part, ((x, y), (x[:4], y[:4]))):
        found = Federation.from_clients([client], task="regression").dataset
        whole = (
            torch.cat([found.y_train, found.y_test]) if len(found.y_test) + len(found.y_train) == 16 else found.y_train
        )
        assert whole.sort().values.tolist() == y.tolist()
    assert Federation.from_clients([part, part]).dataset.task == "regression"  # the data sets say so
    assert from_torch(TensorDataset(x, y), task="regression").outputs == 1


def test_numbers_of_tables_keep_their_scale():
    frame = pd.DataFrame({"age": np.arange(40) % 7, "days": np.arange(40) * 1.5})
    data = table(frame, target="days", task="regression")
    joined = Federation.from_clients([data, data]).dataset
    assert joined.schema == data.schema
    assert joined.target == data.target == data.schema.numbers


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        ([numbers(8)], {}, r"client '0' has the label 0.5, which is no class; .* set task = 'regression'"),
        ([numbers(8)], {"task": "ranking"}, "task = 'ranking' is unknown; choose classification or regression"),
        ([numbers(8)], {"task": "regression", "class_names": ["a"]}, r"class_names = \['a'\] has no effect with task"),
        ([(X, ["a", "b"] * 10)], {"task": "regression"}, r"client '0' has targets of shape \(20,\) and dtype <U1"),
        ([(X, [1.0] * 19 + [np.nan])], {"task": "regression"}, "client '0' has the target nan in sample 19"),
        ([dataset()], {"task": "regression"}, "task = 'regression' differs from that of client '0', a data set with"),
        ([dataset(), NUMBERS], {}, "client '1' has x of .* with numbers as targets, but client '0' has"),
    ],
)  # fmt: skip
def test_targets_that_do_not_fit_the_task_are_refused(clients, settings, message):
    with pytest.raises(InputError, match=message):
        Federation.from_clients(clients, **settings)
