"""Scores: what models are measured by, from sums over the samples of a client or group.

Of classes, the sums are correct predictions, whole numbers of shape (…); of numbers, absolute and squared errors in the
unit of the target, float64 of shape (…, 2).
"""

from collections.abc import Callable, Container
from typing import NamedTuple

from torch import Tensor


class Score(NamedTuple):
    """A quantity that models are measured by."""

    name: str  # in files
    title: str  # in tables
    unit: str  # of a value; empty: that of the target
    spread_unit: str  # of a standard deviation
    higher_is_better: bool
    values: Callable[[Tensor, Tensor], Tensor]  # (sums, samples) → values of the shape of `samples`

    def text(self, value: float, digits: int = 2) -> str:
        """A value with its unit.

        >>> ACCURACY.text(97.5, 0), MAE.text(43.21, 1)
        ('98 %', '43.2')
        """
        return f"{value:.{digits}f} {self.unit}".rstrip()

    def worst(self, values: Tensor, dim: int = -1) -> Tensor:
        """The worst of several values; those that are not defined are left out."""
        if self.higher_is_better:
            return values.nan_to_num(nan=float("inf")).amin(dim)
        return values.nan_to_num(nan=-float("inf")).amax(dim)

    def worst_position(self, values: Tensor) -> int:
        """The position of the worst of several values; those that are not defined are left out."""
        if self.higher_is_better:
            return int(values.nan_to_num(nan=float("inf")).argmin())
        return int(values.nan_to_num(nan=-float("inf")).argmax())


ACCURACY = Score(
    "accuracy", "accuracy", "%", "points", True, lambda correct, samples: 100 * correct.double() / samples.double()
)
MAE = Score("mae", "MAE", "", "", False, lambda errors, samples: errors[..., 0] / samples.double())
RMSE = Score("rmse", "RMSE", "", "", False, lambda errors, samples: (errors[..., 1] / samples.double()).sqrt())
SCORES = {score.name: score for score in (ACCURACY, MAE, RMSE)}


def scores_of(sums: Tensor) -> tuple[Score, ...]:
    """The scores that follow from sums, the main one first: of classes the accuracy, of numbers MAE and RMSE."""
    return (MAE, RMSE) if sums.is_floating_point() else (ACCURACY,)


def main_score(names: Container[str]) -> Score:
    """The main score of a table that has these keys.

    >>> main_score({"mae": 1.0, "rmse": 2.0}).title
    'MAE'
    """
    return next(score for score in SCORES.values() if score.name in names)
