"""A threshold on the probability of one class, in place of the most probable class."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtilt.checks import number
from fedtilt.errors import InputError


class Threshold(NamedTuple):
    """Predict a class if its probability is at least `value`, and otherwise the most probable of the others.

    The metadata of an exported model has it as JSON under `threshold`, and so has thresholds.json in the folder of a
    seed, by method: `{"class": "ill", "value": 0.31, "by": "f1"}`.

    >>> Threshold("ill", 0.3).classes(torch.tensor([[0.35, 0.65], [0.2, 0.8]]), ["ill", "well"]).tolist()
    [0, 1]
    """

    name: str  # of the class
    value: float
    by: str | None = None  # what it was chosen by, such as f1; None: by hand

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Threshold":
        """The inverse of `to_json`."""
        return cls(str(values["class"]), _share(values["value"]), values.get("by"))

    @classmethod
    def from_text(cls, text: str) -> "Threshold":
        """A threshold that is written as CLASS=VALUE."""
        name, equals, value = text.rpartition("=")
        try:
            return cls(name, _share(float(value)) if equals else float(name))
        except ValueError:
            why = f"threshold {text!r} must be CLASS=VALUE with a value in [0, 1], such as ill=0.3"
            raise InputError(why) from None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"class": self.name, "value": self.value} | ({} if self.by is None else {"by": self.by})

    def in_words(self) -> str:
        """One sentence.

        >>> Threshold("ill", 0.31, "f1").in_words()
        "'ill' if its probability is at least 0.31 (chosen by f1), else the most probable other class"
        """
        at_least = f"at least {self.value:g}" + ("" if self.by is None else f" (chosen by {self.by})")
        return f"{self.name!r} if its probability is {at_least}, else the most probable other class"

    def check(self, class_names: Sequence[str]) -> None:
        """Raise InputError if there is no such class."""
        if self.name not in class_names:
            raise InputError(f"the threshold is for class {self.name!r}; the classes are {', '.join(class_names)}")

    def classes(self, probabilities: Tensor, class_names: Sequence[str]) -> Tensor:
        """The predicted class of each row of probabilities (n, K), int64."""
        self.check(class_names)
        own = list(class_names).index(self.name)
        others = probabilities.clone()
        others[:, own] = -1.0
        return torch.where(probabilities[:, own] >= self.value, own, others.argmax(1))


def choose_threshold(name: str, probability: Tensor, is_class: Tensor) -> Threshold:
    """The threshold with the highest F1 on samples, in the middle between the two probabilities that it separates.

    >>> found = choose_threshold("ill", torch.tensor([0.9, 0.4, 0.3, 0.1]), torch.tensor([True, True, False, False]))
    >>> round(found.value, 2)
    0.35

    `probability` is that of the class, (S,), and `is_class` says whether a sample is of it; some are.
    """
    ordered, order = probability.double().sort(descending=True, stable=True)
    hits = is_class[order].cumsum(0)
    predicted = torch.arange(1, len(ordered) + 1)
    f1 = 2 * hits / (predicted + int(is_class.sum()))
    is_last = torch.cat([ordered[1:] < ordered[:-1], torch.tensor([True])])  # samples with one probability go together
    best = int(torch.where(is_last, f1, -1.0).argmax())
    below = float(ordered[best + 1]) if best + 1 < len(ordered) else 0.0
    return Threshold(name, (float(ordered[best]) + below) / 2, "f1")


def _share(value: Any) -> float:
    value = number(value, "a threshold")
    if not 0 <= value <= 1:
        raise InputError(f"a threshold is {value:g}; it is compared with a probability, in [0, 1]")
    return value
