"""Warnings about a data set and its clients, as a careful colleague would give them."""

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.groups import GroupColumn
from fedtilt.data.inputs import Inputs, named_tensors, sample_count
from fedtilt.data.tables.text_values import MISSING_WORDS, UNKNOWN_WORDS
from fedtilt.data.targets import IGNORED, TokenTarget
from fedtilt.errors import InputWarning
from fedtilt.text_tables import first_names

_FEW_SAMPLES = 10
_IMBALANCE = 20  # times as many samples of one class as of another
_TARGETS_OF_COPIES = 0.95  # of pairs with equal inputs, the share that has equal targets


def warn(texts: Iterable[str]) -> None:
    """Emit each text as an `InputWarning` at the line of the user's code that called this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "fedtilt":
        frame, level = frame.f_back, level + 1
    for text in texts:
        warnings.warn(text, InputWarning, stacklevel=level + 1)


def dataset_warnings(data: Dataset) -> list[str]:
    """Imbalance, classes without samples, duplicates of training samples, images with channels last."""
    found = _class_warnings(data) if data.target is None else []
    if isinstance(data.target, TokenTarget):
        inputs = named_tensors(data.x_train, "x_train").items()
        found += [
            f"the targets are the tokens of {key} themselves, which a model only has to copy; to predict the next "
            "token give y = x[:, 1:] for x[:, :-1]"
            for key, x in inputs
            if x.shape == data.y_train.shape and bool(((x == data.y_train) | (data.y_train == IGNORED)).all())
        ]
    if data.image and isinstance(data.x_train, Tensor):
        shape = data.x_train.shape[1:]
        channels, width = shape[0], shape[-1]
        if channels > 4 and width in (1, 3, 4):
            found.append(
                f"images of shape {tuple(shape)} look like (height, width, channels) and are read as {channels} "
                "channels; x.permute(0, 3, 1, 2) moves the channels first"
            )
    if not data.image and (copies := _copies(data)):
        found.append(
            f"{copies:,} of {len(data.y_test):,} test samples are copies of training samples, which flatter every "
            "figure: remove duplicates, or keep them on one side (split_group)"
        )
    return found


def similar_names(names: Sequence[str]) -> str | None:
    """Two names that differ only in case or blanks; None if there are none.

    >>> similar_names(["Ill", "well", "ill "])
    "'Ill' and 'ill '"
    """
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(" ".join(name.split()).casefold(), name)
        if other != name:
            return f"{other!r} and {name!r}"
    return None


def _unshared_classes(data: Dataset) -> list[str]:
    """A warning if no two clients have a class in common: their labels may be written differently."""
    if data.client_train is None or data.client_names is None or len(data.client_names) < 2:
        return []
    pairs = torch.stack([data.client_train, data.y_train], 1).unique(dim=0)
    if len(pairs[:, 1].unique()) < len(pairs) or len(pairs[:, 0].unique()) < 2:
        return []
    (a, one), (b, other) = pairs[0].tolist(), pairs[pairs[:, 0] != pairs[0, 0]][0].tolist()
    return [
        f"no two clients have a class in common, such as {data.class_names[one]!r} at {data.client_names[a]!r} and "
        f"{data.class_names[other]!r} at {data.client_names[b]!r}; if their labels mean the same, write them alike"
    ]


def _class_warnings(data: Dataset) -> list[str]:
    found = _unshared_classes(data)
    if similar := similar_names(data.class_names):
        found.append(
            f"classes {similar} differ only in case or blanks; write them alike (for a table: ignore_case = true)"
        )
    for name in data.class_names:
        if name.casefold() in (*MISSING_WORDS, *UNKNOWN_WORDS):
            found.append(
                f"class {name!r} may mean that the label is unknown; if so, leave its rows out (for a table: missing = "
                f"[{name!r}] and drop_unlabelled = true)"
            )
    train, test = (torch.bincount(y, minlength=data.classes) for y in (data.y_train, data.y_test))
    names = data.class_names
    present = train.nonzero()[:, 0]
    most, least = int(present[train[present].argmax()]), int(present[train[present].argmin()])
    if train[most] > _IMBALANCE * train[least]:
        found.append(
            f"class {names[most]!r} has {int(train[most]):,} training samples and class {names[least]!r} has "
            f"{int(train[least]):,}; accuracy says little about the rare one: look at each class, or raise tau"
        )
    unseen = [names[k] for k in ((train > 0) & (test == 0)).nonzero()[:, 0].tolist()]
    if unseen:
        found.append(
            f"{_classes(unseen)} no test sample; no figure says anything about {'it' if len(unseen) == 1 else 'them'}: "
            "add test samples"
        )
    untrained = [names[k] for k in ((train == 0) & (test > 0)).nonzero()[:, 0].tolist()]
    if untrained:
        found.append(f"{_classes(untrained)} test samples but no training sample; add some")
    return found


def group_warnings(
    columns: Mapping[str, GroupColumn], client_names: Sequence[str], train_index: Sequence[Tensor]
) -> list[str]:
    """Groups that some clients have no training sample of, and groups with few test samples."""
    found = []
    for column, (names, train, test) in columns.items():
        missing = [
            f"of {column} {names[k]!r} at client {client!r}"
            for client, rows in zip(client_names, train_index, strict=True)
            for k in (torch.bincount(train[rows], minlength=len(names)) == 0).nonzero()[:, 0].tolist()
            if len(rows)
        ]
        if missing:
            found.append(f"no training sample {first_names(missing, 3)}; a client's tilts are over the groups it has")
        counts = torch.bincount(test, minlength=len(names)).tolist()
        few = [f"{name!r} ({n})" for name, n in zip(names, counts, strict=True) if n < _FEW_SAMPLES]
        if few:
            shown = first_names(few, 3)
            found.append(f"{column} {shown}: fewer than {_FEW_SAMPLES} test samples, so their figures say little")
    return found


def client_warnings(client_names: Sequence[str], train_index: Sequence[Tensor], weights: Tensor | None) -> list[str]:
    """Clients whose names look like one name, with few training samples, and without weight."""
    found = []
    if similar := similar_names(client_names):
        found.append(
            f"clients {similar} differ only in case or blanks; if they are one, write them alike (for a table: "
            "ignore_case = true)"
        )
    clients = list(zip(client_names, train_index, strict=True))
    few = [f"{name!r} ({len(rows)})" for name, rows in clients if 0 < len(rows) < _FEW_SAMPLES]
    if few:
        who = f"client {few[0]} has" if len(few) == 1 else f"clients {first_names(few, 3)} have"
        found.append(f"{who} fewer than {_FEW_SAMPLES} training samples")
    if weights is not None:
        empty = [repr(name) for name, rows in clients if len(rows) and not weights[rows].any()]
        if empty:
            found.append(f"every training sample of {first_names(empty, 3)} has weight 0, so nothing is learnt from it")
    return found


def untrained_rows(train: Tensor, test: Tensor) -> list[str]:
    """Test rows of a class that other clients have training rows of, but not theirs, from counts by client and class.

    >>> untrained_rows(torch.tensor([[5, 0], [3, 4]]), torch.tensor([[2, 1], [1, 1]]))
    ['1 of 5 test rows are of a class that their client, 1 of 2, has no training row of; they count as what they are']
    """
    rows = (test * (train == 0) * train.any(0)).sum(1) * train.any(1)
    if not rows.any():
        return []
    clients = f"{int((rows > 0).sum()):,} of {int((test.sum(1) > 0).sum()):,}"
    return [
        f"{int(rows.sum()):,} of {int(test.sum()):,} test rows are of a class that their client, {clients}, has no "
        "training row of; they count as what they are"
    ]


def last_function(outputs: Tensor) -> str | None:
    """Softmax or Sigmoid, if a model's outputs are its probabilities; the loss takes logits."""
    if outputs.dim() != 2 or outputs.shape[1] < 2 or not bool((outputs >= 0).all()):
        return None
    sums = outputs.sum(1)
    if torch.allclose(sums, torch.ones_like(sums), atol=1e-5):
        return "Softmax"
    is_one_logit = outputs.shape[1] == 2 and not bool(outputs[:, 0].any())  # the first of two is always 0
    return "Sigmoid" if is_one_logit and len(sums) >= _FEW_SAMPLES and bool(((sums > 0) & (sums < 1)).all()) else None


def _classes(names: Sequence[str]) -> str:
    shown = first_names(list(map(repr, names)), 5)
    return f"class {shown} has" if len(names) == 1 else f"classes {shown} have"


def _copies(data: Dataset) -> int:
    """How many test samples have the inputs of training samples; 0 if these are others with equal inputs.

    People of one age and sex have equal inputs, and their targets differ; those of copies do not.
    """
    (train, with_target), (test, test_with_target) = (
        (_hashes(x), _hashes({**named_tensors(x, "x"), "its target": y}))
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
    )
    found = np.isin(test, train)
    same_inputs, same_target = _counts(test[found], train), _counts(test_with_target[found], with_target)
    return int(found.sum()) if found.any() and (same_target / same_inputs).mean() >= _TARGETS_OF_COPIES else 0


def _counts(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """How often each value occurs among others."""
    ordered = np.sort(among)
    return np.searchsorted(ordered, values, "right") - np.searchsorted(ordered, values, "left")


def _hashes(x: Inputs, rows: int = 1 << 16) -> np.ndarray:
    """A 64-bit hash of every sample: the sum of the mixed bits of its values (SplitMix64)."""
    rng = np.random.default_rng(0)
    hashes = np.zeros(sample_count(x), np.uint64)
    for _, tensor in sorted(named_tensors(x, "").items()):
        words = tensor.detach().cpu().reshape(len(tensor), -1).contiguous()
        bits = words.view(torch.int32).numpy() if words.dtype == torch.float32 else words.numpy()
        column = rng.integers(0, 2**63, bits.shape[1], dtype=np.uint64)
        for start in range(0, len(bits), rows):
            z = bits[start : start + rows].astype(np.uint64) + column
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            hashes[start : start + rows] += (z ^ (z >> np.uint64(31))).sum(axis=1, dtype=np.uint64)
    return hashes
