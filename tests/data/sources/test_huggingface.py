"""Hugging Face datasets: images, tokens, arrays, and what is refused."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedtilt.data import Federation, from_huggingface
from fedtilt.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::fedtilt.errors.InputWarning")  # these data sets are small


def tokens(count=12, **columns):
    rows = {"input_ids": [[n, 1, 2] for n in range(count)], "attention_mask": [[1, 1, 0]] * count}
    return datasets.Dataset.from_dict(rows | {"label": [n % 3 for n in range(count)]} | columns)


def test_several_columns_are_a_dictionary():
    data = from_huggingface(tokens(), test_share=0.5)
    assert data.input_shape == {"input_ids": (3,), "attention_mask": (3,)}
    assert torch.equal(data.y_train, data.x_train["input_ids"][:, 0] % 3)
    assert (len(data.y_train), len(data.y_test), data.client_names) == (6, 6, None)


def test_inputs_and_target_choose_columns():
    data = from_huggingface(tokens(text=["a"] * 12), inputs=["input_ids"], target="label")
    assert data.input_shape == (3,)
    assert data.x_train.dtype == torch.int64


def test_a_dataset_dict_has_its_test_data_and_a_column_the_clients():
    parts = datasets.DatasetDict(
        train=tokens(12, writer=["b", "a", "b"] * 4), test=tokens(4, writer=["a", "b", "b", "a"])
    )
    data = from_huggingface(parts, client="writer", name="letters")
    assert data.client_names == ("b", "a")
    fed = Federation.build(data, partition="column")
    assert fed.test(1)[0]["input_ids"][:, 0].tolist() == [0, 3]
    assert fed.clean_train(1)[0]["input_ids"][:, 0].tolist() == [1, 4, 7, 10]


def test_a_validation_split_is_used_and_said():
    parts = {"train": tokens(12), "validation": tokens(6), "test": tokens(4)}
    data = from_huggingface(datasets.DatasetDict(parts))
    assert (len(data.y_train), len(data.y_test)) == (18, 4)
    assert data.x_train["input_ids"][:, 0].tolist() == [*range(12), *range(6)]
    assert data.warnings == [
        "the split 'validation' (6 samples) is used as training data, of which Federation.build(validation=…) reserves "
        "a share"
    ]
    without_test = datasets.DatasetDict(train=tokens(12), val=tokens(6))
    data = from_huggingface(without_test)
    assert (len(data.y_train), data.x_test["input_ids"][:, 0].tolist()) == (12, list(range(6)))
    assert data.warnings == ["the split 'val' (6 samples) is used as test data"]
    fed = Federation.from_clients([without_test, without_test])
    assert "client '1': the split 'val' (6 samples) is used as test data" in fed.warnings


def test_arrays_of_small_whole_numbers_are_images():
    pixels = np.arange(12 * 64, dtype=np.uint8).reshape(12, 8, 8)
    features = datasets.Features({"x": datasets.Array2D((8, 8), "uint8"), "label": datasets.Value("int64")})
    data = from_huggingface(
        datasets.Dataset.from_dict({"x": list(pixels), "label": [0, 1] * 6}, features=features), test_share=0.5
    )
    assert data.image
    assert data.x_train.shape == (6, 1, 8, 8)
    assert data.x_train.dtype == torch.uint8


def test_a_streaming_dataset_is_read_once():
    streams = datasets.IterableDatasetDict(train=tokens().to_iterable_dataset(), test=tokens(4).to_iterable_dataset())
    data, plain = (from_huggingface(each) for each in (streams, datasets.DatasetDict(train=tokens(), test=tokens(4))))
    assert torch.equal(data.x_train["input_ids"], plain.x_train["input_ids"])
    assert torch.equal(data.y_test, plain.y_test)
    fed = Federation.from_clients([tokens().to_iterable_dataset()])
    assert int(fed.train_sizes().sum()) + len(fed.test(0)[1]) == 12


def test_images_are_decoded_and_classes_are_named():
    images = [Image.fromarray(np.full((4, 6, 3), n, np.uint8)) for n in range(6)]
    features = datasets.Features({"image": datasets.Image(), "digit": datasets.ClassLabel(names=["x", "y", "z"])})
    rows = datasets.Dataset.from_dict({"image": images, "digit": [0, 1] * 3}, features=features)
    data = from_huggingface(rows.select([5, 4, 3, 2]), test_share=0.25)
    assert data.image
    assert data.class_names == ("x", "y", "z")
    assert data.input_shape == (3, 4, 6)
    assert torch.equal(data.y_train, data.x_train[:, 0, 0, 0].long() % 2)


def test_a_transform_of_the_user_is_applied():
    rows = tokens().remove_columns("attention_mask")
    rows.set_transform(lambda batch: {"x": [torch.tensor(v) * 10 for v in batch["input_ids"]], "label": batch["label"]})
    data = from_huggingface(rows, target="label")
    assert sorted(torch.cat([data.x_train, data.x_test])[:, 0].tolist()) == list(range(0, 120, 10))


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (tokens(text=["a"] * 12), {}, r"the column 'text' \(text\) beside the label 'label'; choose the inputs, as in "
         r"inputs = \['input_ids', 'attention_mask'\]"),
        (tokens().select_columns(["label"]), {}, "no column beside the label 'label'; tokenise text, or read numbers"),
        (tokens().rename_column("label", "y"), {}, "has the columns input_ids, attention_mask, y; name the one of the"),
        (tokens(), {"target": "y"}, "the training data has no column 'y'; its columns are input_ids"),
        (tokens(), {"inputs": "input_ids"}, r"inputs = 'input_ids' is text; give a list"),
        (tokens(ragged=[[1]] * 11 + [[1, 2]]), {}, "rows of different lengths in column 'ragged'; pad them"),
        (tokens().select([]), {}, "the training data has 0 rows"),
        (datasets.DatasetDict(train=tokens(), unlabelled=tokens()), {}, "data has the splits train, unlabelled; give"),
        (datasets.DatasetDict(train=tokens(), val=tokens(), dev=tokens()), {}, "data has the splits train, val, dev"),
        ([1], {}, "data is a list; give a datasets.Dataset, or"),
    ],
)  # fmt: skip
def test_errors(data, settings, message):
    with pytest.raises(InputError, match=message):
        from_huggingface(data, **settings)
