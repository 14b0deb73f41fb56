"""What turns the columns of a table into a model's input: kept with the data, with a run and with an exported model."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedtilt import checks
from fedtilt.errors import InputError
from fedtilt.files import read_metadata


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features of a table: a model sees (x − mean) / deviation, of every column in this order.

    A feature that was constant in training has an infinite deviation, and so is 0 everywhere.

    >>> Features(names=("age", "dose"), mean=(50.0, 2.0), deviation=(10.0, 1.0)).standardised(np.array([[60.0, 2.0]]))
    tensor([[1., 0.]])
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(map(str, self.names)))
        for key in ("mean", "deviation"):
            values = tuple(checks.number(value, f"a feature's {key}") for value in getattr(self, key))
            if len(values) != len(self.names):
                raise InputError(f"{len(self.names)} features have {len(values)} values of {key}; give one each")
            object.__setattr__(self, key, values)
        if not all(map(math.isfinite, self.mean)):
            raise InputError(f"a feature's mean must be finite, got {self.mean}")
        if not all(value > 0 for value in self.deviation):
            raise InputError(f"a feature's deviation must be > 0, inf where it is constant, got {self.deviation}")

    @classmethod
    def of(cls, names: tuple[str, ...], x: np.ndarray) -> Self:
        """What standardises these training rows (N, features)."""
        deviation = x.std(axis=0)
        varies = (x.min(axis=0) < x.max(axis=0)) & (deviation > 0)  # the deviation of equal numbers may be rounding
        return cls(names=names, mean=tuple(x.mean(axis=0)), deviation=tuple(np.where(varies, deviation, np.inf)))

    def standardised(self, x: np.ndarray) -> Tensor:
        """Rows of raw numbers (N, features) as float32 for a model."""
        scaled = (x - np.array(self.mean)) / np.array(self.deviation)
        return torch.from_numpy((scaled + 0.0).astype(np.float32))  # −0 becomes 0

    def to_json(self) -> dict[str, Any]:
        """Plain values; JSON has no infinities, so these are the text "inf"."""
        deviation = [value if math.isfinite(value) else str(value) for value in self.deviation]
        return {"features": list(self.names), "mean": list(self.mean), "deviation": deviation}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Back from plain values."""
        mean, deviation = (tuple(float(value) for value in values[key]) for key in ("mean", "deviation"))
        return cls(names=tuple(values["features"]), mean=mean, deviation=deviation)


def features_of(path: str | os.PathLike[str]) -> Features:
    """The features that a model of `fedtilt export` takes, from its file."""
    written = read_metadata(Path(path))
    try:
        return Features.from_json({key: json.loads(written[key]) for key in ("features", "mean", "deviation")})
    except KeyError:
        raise InputError(
            f"{path} does not say what its features are; give a file of fedtilt export whose model was trained on a "
            "table, or the data set"
        ) from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} has damaged metadata ({error}); export it again") from error
