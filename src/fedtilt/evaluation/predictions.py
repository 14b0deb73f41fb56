"""What models predict on all test samples, with what the samples can be grouped by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.data.groups import CLASS, in_words
from fedtilt.data.targets import ALL, RANGE, TABLE_TASKS, TARGETS, NumericTarget
from fedtilt.engine.client_states import FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.errors import InputError
from fedtilt.evaluation.decision_metrics import Threshold, choose_threshold
from fedtilt.evaluation.evaluator import Evaluator, Grouping, groupings
from fedtilt.evaluation.prediction_sets import ConformityScores, PredictionSets, class_bins, number_bins
from fedtilt.evaluation.scores import error_sums
from fedtilt.executors.in_process import one_thread
from fedtilt.methods import Method

CLIENT = "client"
RARE = 0.1  # the largest share of a rare class


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Predictions:
    """What one method's evaluated models predict on the test data, ordered by client."""

    outputs: Tensor  # probabilities (S, K), float32; of other tasks what `Evaluator.predictions` returns, float64
    groupings: Mapping[str, Grouping]  # "client", "class", "range" or "all", and the columns of groups
    numbers: Tensor | None = None  # (S,) the targets if they are numbers, float32
    scores: ConformityScores | None = None  # on validation data; None: there is none

    @property
    def probabilities(self) -> Tensor:
        """Predicted probabilities of the classes, (S, K) float32."""
        if self.numbers is not None:
            raise InputError("there are no probabilities of numbers; use outputs, the predicted numbers")
        if not self.of_classes:
            raise InputError("there are no probabilities of classes here; outputs has the sums of every sample")
        return self.outputs

    @property
    def task(self) -> str:
        """What is predicted, by the sums of a sample."""
        if self.of_classes or self.numbers is not None:
            return "classification" if self.of_classes else "regression"
        return next(cls.task for cls in TARGETS.values() if cls.sums == self.outputs.shape[1])

    @property
    def of_classes(self) -> bool:
        """Whether classes are predicted."""
        return self.label_group == CLASS

    @property
    def labels(self) -> Tensor:
        """The true class of each sample, or the group of its target, (S,)."""
        return self.groupings[self.label_group].codes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or of the groups of the target."""
        return self.groupings[self.label_group].names

    @property
    def rarer_class(self) -> int | None:
        """Of two classes, the one with fewer test samples (of equals, the second); None: there are not two."""
        if not self.of_classes or len(self.class_names) != 2:
            return None
        first, second = self.labels.bincount(minlength=2).tolist()
        return 0 if first < second else 1

    @property
    def rare_class(self) -> str | None:
        """The rarer of two classes if at most a tenth of the test samples are of it; accuracy then says little."""
        rarer = self.rarer_class
        if rarer is None:
            return None
        count = int((self.labels == rarer).sum())
        return self.class_names[rarer] if 0 < count <= RARE * len(self.labels) else None

    @property
    def label_group(self) -> str:
        """The name of the groups that follow from the targets."""
        return RANGE if self.numbers is not None else ALL if ALL in self.groupings else CLASS

    def __repr__(self) -> str:
        what = f"{len(self.class_names)} classes" if self.of_classes else in_words(self.label_group)
        return f"Predictions({len(self.outputs):,} test samples, {what}, by {', '.join(self.groupings)})"

    def prediction_sets(self, coverage: float = 0.9, bad_share: float = 0.0) -> PredictionSets:
        """Sets that contain the truth with this probability: see `prediction_sets.PredictionSets`."""
        if self.task not in TABLE_TASKS:
            raise InputError(f"prediction sets are of classes and numbers, and the data has {TARGETS[self.task].words}")
        if self.scores is None:
            remedy = "train with clients.validation = 0.2 in the spec (validation=0.2 of Federation.build)"
            without = "the run has none (rows by time do not count, since data drifts)"
            raise InputError(f"prediction sets need validation data, and {without}; {remedy}")
        clients = self.groupings[CLIENT]
        targets = self.labels if self.numbers is None else self.numbers
        bins = score_bins(self.outputs, targets, self.scores.deviation)
        sizes = clients.codes.bincount(minlength=len(clients.names)).tolist()
        return PredictionSets(self.scores, bins.split(sizes), clients.names, coverage, bad_share, self.outputs)

    def sums(self) -> Tensor:
        """What `metrics` sums of every sample: whether it is right (S,), int64, or float64 (S, sums)."""
        if self.of_classes:
            return (self.probabilities.argmax(1) == self.labels).long()
        if self.numbers is None:
            return self.outputs
        return error_sums(self.outputs - self.numbers.double())

    def counts(self, by: str | None = None) -> tuple[Tensor, Tensor]:
        """Sums as in `metrics` and samples, both by client and group; default: by the groups of the targets."""
        return self.table(self.sums(), by)

    def table(self, values: Tensor, by: str | None = None) -> tuple[Tensor, Tensor]:
        """Sums of values of the samples (S, …) and samples, by client and group as in `counts`."""
        clients, groups = self.groupings[CLIENT], self.groupings[by or self.label_group]
        shape = len(clients.names), len(groups.names)
        cell = clients.codes * shape[1] + groups.codes
        total = cell.bincount(minlength=shape[0] * shape[1]).reshape(shape)
        sums = values.new_zeros(shape[0] * shape[1], *values.shape[1:]).index_add_(0, cell, values)
        return sums.reshape(*shape, *values.shape[1:]), total


def predict(prepared: PreparedRun, methods: Sequence[Method], state: FederationState) -> dict[str, Predictions]:
    """What the evaluated models of methods predict on the test data of all clients, and their validation scores."""
    with one_thread(prepared.device):  # on small models, several threads wait for each other more than they work
        evaluator = Evaluator(prepared.federation, prepared.net, prepared.parts, prepared.device)
        outputs = {m.name: evaluator.predictions(m, state) for m in methods}
        scores = {}
        if any(map(len, prepared.federation.validation_index)) and has_prediction_sets(prepared.federation):
            evaluator = Evaluator(prepared.federation, prepared.net, prepared.parts, prepared.device, "validation")
            scores = {m.name: conformity_scores(prepared.federation, evaluator.predictions(m, state)) for m in methods}
    return predictions_of(prepared.federation, outputs, scores)


def score_bins(outputs: Tensor, targets: Tensor, deviation: float | None) -> Tensor:
    """The bins of the scores of the true classes or, with a deviation, of numbers, (S,)."""
    if deviation is not None:
        return number_bins(outputs, targets, deviation)
    return class_bins(outputs).gather(1, targets[:, None])[:, 0]


def has_prediction_sets(federation: Federation) -> bool:
    """Whether there are prediction sets: of classes and numbers, and not of rows by time, whose newer ones differ."""
    return federation.dataset.task in TABLE_TASKS and federation.dataset.split != "time"


def conformity_scores(federation: Federation, outputs: Tensor) -> ConformityScores:
    """The scores of outputs on the validation data of all clients, ordered by client.

    Rows that are split by person, or another group, count as one of each, drawn at random: those of a person are alike.
    """
    deviation = federation.target.deviation if isinstance(federation.target, NumericTarget) else None
    bins = score_bins(outputs, federation.evaluation("validation")[1], deviation)
    by_client = bins.split([len(rows) for rows in federation.validation_index])
    persons = federation.dataset.split_group_train
    if persons is not None:
        rng = seeds.generator(seeds.key(federation.seed, "one validation row of each person"))
        pairs = zip(by_client, federation.validation_index, strict=True)
        by_client = tuple(found[_one_of_each(persons[rows].numpy(), rng)] for found, rows in pairs)
    return ConformityScores(by_client, deviation)


def _one_of_each(numbers: np.ndarray, rng: np.random.Generator) -> Tensor:
    """A random position of every distinct number."""
    order = rng.permutation(len(numbers))
    return torch.from_numpy(order[np.unique(numbers[order], return_index=True)[1]])


def choose_thresholds(prepared: PreparedRun, methods: Sequence[Method], state: FederationState) -> dict[str, Threshold]:
    """By method, the threshold of a rare class that is best on the validation data of all clients; empty: none is rare.

    At most `RARE` of the validation samples are of a rare class; a model that predicts the most probable class may
    never predict it.
    """
    federation = prepared.federation
    if federation.target is not None or federation.classes != 2:
        return {}
    labels = federation.evaluation("validation")[1]
    counts = labels.bincount(minlength=2)
    rarer = int(counts.argmin())
    if not 0 < int(counts[rarer]) <= RARE * len(labels):
        return {}
    with one_thread(prepared.device):
        evaluator = Evaluator(federation, prepared.net, prepared.parts, prepared.device, "validation")
        outputs = {m.name: evaluator.predictions(m, state)[:, rarer] for m in methods}
    name = federation.class_names[rarer]
    return {method: choose_threshold(name, found, labels == rarer) for method, found in outputs.items()}


def predictions_of(
    federation: Federation, outputs: Mapping[str, Tensor], scores: Mapping[str, ConformityScores] | None = None
) -> dict[str, Predictions]:
    """Outputs on the test data of all clients, ordered by client, with what the samples can be grouped by."""
    _, y, clients = federation.evaluation("test")
    numbers = y if isinstance(federation.target, NumericTarget) else None
    by = {CLIENT: Grouping(CLIENT, federation.client_names, clients)} | groupings(federation)
    known = scores or {}
    return {n: Predictions(outputs=o, groupings=by, numbers=numbers, scores=known.get(n)) for n, o in outputs.items()}
