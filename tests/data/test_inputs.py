"""Inputs that are tokens or dictionaries of tensors, through data sets and federations."""

import pytest
import torch

from fedtilt.data import Dataset, Federation
from fedtilt.data.inputs import concatenate, take
from fedtilt.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::fedtilt.errors.InputWarning")  # these data sets are small


def token_dataset(named, **settings):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 30, (90, 6), generator=generator)
    y = torch.arange(90) % 3
    x = {"input_ids": tokens, "attention_mask": (tokens > 3).long()} if named else tokens
    train, test = slice(0, 60), slice(60, 90)
    return Dataset(
        name="tokens", x_train=take(x, train), y_train=y[train], x_test=take(x, test), y_test=y[test],
        **{"classes": 3} | settings,
    )  # fmt: skip


def test_a_dictionary_is_indexed_by_client():
    data = token_dataset(named=True)
    fed = Federation.build(data, clients=4, partition="iid", validation=0.2, outliers="flips", outlier_rate=1.0)
    assert data.input_shape == fed.input_shape == {"input_ids": (6,), "attention_mask": (6,)}
    for client in range(4):
        x, y = fed.train(client, seed=0, round=1)
        rows = fed.train_index[client]
        assert torch.equal(x["input_ids"], data.x_train["input_ids"][rows])
        assert torch.equal(x["attention_mask"], data.x_train["attention_mask"][rows])
        assert not (y == data.y_train[rows]).any()  # every label flips, the tokens stay
    x, _, client = fed.evaluation("test")
    assert torch.equal(x["input_ids"][client == 2], fed.test(2)[0]["input_ids"])
    assert x["input_ids"].dtype == torch.int64


def test_validation_with_outliers_keeps_the_names():
    data = token_dataset(named=True)
    fed = Federation.build(data, clients=3, partition="iid", validation=0.3, outliers="flips", validation_outliers=True)
    x, y, _ = fed.evaluation("validation")
    assert list(x) == ["input_ids", "attention_mask"]
    assert len(x["input_ids"]) == len(y) == 18


def test_tokens_are_not_scaled():
    data = token_dataset(named=False)
    x, _ = Federation.build(data, clients=2, partition="iid").clean_train(1)
    assert x.dtype == torch.int64
    assert data.to(torch.device("cpu")).x_test.equal(data.x_test)


def test_concatenate_joins_every_tensor():
    x = token_dataset(named=True).x_train
    joined = concatenate([take(x, slice(0, 7)), take(x, torch.arange(7, 60))])
    assert all(torch.equal(joined[key], x[key]) for key in x)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["gaussian", "corruptions"])
def test_noise_on_tokens_is_refused(named, kind):
    with pytest.raises(
        InputError, match=rf"outliers = '{kind}' .*'tokens' has (tokens|none); use (gaussian or )?flips"
    ):
        Federation.build(token_dataset(named), clients=2, partition="iid", outliers=kind)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": {}}, r"x_train with the names \[\]"),
        ({"x_train": {"input-ids": torch.zeros(60, 6)}}, r"names \['input-ids'\]; give one or more names"),
        ({"x_train": {"input_ids": [1, 2]}}, r"x_train\['input_ids'\] of type list; make it a tensor"),
        ({"x_train": {"input_ids": torch.zeros(60, 6).int()}}, r"x_train\['input_ids'\] of shape .* int32"),
        ({"x_train": {"input_ids": torch.zeros(59, 6)}}, r"59 samples in x_train\['input_ids'\] but 60 labels"),
        ({"x_train": {"input_ids": torch.zeros(60, 6)}}, r"x_train of 'input_ids' of .* but x_test of 'input_ids'"),
        ({"x_train": {"a": torch.full((60, 6), torch.nan)}}, r"NaN or infinite values in x_train\['a'\]"),
        ({"image": True}, r"image = True and x_train of 'input_ids' of shape"),
    ],
)  # fmt: skip
def test_wrong_dictionaries_are_named(change, message):
    good = token_dataset(named=True)
    fields = {"x_train": good.x_train, "image": False} | change
    with pytest.raises(InputError, match=message):
        Dataset(name="t", y_train=good.y_train, x_test=good.x_test, y_test=good.y_test, classes=3, **fields)
