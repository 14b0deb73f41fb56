"""Predicted probabilities of all test samples, with what the samples can be grouped by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedtilt.data.groups import CLASS
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.groups import Grouping, groupings
from fedtilt.methods import Method
from fedtilt.rounds.client_states import FederationState
from fedtilt.rounds.executors import one_thread
from fedtilt.rounds.prepare import PreparedRun

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

    def counts(self, by: str = CLASS) -> tuple[Tensor, Tensor]:
        """Correct predictions and samples, both (clients, groups)."""
        clients, groups = self.groupings[CLIENT], self.groupings[by]
        shape = len(clients.names), len(groups.names)
        cell = clients.codes * shape[1] + groups.codes
        total = cell.bincount(minlength=shape[0] * shape[1]).reshape(shape)
        correct = cell[self.probabilities.argmax(1) == self.labels]
        return correct.bincount(minlength=shape[0] * shape[1]).reshape(shape), total


def predict(prepared: PreparedRun, methods: Sequence[Method], state: FederationState) -> dict[str, Predictions]:
    """What the evaluated models of methods predict on the test data of all clients."""
    federation = prepared.federation
    _, _, clients = federation.evaluation("test")
    by = {CLIENT: Grouping(CLIENT, federation.client_names, clients)} | groupings(federation)
    with one_thread(prepared.device):  # on small models, several threads wait for each other more than they work
        evaluator = Evaluator(federation, prepared.net, prepared.parts, prepared.device)
        return {m.name: Predictions(probabilities=evaluator.probabilities(m, state), groupings=by) for m in methods}
