"""Persistent outliers: corrupted training data, drawn anew for every client in every round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtilt import checks, seeds
from fedtilt.data.inputs import Inputs
from fedtilt.errors import InputError

KINDS = ("none", "corruptions", "gaussian", "flips")
_STRENGTH = {"corruptions": 0.3, "gaussian": 1.0}


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Which outliers clients have, how many and how strong.

    Args:
        kind: 'none', 'corruptions' (some pixels become uniform in [0, 1]), 'gaussian' (noise is added) or 'flips' (the
            label becomes another class of the client)
        rate: the probability that a sample is an outlier
        strength: for corruptions the share of a sample's pixels (default 0.3), for gaussian the standard deviation
            (default 1.0)
        clients: the share of clients that have outliers

    >>> Outliers(kind="gaussian").strength
    1.0
    """

    kind: str = "none"
    rate: float = 0.3
    strength: float | None = None
    clients: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"outliers = {self.kind!r} is unknown; choose one of {', '.join(KINDS)}")
        for key in ("rate", "clients"):
            value = checks.number(getattr(self, key), f"outlier_{key}")
            if not 0 <= value <= 1:
                raise InputError(f"outlier_{key} = {value} is not a share; choose a number from 0 to 1")
            object.__setattr__(self, key, value)
        if self.strength is None:
            object.__setattr__(self, "strength", _STRENGTH.get(self.kind))
            return
        object.__setattr__(self, "strength", checks.number(self.strength, "outlier_strength"))
        if self.kind == "corruptions" and not 0 <= self.strength <= 1:
            raise InputError(f"outlier_strength = {self.strength} is not a share of the pixels; choose 0 to 1")
        elif self.kind == "gaussian" and not 0 <= self.strength < float("inf"):
            raise InputError(f"outlier_strength = {self.strength} is not a standard deviation; choose a number ≥ 0")
        elif self.kind == "flips":
            raise InputError(f"outlier_strength = {self.strength} does not apply to flips; leave it out")


def resolve_outliers(outliers: str | Outliers, rate: float, strength: float | None, clients: float) -> Outliers:
    """The outliers from a name and settings, or from an `Outliers`; settings beside an `Outliers` are refused."""
    if isinstance(outliers, str):
        return Outliers(kind=outliers, rate=rate, strength=strength, clients=clients)
    if not isinstance(outliers, Outliers):
        raise InputError(
            f"outliers = {outliers!r} is unknown; choose one of {', '.join(KINDS)}, or pass a ft.data.Outliers"
        )
    settings, default = Outliers(rate=rate, strength=strength, clients=clients), Outliers()
    for key in ("rate", "strength", "clients"):
        value = getattr(settings, key)
        if value != getattr(default, key):
            raise InputError(f"outlier_{key} = {value} does not apply to {outliers}; use Outliers({key}={value})")
    return outliers


def apply(
    outliers: Outliers, x: Inputs, y: Tensor, client_classes: Tensor, *, seed: int, round: int, client: int
) -> tuple[Inputs, Tensor]:
    """Add one round's outliers to one client's samples; the arguments do not change.

    The result depends only on the seed, the round, the client and the samples, and is the same on every device.

    Args:
        outliers: the kind and its settings
        x: the samples, in [0, 1] units; flips take tokens and dictionaries too
        y: their labels
        client_classes: the client's classes, ascending; a label flips to another of these
        seed: the seed of the run
        round: the number of the round
        client: the number of the client

    >>> x, y = torch.zeros(4, 1), torch.tensor([3, 7, 3, 7])
    >>> apply(Outliers(kind="flips", rate=1.0), x, y, torch.tensor([3, 7]), seed=0, round=1, client=0)[1]
    tensor([7, 3, 7, 3])
    """

    def key(purpose: str) -> int:
        return seeds.key(seed, f"outliers/{purpose}", round=round, client=client)

    if outliers.kind == "none" or not len(y):
        return x, y
    is_outlier = seeds.uniform(key("samples"), (len(y),), y.device) < outliers.rate
    rows, rank = _candidates(is_outlier)
    if outliers.kind == "flips":
        return x, _replace(y, rows, is_outlier, _flip(y[rows], rank, client_classes, key("flips")))
    assert isinstance(x, Tensor)  # Federation.build refuses noise on anything else
    clean, strength = x[rows], float(outliers.strength or 0.0)
    if outliers.kind == "gaussian":
        changed = clean + seeds.normal(key("noise"), clean.shape, x.device, rank) * strength
    else:
        pixels = seeds.uniform(key("pixels"), clean.shape, x.device, rank) < strength
        changed = torch.where(pixels, seeds.uniform(key("values"), clean.shape, x.device, rank), clean)
    return _replace(x, rows, is_outlier, changed), y


def _candidates(is_outlier: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to compute a changed version of, and the rank of each among the outliers.

    On a CPU these are the outliers. On a GPU they are all rows: to count the outliers, the CPU would have to wait.
    """
    if is_outlier.device.type == "cpu":
        rows = is_outlier.nonzero()[:, 0]
        return rows, torch.arange(len(rows))
    return torch.arange(len(is_outlier), device=is_outlier.device), is_outlier.cumsum(0) - 1


def _replace(values: Tensor, rows: Tensor, is_outlier: Tensor, changed: Tensor) -> Tensor:
    mask = is_outlier[rows].reshape(-1, *[1] * (values.dim() - 1))
    return values.index_copy(0, rows, torch.where(mask, changed, values[rows]))


def _flip(y: Tensor, rank: Tensor, classes: Tensor, key: int) -> Tensor:
    """Change each label to another of the classes, all with equal probability."""
    if len(classes) < 2:
        return y
    step = 1 + seeds.integers(key, (len(y),), len(classes) - 1, y.device, rank)
    return classes[(torch.searchsorted(classes, y) + step) % len(classes)]
