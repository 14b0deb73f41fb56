"""The handwritten digits that come with scikit-learn."""

from pathlib import Path

import numpy as np
import torch

from fedtilt import seeds
from fedtilt.data.dataset import Dataset, split_dataset
from fedtilt.data.published.entry import Entry
from fedtilt.data.sampling import stratified_mask


def read_digits(entry: Entry, folder: Path, seed: int) -> Dataset:
    """scikit-learn's digits; a third of every class is test data, the same for every seed."""
    from sklearn.datasets import load_digits  # late: importing scikit-learn takes a second

    bunch = load_digits()
    x = torch.from_numpy((bunch.images / 16).astype(np.float32))[:, None]  # (1797, 1, 8, 8)
    y = bunch.target.astype(np.int64)
    test = torch.from_numpy(stratified_mask(y, entry.test, seeds.generator(seeds.key(0, "digits/test"))))
    columns = {"x": x, "y": torch.from_numpy(y)}
    return split_dataset(columns, {"train": ~test, "test": test}, name=entry.name, classes=entry.classes, image=True)


DIGITS = Entry(
    name="digits", description="handwritten digits, 8 × 8", reader=read_digits, train=1198, test=599, classes=10
)
