"""LEAF's JSON layout: FEMNIST, Shakespeare and Sent140 in small, and what is refused."""

import json
import zlib

import pytest
import torch

from fedtilt.data import Federation, leaf
from fedtilt.data.sources.leaf_json import ALPHABET
from fedtilt.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::fedtilt.errors.InputWarning")  # these data sets are small


def write(path, users, **changes):
    """One JSON file as LEAF's preprocess.sh writes it; `users` has x and y of each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content | changes))


def test_femnist(tmp_path):
    image = [0.0] * 783
    write(tmp_path / "train/all_data_0.json", {"f0": ([[*image, 0.5], [*image, 1.0]], [3, 40])})
    write(tmp_path / "train/all_data_1.json", {"f1": ([[*image, 0.25]], [3]), "f2": ([[*image, 0.0]], [40])})
    write(tmp_path / "test/all_data_0.json", {"f0": ([[*image, 0.75]], [40]), "f1": ([], [])})
    data = leaf(tmp_path, name="femnist")
    assert repr(data) == "Dataset('femnist': 4 training and 1 test samples of shape (1, 28, 28), 2 classes)"
    assert (data.image, data.class_names, data.client_names) == (True, ("3", "40"), ("f0", "f1", "f2"))
    assert data.x_train[:, 0, 27, 27].tolist() == [0.5, 1.0, 0.25, 0.0]
    assert data.y_train.tolist() == [0, 1, 0, 1]
    assert data.client_test.tolist() == [0]
    assert Federation.build(data, partition="column", outliers="corruptions").clients == 3
    assert leaf(tmp_path, shape=(784,)).input_shape == (784,)
    with pytest.raises(InputError, match=r"shape = \(3, 8\) has 24 numbers, but a sample has 784"):
        leaf(tmp_path, shape=(3, 8))


def test_shakespeare(tmp_path):
    write(
        tmp_path / "train/a.json",
        {"ROMEO": (["But, soft", "ut, soft!"], ["!", " "]), "JULIET": (["O Romeo, é"[1:]], ["R"])},
    )
    write(tmp_path / "test/a.json", {"ROMEO": (["what lig\n"], ["h"])})
    data = leaf(tmp_path)
    assert len(ALPHABET) == data.classes == 80
    assert data.input_shape == (9,)
    assert data.x_train.dtype == torch.int64
    assert "".join(ALPHABET[token] for token in data.x_train[0]) == "But, soft"
    assert data.x_train[2, -1] == 80  # é
    assert [data.class_names[k] for k in data.y_train] == ["!", "space", "R"]
    assert data.x_test[0, -1] == 0
    with pytest.raises(InputError, match=r"shape = \(9,\) applies to numbers, and .* has characters"):
        leaf(tmp_path, shape=(9,))


def test_sent140(tmp_path):
    def tweet(text):
        return ["1", "Mon Apr 06", "NO_QUERY", "user", text, "training"]

    write(tmp_path / "train/a.json", {"u": ([tweet("Happy happy day"), tweet("sad")], [1, 0])})
    write(tmp_path / "test/a.json", {"u": ([tweet("Day.")], [1])})
    data = leaf(tmp_path, words=4, vocabulary=50)
    assert data.class_names == ("0", "1")
    happy, again, day, padding = data.x_train[0].tolist()
    assert happy == again == 1 + zlib.crc32(b"happy") % 49
    assert padding == 0
    assert data.x_test[0].tolist() == [day, 1 + zlib.crc32(b".") % 49, 0, 0]


NUMBERS = {"a": ([[1, 2], [3, 4]], [0, 1])}


@pytest.mark.parametrize(
    ("train", "test", "changes", "message"),
    [
        (NUMBERS, {"b": ([[1, 2]], [0])}, {}, "has the user 'b' in test but not in train; split it by samples"),
        (NUMBERS, {}, {}, r"test has 0 samples; add some"),
        (NUMBERS, NUMBERS, {"num_samples": [3]}, "has num_samples = 3 of user 'a', but 2 samples in x and 2 in y"),
        (NUMBERS, NUMBERS, {"num_samples": [2, 2]}, "has 1 users, 2 num_samples and 1 in user_data"),
        (NUMBERS, NUMBERS, {"user_data": {"a": {"x": [1]}}}, r"a.json is not in LEAF's layout \(KeyError: 'y'\)"),
        ({"a": (["00001.jpg"], [1])}, NUMBERS, {}, "has x of type str with y = 1; x is a list of numbers"),
        ({"a": (["ab", "abc"], ["c", "d"])}, {"a": ([], [])}, {}, r"test has 0 samples"),
        ({"a": (["ab", "abc"], ["c", "d"])}, {"a": (["ab"], ["c"])}, {}, "user 'a' has a text of 3 characters, others"),
        ({"a": (["ab"], ["é"])}, {"a": (["ab"], ["c"])}, {}, "user 'a' has y = 'é', which is not in LEAF's alphabet"),
        ({"a": ([[1, 2], [3]], [0, 1])}, NUMBERS, {}, "user 'a' has x that is no table of numbers"),
        ({"a": ([[1, 2]], [0]), "b": ([[1]], [0])}, NUMBERS, {}, "has samples of another size than . numbers"),
    ],
)  # fmt: skip
def test_errors(tmp_path, train, test, changes, message):
    write(tmp_path / "train/a.json", train, **changes)
    write(tmp_path / "test/a.json", test)
    with pytest.raises(InputError, match=message):
        leaf(tmp_path)


def test_a_user_in_two_files(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"train/{name}.json", NUMBERS)
    with pytest.raises(InputError, match=r"b.json has the user 'a', who is in another file of"):
        leaf(tmp_path)


def test_a_folder_without_json(tmp_path):
    with pytest.raises(InputError, match="LEAF data https://example.org/x is a URL; download it first"):
        leaf("https://example.org/x")
    with pytest.raises(InputError, match="train has no .json file; LEAF data has the folders train and test"):
        leaf(tmp_path)
