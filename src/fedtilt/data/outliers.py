"""Outliers: corrupted training data, drawn anew for every client in every round, or once."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.config.setting_fields import (
    Name,
    check_fields_used,
    check_table,
    default_of,
    documented,
    setting,
    settings_of,
)
from fedtilt.data.dataset import Dataset
from fedtilt.data.inputs import Inputs
from fedtilt.devices import upload
from fedtilt.errors import InputError

KINDS = ("none", "corruptions", "gaussian", "flips")
REDRAWS = ("round", "once")
FLIP_TARGETS = ("client", "any", "nearest", "pairs")
_NUMBERS_AT_ONCE = 2**25  # random ones, of eight bytes each
_STRENGTH = {"corruptions": 0.3, "gaussian": 1.0}


@documented
@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Which outliers clients have, how many and how strong.

    'corruptions': some pixels become uniform in [0, 1]; 'gaussian': noise is added; 'flips': the label becomes another
    class.

    >>> Outliers(kind="gaussian").strength
    1.0
    >>> Outliers(kind="flips", redraw="once", pairs={"3": "5", "5": "3"}).flip_to
    'pairs'
    """

    kind: str = setting("none", "how training data is corrupted", choices=KINDS)
    rate: float = setting(
        0.3, "the share of a client's samples that are outliers", ge=0, le=1, only_with={"kind": KINDS[1:]}
    )
    strength: float | None = setting(
        None,
        "the share of pixels (corruptions) or the standard deviation (gaussian); default: 0.3 or 1",
        ge=0,
        example=0.5,
        only_with={"kind": ("corruptions", "gaussian")},
    )
    clients: float = setting(1.0, "the share of clients that have outliers", ge=0, le=1, only_with={"kind": KINDS[1:]})
    redraw: str = setting(
        "round",
        "when outliers are drawn: anew in every round, or once, as mislabelled data is in practice",
        choices=REDRAWS,
        only_with={"kind": KINDS[1:]},
    )
    flip_to: str | None = setting(
        None,
        "the class that a label flips to: another of the client, any other, the one with the nearest mean of the "
        'training samples, or as in pairs; default: "pairs" if these are given, else "client"',
        choices=FLIP_TARGETS,
        example="any",
        only_with={"kind": ("flips",)},
    )
    pairs: dict[str, Name] = setting(
        {},
        "the class that each class flips to; classes without a pair do not flip; it may be a table [outliers.pairs] "
        "too",
        allowed='a table of class names, such as {3 = "5"}',
        only_with={"kind": ("flips",)},
    )
    defaulted: ClassVar[tuple[str, ...]] = ()  # of an object: the settings that its kind has decided

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", _check_pairs(self.pairs or {}))
        check_table(self, "outliers")
        check_fields_used(self, "outliers")
        if self.kind == "corruptions" and self.strength is not None and self.strength > 1:
            raise InputError(f"outliers.strength = {self.strength} is not a share of the pixels; choose 0 to 1")
        if self.flip_to == "pairs" and not self.pairs:
            raise InputError("outliers.flip_to = 'pairs' needs outliers.pairs, such as {'3': '5'}")
        if self.flip_to not in (None, "pairs") and self.pairs:
            raise InputError(
                f"outliers.pairs = {self.pairs} has no effect with outliers.flip_to = {self.flip_to!r}; leave one out"
            )
        flip_to = ("pairs" if self.pairs else "client") if self.kind == "flips" else None
        decided = {"strength": _STRENGTH.get(self.kind), "flip_to": flip_to}
        defaulted = tuple(key for key in decided if getattr(self, key) is None)
        for key in defaulted:
            object.__setattr__(self, key, decided[key])
        object.__setattr__(self, "defaulted", defaulted)

    def to_json(self) -> dict[str, Any]:
        """The settings for the record of a run; some are part of it only if they are not the default."""
        defaults: dict[str, Any] = {
            "redraw": "round",
            "flip_to": "client" if self.kind == "flips" else None,
            "pairs": {},
        }
        return {key: value for key, value in asdict(self).items() if value != defaults.get(key, ...)}


def _check_pairs(pairs: Any) -> dict[str, str]:
    if not isinstance(pairs, Mapping) or not all(isinstance(name, str) for pair in pairs.items() for name in pair):
        raise InputError(f"outliers.pairs = {pairs!r} is not a table of class names, such as {{'3': '5'}}")
    for true, flipped in pairs.items():
        if true == flipped:
            raise InputError(f"outliers.pairs flips class {true!r} to itself; name another class, or leave it out")
    return dict(pairs)


def resolve_outliers(outliers: str | Outliers, **settings: Any) -> Outliers:
    """The outliers from a name and settings, or from an `Outliers`; settings beside an `Outliers` raise InputError."""
    if not isinstance(outliers, Outliers) and outliers not in KINDS:
        raise InputError(
            f"outliers = {outliers!r} is unknown; choose one of {', '.join(KINDS)}, or pass a ft.data.Outliers"
        )
    if isinstance(outliers, str):
        try:
            return Outliers(kind=outliers, **settings)
        except InputError as error:  # with the names of keywords
            text = str(error).replace("outliers.kind", "outliers").replace("outliers.", "outlier_")
            raise InputError(re.sub("outliers: (unknown )?", r"\1outlier_", text)) from None
    for key, field in settings_of(Outliers).items():
        value = settings.get(key)
        if value is not None and value != default_of(field):
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
    for pair in outliers.pairs.items():
        for name in pair:
            if name not in names:
                raise InputError(
                    f"outliers.pairs has the class {name!r}, which {dataset.name!r} does not have; its classes are "
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
            f"outliers.flip_to = 'nearest' compares numbers, and {dataset.name!r} has tokens; use client, any or pairs"
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
