"""What models predict on all test samples, with what the samples can be grouped by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedtilt.data.groups import CLASS
from fedtilt.data.targets import RANGE
from fedtilt.engine.client_states import FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.groups import Grouping, groupings
from fedtilt.executors.in_process import one_thread
from fedtilt.methods import Method

CLIENT = "client"


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """What one method's evaluated models predict on the test data, ordered by client."""

    outputs: Tensor  # probabilities, (S, K) float32; of numbers, predictions in their unit, (S,) float64
    groupings: Mapping[str, Grouping]  # "client", "class" or "range", and the columns of groups
    numbers: Tensor | None = None  # (S,) the targets if they are numbers, float32

    @property
    def probabilities(self) -> Tensor:
        """Predicted probabilities of the classes, (S, K) float32."""
        if self.numbers is not None:
            raise InputError("there are no probabilities of numbers; use outputs, the predicted numbers")
        return self.outputs

    @property
    def labels(self) -> Tensor:
        """The true class of each sample, or the range of its target, (S,)."""
        return self.groupings[self._label_group].codes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or of the ranges of the target."""
        return self.groupings[self._label_group].names

    @property
    def _label_group(self) -> str:
        return CLASS if self.numbers is None else RANGE

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
    _, y, clients = federation.evaluation("test")
    numbers = None if federation.target is None else y
    by = {CLIENT: Grouping(CLIENT, federation.client_names, clients)} | groupings(federation)
    with one_thread(prepared.device):  # on small models, several threads wait for each other more than they work
        evaluator = Evaluator(federation, prepared.net, prepared.parts, prepared.device)
        outputs = {m.name: evaluator.predictions(m, state) for m in methods}
    return {name: Predictions(outputs=found, groupings=by, numbers=numbers) for name, found in outputs.items()}
