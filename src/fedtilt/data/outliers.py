"""Outliers: corrupted training data, drawn anew for every client in every round, or once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from fedtilt import checks, seeds
from fedtilt.data.dataset import Dataset
from fedtilt.data.inputs import Inputs
from fedtilt.devices import upload
from fedtilt.errors import InputError

KINDS = ("none", "corruptions", "gaussian", "flips")
REDRAWS = ("round", "once")
FLIP_TARGETS = ("client", "any", "nearest", "pairs")
ONLY_WITH: checks.OnlyWith = {
    **{key: {"kind": KINDS[1:]} for key in ("rate", "clients", "redraw")},
    "strength": {"kind": ("corruptions", "gaussian")},
    "flip_to": {"kind": ("flips",)},
    "pairs": {"kind": ("flips",)},
}
_NUMBERS_AT_ONCE = 2**25  # random ones, of eight bytes each
_STRENGTH = {"corruptions": 0.3, "gaussian": 1.0}


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Which outliers clients have, how many and how strong.

    Args:
        kind: 'none', 'corruptions' (some pixels become uniform in [0, 1]), 'gaussian' (noise is added) or 'flips' (the
            label becomes another class)
        rate: the probability that a sample is an outlier
        strength: for corruptions the share of a sample's pixels (default 0.3), for gaussian the standard deviation
            (default 1.0)
        clients: the share of clients that have outliers
        redraw: 'round' (drawn anew in every round) or 'once' (the same samples are outliers in every round, as
            mislabelled data is in practice)
        flip_to: for flips: 'client' (another class of the client), 'any' (another class of the data set; both are
            drawn with equal probability), 'nearest' (the class with the nearest mean of the training samples) or
            'pairs'; default: 'pairs' if these are given, else 'client'
        pairs: class → the class that it flips to, by name; classes without a pair do not flip

    >>> Outliers(kind="gaussian").strength
    1.0
    >>> Outliers(kind="flips", redraw="once", pairs={"3": "5", "5": "3"}).flip_to
    'pairs'
    """

    kind: str = "none"
    rate: float = 0.3
    strength: float | None = None
    clients: float = 1.0
    redraw: str = "round"
    flip_to: str | None = None
    pairs: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"outliers = {self.kind!r} is unknown; choose one of {', '.join(KINDS)}")
        if self.redraw not in REDRAWS:
            raise InputError(f"outlier_redraw = {self.redraw!r} is unknown; choose one of {', '.join(REDRAWS)}")
        for key in ("rate", "clients"):
            value = checks.number(getattr(self, key), f"outlier_{key}")
            if not 0 <= value <= 1:
                raise InputError(f"outlier_{key} = {value} is not a share; choose a number from 0 to 1")
            object.__setattr__(self, key, value)
        if self.strength is not None:
            object.__setattr__(self, "strength", checks.number(self.strength, "outlier_strength"))
        defaults = {field.name: field.default for field in fields(self)}
        values = {key: getattr(self, key) for key in defaults}
        checks.check_used(values, defaults, ONLY_WITH, lambda key: "outliers" if key == "kind" else f"outlier_{key}")
        self._check_flips()
        if self.strength is None:
            object.__setattr__(self, "strength", _STRENGTH.get(self.kind))
        elif self.kind == "corruptions" and not 0 <= self.strength <= 1:
            raise InputError(f"outlier_strength = {self.strength} is not a share of the pixels; choose 0 to 1")
        elif self.kind == "gaussian" and not 0 <= self.strength < float("inf"):
            raise InputError(f"outlier_strength = {self.strength} is not a standard deviation; choose a number ≥ 0")

    def _check_flips(self) -> None:
        """Check `flip_to` and `pairs`, and set their defaults."""
        pairs = None if self.pairs is None else _check_pairs(self.pairs)
        object.__setattr__(self, "pairs", pairs)
        if self.kind != "flips":
            return
        if self.flip_to is None:
            object.__setattr__(self, "flip_to", "client" if pairs is None else "pairs")
        if self.flip_to not in FLIP_TARGETS:
            raise InputError(f"outlier_flip_to = {self.flip_to!r} is unknown; choose one of {', '.join(FLIP_TARGETS)}")
        if self.flip_to == "pairs" and pairs is None:
            raise InputError("outlier_flip_to = 'pairs' needs outlier_pairs, such as {'3': '5'}")
        if self.flip_to != "pairs" and pairs is not None:
            raise InputError(
                f"outlier_pairs = {pairs} does not apply to outlier_flip_to = {self.flip_to!r}; leave one out"
            )

    def to_json(self) -> dict[str, Any]:
        """The settings for the record of a run, without unused ones that earlier versions did not have."""
        new_defaults = {"redraw": "round", "flip_to": "client" if self.kind == "flips" else None, "pairs": None}
        return {key: value for key, value in asdict(self).items() if value != new_defaults.get(key, ...)}


def _check_pairs(pairs: Any) -> dict[str, str]:
    if (
        not isinstance(pairs, Mapping)
        or not pairs
        or not all(isinstance(c, str) for pair in pairs.items() for c in pair)
    ):
        raise InputError(f"outlier_pairs = {pairs!r} is not a table of class names, such as {{'3': '5'}}")
    for true, flipped in pairs.items():
        if true == flipped:
            raise InputError(f"outlier_pairs flips class {true!r} to itself; name another class, or leave it out")
    return dict(pairs)


def resolve_outliers(outliers: str | Outliers, **settings: Any) -> Outliers:
    """The outliers from a name and settings, or from an `Outliers`; settings beside an `Outliers` raise InputError."""
    if isinstance(outliers, str):
        return Outliers(kind=outliers, **settings)
    if not isinstance(outliers, Outliers):
        raise InputError(
            f"outliers = {outliers!r} is unknown; choose one of {', '.join(KINDS)}, or pass a ft.data.Outliers"
        )
    for key, value in settings.items():
        if key in ("rate", "strength", "clients") and value is not None:
            value = checks.number(value, f"outlier_{key}")
        if value != getattr(Outliers, key):
            raise InputError(f"outlier_{key} = {value!r} does not apply to {outliers}; use Outliers({key}={value!r})")
    return outliers


def check_outliers(outliers: Outliers, dataset: Dataset) -> None:
    """Raise InputError about outliers that these samples cannot have."""
    if outliers.kind == "corruptions" and not dataset.image:
        raise InputError(f"outliers = 'corruptions' needs images, and {dataset.name!r} has none; use gaussian or flips")
    if outliers.kind == "flips" and dataset.target is not None:
        raise InputError(
            f"outliers = 'flips' changes classes, and {dataset.name!r} has {dataset.target.words}; leave them out"
        )
    has_tokens = isinstance(dataset.x_train, dict) or dataset.x_train.dtype == torch.int64
    if outliers.kind == "gaussian" and has_tokens:
        raise InputError(f"outliers = 'gaussian' adds noise to numbers, and {dataset.name!r} has tokens; use flips")


def resolve_flip_map(outliers: Outliers, dataset: Dataset) -> Tensor | None:
    """The class that each class flips to, int64 of shape (classes,), or None if it is drawn for every sample."""
    if outliers.kind != "flips" or outliers.flip_to not in ("nearest", "pairs"):
        return None
    if outliers.flip_to == "nearest":
        return nearest_classes(dataset)
    targets, names = torch.arange(dataset.classes), dataset.class_names
    for pair in (outliers.pairs or {}).items():
        for name in pair:
            if name not in names:
                raise InputError(
                    f"outlier_pairs has the class {name!r}, which {dataset.name!r} does not have; its classes are "
                    f"{', '.join(names)}"
                )
        true, flipped = map(names.index, pair)
        targets[true] = flipped
    return targets


def nearest_classes(dataset: Dataset) -> Tensor:
    """For every class the one whose mean of the training samples is nearest to its own, int64 of shape (classes,)."""
    x = dataset.x_train
    if not isinstance(x, Tensor) or x.dtype == torch.int64:
        raise InputError(
            f"outlier_flip_to = 'nearest' compares numbers, and {dataset.name!r} has tokens; use client, any or pairs"
        )
    means = torch.full((dataset.classes, x[0].numel()), torch.nan, dtype=torch.float64)
    for k in dataset.y_train.unique().tolist():
        means[k] = x[dataset.y_train == k].flatten(1).mean(0, dtype=torch.float64)
    distances = torch.stack([(means - mean).square().sum(1) for mean in means])  # (classes, classes)
    distances.fill_diagonal_(torch.inf)
    return distances.nan_to_num(torch.inf, posinf=torch.inf).argmin(1)


def apply(
    outliers: Outliers,
    x: Inputs,
    y: Tensor,
    flip_classes: Sequence[Tensor],
    *,
    seed: int,
    round: int | None,
    clients: Sequence[int],
    sizes: Sequence[int],
    flip_map: Tensor | None = None,
) -> tuple[Inputs, Tensor]:
    """Add outliers to the samples of one or several clients; the arguments do not change.

    What a client's samples become depends only on the seed, the round, the client and its samples, and is the same on
    every device.

    Args:
        outliers: the kind and its settings
        x: the samples, one client after the other, in [0, 1] units; flips take tokens and dictionaries too
        y: their labels
        flip_classes: of each client: a label flips to another of these classes, which are ascending
        seed: the seed of the run
        round: the number of the round; None: drawn once, for all rounds
        clients: the numbers of the clients
        sizes: how many of the samples each of them has
        flip_map: class → the class it flips to, in place of `flip_classes`

    >>> x, y = torch.zeros(4, 1), torch.tensor([3, 7, 3, 7])
    >>> flips, classes = Outliers(kind="flips", rate=1.0), [torch.tensor([3, 7])]
    >>> apply(flips, x, y, classes, seed=0, round=1, clients=[0], sizes=[4])[1]
    tensor([7, 3, 7, 3])
    """
    if outliers.kind == "none" or not len(y):
        return x, y
    owner, position = seeds.owners_and_positions(sizes, y.device)

    def key(purpose: str, owner: Tensor) -> seeds.Key:
        once = round is None
        name = f"outliers/once/{purpose}" if once else f"outliers/{purpose}"
        keys = [seeds.key(seed, name, round=round or 0, client=client) for client in clients]
        return keys[0] if len(keys) == 1 else seeds.as_tensor(keys, y.device)[owner]

    is_outlier = seeds.uniform(key("samples", owner), (len(y),), y.device, position) < outliers.rate
    rows, rank = _candidates(is_outlier, owner, position)
    if outliers.kind == "flips":
        drawn = key("flips", owner[rows])
        flipped = flip_map[y[rows]] if flip_map is not None else _flip(y[rows], owner[rows], rank, flip_classes, drawn)
        return x, _replace(y, rows, is_outlier, flipped)
    assert isinstance(x, Tensor)  # Federation.build allows noise on nothing else
    per_block = max(1, _NUMBERS_AT_ONCE // max(1, x[0].numel()))
    changed = x
    for block, block_rank in zip(rows.split(per_block), rank.split(per_block), strict=True):
        noisy = _noisy(outliers, x[block], block_rank, lambda purpose: key(purpose, owner[block]))  # noqa: B023
        changed = _replace(changed, block, is_outlier, noisy)
    return changed, y


def _noisy(outliers: Outliers, clean: Tensor, rank: Tensor, key: Callable[[str], seeds.Key]) -> Tensor:
    """Every sample as an outlier; `rank` is its number among those of its client."""
    strength = float(outliers.strength or 0.0)
    if outliers.kind == "gaussian":
        return clean + seeds.normal(key("noise"), clean.shape, clean.device, rank) * strength
    pixels = seeds.uniform(key("pixels"), clean.shape, clean.device, rank) < strength
    return torch.where(pixels, seeds.uniform(key("values"), clean.shape, clean.device, rank), clean)


def _candidates(is_outlier: Tensor, owner: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to compute a changed version of, and the rank of each among the outliers of its client.

    On a CPU these are the outliers. On a GPU they are all rows: to count the outliers, the CPU would have to wait.
    """
    numbers = torch.arange(len(owner), device=owner.device)
    before = is_outlier.cumsum(0) - is_outlier.long()
    rank = before - before[numbers - position]  # numbers − position: the first sample of the client
    rows = is_outlier.nonzero()[:, 0] if is_outlier.device.type == "cpu" else numbers
    return rows, rank[rows]


def _replace(values: Tensor, rows: Tensor, is_outlier: Tensor, changed: Tensor) -> Tensor:
    mask = is_outlier[rows].reshape(-1, *[1] * (values.dim() - 1))
    return values.index_copy(0, rows, torch.where(mask, changed, values[rows]))


def _flip(y: Tensor, owner: Tensor, rank: Tensor, classes: Sequence[Tensor], key: seeds.Key) -> Tensor:
    """Change each label to another of its client's classes, all with equal probability; a single class stays."""
    counts = torch.tensor([len(of_client) for of_client in classes]).clamp(min=1)
    counts = upload(counts, y.device)[owner]
    table = nn.utils.rnn.pad_sequence(list(classes), batch_first=True, padding_value=2**31)  # after all classes
    step = 1 + seeds.integers(key, (len(y),), (counts - 1).clamp(min=1), y.device, rank)
    place = torch.searchsorted(table[owner], y[:, None])[:, 0] if len(classes) > 1 else torch.searchsorted(table[0], y)
    return torch.where(counts > 1, table[owner, (place + step) % counts], y)
