"""LEAF's JSON layout: folders train and test of files {users, num_samples, user_data: {user: {x, y}}}.

Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097.
"""

import json
import math
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedtilt import checks
from fedtilt.data.dataset import Dataset
from fedtilt.data.sources.samples import ClientSamples, LabelledSamples, from_arrays, make_dataset
from fedtilt.errors import InputError
from fedtilt.files import local_path

# the characters of LEAF's Shakespeare data, in its order
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_CHARACTER_NAMES = tuple({"\n": "newline", " ": "space"}.get(character, character) for character in ALPHABET)
_TWEET_TEXT = 4  # the position of the text in a sample of Sent140
_WORD = re.compile(r"\w[\w']*|[.,!?;]")  # punctuation counts as words, as in LEAF's models
_FEMNIST = (1, 28, 28)

Users = dict[str, Mapping[str, Any]]


def leaf(
    folder: str | os.PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    words: int | None = None,
    vocabulary: int | None = None,
    name: str = "leaf",
) -> Dataset:
    """Read data in LEAF's JSON layout; every user is a client.

    numbers (FEMNIST): float32; 784 numbers from 0 to 1 are an image of 28 × 28
    characters (Shakespeare): positions in `ALPHABET`, int64, and 80 for any other character; y is the next character
    tweets (Sent140): a hash of each of the text's first words, int64 from 1 up, filled up with 0

    Keys other than users, num_samples and user_data, and x and y of a user, are not used.

    Args:
        folder: the folder with the folders train and test, such as LEAF's data/femnist/data
        shape: the shape of one sample, if x are numbers; (channels, height, width) is an image of numbers from 0 to 1
        words: the number of words of a tweet; default: 25
        vocabulary: the number of different tokens of tweets; default: 10,000
        name: the name of the data set
    """
    root = local_path(folder, "LEAF data")
    train, test = (_read_users(root / split) for split in ("train", "test"))
    missing = next((user for user in test if user not in train), None)
    if missing is not None:
        raise InputError(
            f"LEAF data {root} has the user {missing!r} in test but not in train; split it by samples, as LEAF's "
            "preprocess.sh -t sample does"
        )
    x, y = next((user["x"], user["y"]) for user in train.values() if len(user["y"]))
    kind, read = _reader(x[0], y[0], words, vocabulary, root)
    settings = {"shape": (shape, "numbers"), "words": (words, "tweets"), "vocabulary": (vocabulary, "tweets")}
    for setting, (value, needed) in settings.items():
        if value is not None and kind != needed:
            raise InputError(f"{setting} = {value!r} applies to {needed}, and {root} has {kind}; leave it out")
    clients = [
        ClientSamples(
            name=user,
            train=read(data, f"user {user!r}"),
            test=read(test.get(user, {"x": [], "y": []}), f"the test data of user {user!r}"),
        )
        for user, data in train.items()
    ]
    return make_dataset(_reshape(clients, shape) if kind == "numbers" else clients, name)


def is_leaf(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has JSON files in a folder train."""
    return any((Path(folder).expanduser() / "train").glob("*.json"))


def _read_users(folder: Path) -> Users:
    """The data of every user in the JSON files of a folder."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise InputError(f"{folder} has no .json file; LEAF data has the folders train and test with JSON files")
    users: Users = {}
    for path in paths:
        try:
            content = json.loads(path.read_bytes())
            names, sizes, data = (content[key] for key in ("users", "num_samples", "user_data"))
            lengths = {user: (len(data[user]["x"]), len(data[user]["y"])) for user in names}
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; check its permissions") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} is not in LEAF's layout ({type(error).__name__}: {error}); it needs users, num_samples and "
                "user_data with x and y of every user"
            ) from error
        if len(sizes) != len(names) or set(names) != set(data):
            raise InputError(f"{path} has {len(names)} users, {len(sizes)} num_samples and {len(data)} in user_data")
        for user, size in zip(names, sizes, strict=True):
            if lengths[user] != (size, size):
                raise InputError(
                    f"{path} has num_samples = {size} of user {user!r}, but {lengths[user][0]} samples in x and "
                    f"{lengths[user][1]} in y; write it again"
                )
            if user in users:
                raise InputError(f"{path} has the user {user!r}, who is in another file of {folder} too")
            users[user] = data[user]
    if not any(len(user["y"]) for user in users.values()):
        raise InputError(f"{folder} has 0 samples; add some")
    return users


Reader = Callable[[Mapping[str, Any], str], LabelledSamples]


def _reader(x: Any, y: Any, words: int | None, vocabulary: int | None, root: Path) -> tuple[str, Reader]:
    """What samples such as this one are, and their reader."""
    if isinstance(x, list) and all(isinstance(value, int | float) for value in x):
        return "numbers", _read_numbers
    if isinstance(x, str) and isinstance(y, str) and len(y) == 1:
        return "characters", partial(_read_characters, length=len(x))
    if isinstance(x, list) and len(x) > _TWEET_TEXT and all(isinstance(value, str) for value in x):
        words = 25 if words is None else checks.whole(words, "words", 1)
        vocabulary = 10_000 if vocabulary is None else checks.whole(vocabulary, "vocabulary", 2)
        return "tweets", partial(_read_tweets, words=words, vocabulary=vocabulary)
    raise InputError(
        f"LEAF data {root} has x of type {type(x).__name__} with y = {y!r}; x is a list of numbers, text with its next "
        "character, or a tweet (images such as CelebA's: ft.data.images with a manifest)"
    )


def _read_numbers(data: Mapping[str, Any], origin: str) -> LabelledSamples:
    try:
        x = np.asarray(data["x"], np.float32) if len(data["y"]) else np.zeros((0, 0), np.float32)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{origin} has x that is no table of numbers ({error}); give all samples the same size"
        ) from None
    return from_arrays(x, np.asarray(data["y"], None if len(data["y"]) else np.int64), origin)


def _read_characters(data: Mapping[str, Any], origin: str, length: int) -> LabelledSamples:
    wrong = next((text for text in data["x"] if len(text) != length), None)
    if wrong is not None:
        raise InputError(f"{origin} has a text of {len(wrong)} characters, others have {length}; give all the same")
    unknown = next((character for character in data["y"] if character not in ALPHABET or len(character) != 1), None)
    if unknown is not None:
        raise InputError(f"{origin} has y = {unknown!r}, which is not in LEAF's alphabet; leave the sample out")
    position = np.full(256, len(ALPHABET), np.int64)  # of each character code
    position[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    codes = np.frombuffer("".join(data["x"]).encode("utf-32-le"), np.uint32)
    tokens = position[np.minimum(codes, 255)].reshape(-1, length)
    labels = [_CHARACTER_NAMES[ALPHABET.index(character)] for character in data["y"]]
    return from_arrays(tokens, np.array(labels, str), origin, _CHARACTER_NAMES)


def _read_tweets(data: Mapping[str, Any], origin: str, words: int, vocabulary: int) -> LabelledSamples:
    tokens = np.zeros((len(data["y"]), words), np.int64)
    for row, tweet in enumerate(data["x"]):
        for column, word in enumerate(_WORD.findall(tweet[_TWEET_TEXT].lower())[:words]):
            tokens[row, column] = 1 + zlib.crc32(word.encode()) % (vocabulary - 1)
    return from_arrays(tokens, np.asarray(data["y"], None if len(data["y"]) else np.int64), origin)


def _reshape(clients: Sequence[ClientSamples], shape: Sequence[int] | None) -> list[ClientSamples]:
    """Samples of numbers in their shape; without one, what looks like FEMNIST becomes images."""
    parts = [part for client in clients for part in (client.train, client.test) if part is not None and len(part)]
    sizes = {part.x.shape[1] for part in parts if isinstance(part.x, Tensor)}
    size = sizes.pop()
    if sizes:
        odd = next(part.origin for part in parts if isinstance(part.x, Tensor) and part.x.shape[1] != size)
        raise InputError(f"{odd} has samples of another size than {size} numbers; give all the same")
    if shape is None:
        in_unit = all(bool((part.x >= 0).all() and (part.x <= 1).all()) for part in parts if isinstance(part.x, Tensor))
        shape = _FEMNIST if size == math.prod(_FEMNIST) and in_unit else (size,)
    sample_shape = tuple(checks.whole(n, "every size in shape", 1) for n in shape)
    if math.prod(sample_shape) != size:
        raise InputError(f"shape = {sample_shape} has {math.prod(sample_shape)} numbers, but a sample has {size}")

    def reshape(part: LabelledSamples | None) -> Any:
        assert part is not None
        assert isinstance(part.x, Tensor)
        return replace(part, x=part.x.reshape(len(part), *sample_shape), image=len(sample_shape) == 3)

    return [replace(client, train=reshape(client.train), test=reshape(client.test)) for client in clients]
