"""Persistent outliers: bad training data, drawn afresh for every client in every round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtilt import checks, seeds
from fedtilt.errors import InputError

KINDS = ("none", "corruptions", "gaussian", "flips")
_STRENGTH = {"corruptions": 0.3, "gaussian": 1.0}


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Which outliers, on which share of the samples, how strong, and on which share of the clients.

    `strength` is the share of a sample's pixels for corruptions (0.3 unless told), the deviation for gaussian (1.0).

    >>> Outliers(kind="gaussian").strength
    1.0
    """

    kind: str = "none"
    rate: float = 0.3
    strength: float | None = None
    clients: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"outliers = {self.kind!r} is not known; choose one of {', '.join(KINDS)}")
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
            raise InputError(f"outlier_strength = {self.strength} is not a deviation; choose a finite number from 0 up")
        elif self.kind == "flips":
            raise InputError(f"outlier_strength = {self.strength} means nothing for flips; leave it out")


def outliers_of(outliers: str | Outliers, rate: float, strength: float | None, clients: float) -> Outliers:
    """The outliers asked for, by name and settings or as they are, but not both."""
    if isinstance(outliers, str):
        return Outliers(kind=outliers, rate=rate, strength=strength, clients=clients)
    if not isinstance(outliers, Outliers):
        raise InputError(
            f"outliers = {outliers!r} is not known; choose one of {', '.join(KINDS)}, or pass a ft.data.Outliers"
        )
    settings, default = Outliers(rate=rate, strength=strength, clients=clients), Outliers()
    for key in ("rate", "strength", "clients"):
        value = getattr(settings, key)
        if value != getattr(default, key):
            raise InputError(f"outlier_{key} = {value} means nothing to {outliers}; give it as Outliers({key}={value})")
    return outliers


def apply(
    outliers: Outliers, x: Tensor, y: Tensor, held_classes: Tensor, *, seed: int, round: int, client: int
) -> tuple[Tensor, Tensor]:
    """One client's samples and labels in one round, with that round's outliers; the arguments stay as they are.

    `x` is in [0, 1] units. `held_classes` are the classes the client holds, ascending. The draws depend on seed, round,
    client and the number of samples alone, and are the same integers on every device.

    >>> x, y = torch.zeros(4, 1), torch.tensor([3, 7, 3, 7])
    >>> apply(Outliers(kind="flips", rate=1.0), x, y, torch.tensor([3, 7]), seed=0, round=1, client=0)[1]
    tensor([7, 3, 7, 3])
    """

    def key(purpose: str) -> int:
        return seeds.key(seed, f"outliers/{purpose}", round=round, client=client)

    if outliers.kind == "none" or not len(y):
        return x, y
    hit = seeds.uniform(key("samples"), (len(y),), y.device) < outliers.rate
    rows, rank = _candidates(hit)
    if outliers.kind == "flips":
        return x, _put(y, rows, hit, _flipped(y[rows], rank, held_classes, key("flips")))
    chosen, strength = x[rows], float(outliers.strength or 0.0)
    if outliers.kind == "gaussian":
        changed = chosen + seeds.normal(key("noise"), chosen.shape, x.device, rank) * strength
    else:
        pixels = seeds.uniform(key("pixels"), chosen.shape, x.device, rank) < strength
        changed = torch.where(pixels, seeds.uniform(key("values"), chosen.shape, x.device, rank), chosen)
    return _put(x, rows, hit, changed), y


def _candidates(hit: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to compute a changed version of, and the rank of each among those that were hit.

    On a CPU they are those that were hit; how many is not known on a GPU without waiting for it, and so it takes all.
    """
    if hit.device.type == "cpu":
        rows = hit.nonzero()[:, 0]
        return rows, torch.arange(len(rows))
    return torch.arange(len(hit), device=hit.device), hit.cumsum(0) - 1


def _put(values: Tensor, rows: Tensor, hit: Tensor, changed: Tensor) -> Tensor:
    taken = hit[rows].reshape(-1, *[1] * (values.dim() - 1))
    return values.index_copy(0, rows, torch.where(taken, changed, values[rows]))


def _flipped(y: Tensor, rank: Tensor, held: Tensor, key: int) -> Tensor:
    """Labels moved to another held class, each of the others with equal chance."""
    if len(held) < 2:
        return y
    step = 1 + seeds.integers(key, (len(y),), len(held) - 1, y.device, rank)
    return held[(torch.searchsorted(held, y) + step) % len(held)]
