"""Predicted probabilities of all test samples, with what the samples can be grouped by."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedtilt.data import Federation
from fedtilt.data.groups import CLASS
from fedtilt.evaluation.groups import Grouping, groupings

CLIENT = "client"


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """What one method's evaluated models predict on the test data, ordered by client."""

    probabilities: Tensor  # (S, K) float32
    groupings: Mapping[str, Grouping]  # "client", "class", and the columns of groups

    @property
    def labels(self) -> Tensor:
        """The true class of each sample, (S,)."""
        return self.groupings[CLASS].codes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names."""
        return self.groupings[CLASS].names


def test_groupings(federation: Federation) -> dict[str, Grouping]:
    """What the test samples can be grouped by: the client, the class, and the columns of groups."""
    _, _, clients = federation.evaluation("test")
    return {CLIENT: Grouping(CLIENT, federation.client_names, clients)} | groupings(federation)
