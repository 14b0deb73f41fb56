"""How a table's columns become a model's input: stored with the data set, the run and an exported model."""

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
    """The features of a table: a model's input is (x − mean) / deviation, with the columns in this order.

    A feature that is constant in the training data has an infinite deviation, so its input is always 0.

    >>> Features(names=("age", "dose"), mean=(50.0, 2.0), deviation=(10.0, 1.0)).standardise(np.array([[60.0, 2.0]]))
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
            raise InputError(f"a feature's deviation must be > 0 (inf if it is constant), got {self.deviation}")

    @classmethod
    def fit(cls, names: tuple[str, ...], x: np.ndarray) -> Self:
        """The features of these training rows (N, features)."""
        deviation = x.std(axis=0)
        varies = (x.min(axis=0) < x.max(axis=0)) & (
            deviation > 0
        )  # rounding can make the deviation of equal numbers > 0
        return cls(names=names, mean=tuple(x.mean(axis=0)), deviation=tuple(np.where(varies, deviation, np.inf)))

    def standardise(self, x: np.ndarray) -> Tensor:
        """Rows of raw numbers (N, features) as a model's input, float32."""
        scaled = (x - np.array(self.mean)) / np.array(self.deviation)
        return torch.from_numpy((scaled + 0.0).astype(np.float32))  # −0 becomes 0

    def to_json(self) -> dict[str, Any]:
        """The values for a JSON file; JSON has no infinity, so it becomes the text "inf"."""
        deviation = [value if math.isfinite(value) else str(value) for value in self.deviation]
        return {"features": list(self.names), "mean": list(self.mean), "deviation": deviation}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        mean, deviation = (tuple(float(value) for value in values[key]) for key in ("mean", "deviation"))
        return cls(names=tuple(values["features"]), mean=mean, deviation=deviation)


def read_features(path: str | os.PathLike[str]) -> Features:
    """The features of an exported model, from its file's metadata."""
    metadata = read_metadata(Path(path))
    try:
        return Features.from_json({key: json.loads(metadata[key]) for key in ("features", "mean", "deviation")})
    except KeyError:
        raise InputError(
            f"{path} has no features in its metadata; give a file that fedtilt export wrote for a model trained on a "
            "table, or the data set"
        ) from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} has damaged metadata ({error}); export it again") from error
