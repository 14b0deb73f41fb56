"""The result of one method of a run: its metrics, sums and models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, nn

from fedtilt.data.groups import CLASS
from fedtilt.data.naming import client_number
from fedtilt.data.targets import NumericTarget
from fedtilt.engine.client import build_client_model
from fedtilt.engine.client_states import ClientStates
from fedtilt.errors import InputError
from fedtilt.evaluation.certificate import Certificate
from fedtilt.evaluation.groups import GroupMetrics
from fedtilt.evaluation.metrics import GroupCounts, Metrics
from fedtilt.evaluation.metrics_frame import MetricsFrame, as_samples, metrics_frame
from fedtilt.evaluation.predictions import Predictions
from fedtilt.evaluation.reliability import ReliabilityBin, reliability_curve
from fedtilt.evaluation.summary import Summary
from fedtilt.methods import Method
from fedtilt.models import in_target_unit
from fedtilt.parts import Parts, Tensors
from fedtilt.privacy.gaussian_mechanism import PrivacyLoss


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One method at the end of a run."""

    method: Method
    history: list[tuple[int, Summary]]  # (round, metrics) of every evaluated round
    sums: Tensor  # of the evaluated models, see `scores`: (N, K) correct predictions, or (N, K, 2) errors
    total: Tensor  # (N, K) test samples
    validation: Metrics | None = None  # of the evaluated models on validation data, if there is any
    client_names: tuple[str, ...]
    group_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # that of `sums` first; empty: numbers
    group_counts: Mapping[str, GroupCounts] = field(default_factory=dict)  # sums and samples of each grouping
    _net: nn.Module
    _parts: Parts
    _server: Tensors  # what the server keeps
    _target: NumericTarget | None = None  # the scale of the targets if they are numbers
    _client_states: ClientStates | None = None  # None: what clients keep is not on this machine
    _predict: Callable[[], Predictions] | None = None  # None: the test data is not on this machine

    @property
    def summary(self) -> Summary:
        """The metrics after the last round."""
        return self.history[-1][1]

    @property
    def metrics(self) -> Metrics:
        """The metrics of the evaluated models after the last round."""
        return self.summary.evaluated

    @property
    def accuracy(self) -> float:
        """Mean accuracy over clients, in percent."""
        return self.metrics.accuracy

    @property
    def mae(self) -> float:
        """Mean over clients of the mean absolute error, in the unit of the target."""
        return self.metrics.mae

    @property
    def rmse(self) -> float:
        """Mean over clients of the root mean squared error, in the unit of the target."""
        return self.metrics.rmse

    @property
    def client_fairness(self) -> float:
        """Standard deviation over clients of the accuracy, in points, or of the MAE: lower is fairer."""
        return self.metrics.client_fairness

    @property
    def group(self) -> str:
        """The grouping of `sums`: what `tau` tilts over."""
        return next(iter(self.group_names), CLASS)

    @property
    def groups(self) -> Mapping[str, GroupMetrics]:
        """Scores, spread and worst group by grouping, such as "class" or a column; empty if there is only one."""
        return self.summary.groups

    @property
    def attack_success(self) -> float | None:
        """Of a backdoor: % of honest clients' samples with the trigger that become the target class; None: no backdoor.

        Samples of the target class do not count.
        """
        return self.summary.attack_success

    @property
    def privacy(self) -> PrivacyLoss | None:
        """Epsilon and delta of the shared model after the last round; None: the run has no privacy."""
        return self.summary.privacy

    @property
    def client_data_fairness(self) -> tuple[float, float]:
        """Mean and std over clients of the std of the score over a client's classes or groups: lower is fairer."""
        return self.metrics.client_data_fairness

    def table(self, by: str | None = None) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """Sums (see `scores`) and test samples by client and group, and the groups' names.

        Args:
            by: "class", "range" or a column of groups; left out: what `tau` tilts over
        """
        by = by or self.group
        if not self.group_counts and by == CLASS:
            return self.sums, self.total, tuple(map(str, range(self.total.shape[1])))
        if by not in self.group_counts:
            known = ", ".join(map(repr, self.group_counts or [CLASS]))
            raise InputError(
                f"by = {by!r} is no grouping of this run, which has {known}; name the column in data.group"
            )
        return *self.group_counts[by], self.group_names[by]

    def certificate(self, confidence: float = 0.95, by: str | None = None) -> Certificate:
        """Lower bounds of the accuracy of all clients, and of their classes or groups; `print` shows the statement."""
        correct, total, _ = self.table(by)
        return Certificate(correct, total, confidence, by or self.group)

    @cached_property
    def predictions(self) -> Predictions:
        """What the evaluated models predict on the test data of all clients."""
        if self._predict is None:
            raise InputError("there are no predictions: the test data is on the clients' own machines")
        return self._predict()

    def metrics_frame(
        self,
        metrics: Sequence[str] | str | None = None,
        *,
        by: str | None = "client",
        positive: str | None = None,
        confidence: float = 0.95,
        resamples: int = 1000,
    ) -> MetricsFrame:
        """Metrics of the predictions overall and by group, with intervals, in the manner of fairlearn.

        Args:
            metrics: names of metrics, such as "auroc"; left out: a selection
            by: "client", "class" (each class against all others), "range" (of numbers as targets) or a column of
                groups; None: only overall
            positive: the class that all metrics are about, against all others; left out: means over classes
            confidence: of the intervals
            resamples: of the bootstrap; 0: only exact intervals
        """
        return metrics_frame(
            self.predictions, metrics, by=by, positive=positive, confidence=confidence, resamples=resamples
        )

    def reliability_curve(self, positive: str | None = None) -> list[ReliabilityBin]:
        """Accuracy by confidence of the prediction; with `positive`, the share of that class by its probability."""
        return reliability_curve(as_samples(self.predictions, positive))

    @property
    def shared(self) -> nn.Module:
        """The shared model; its local parts are the initial ones, and so are its buffers unless they are averaged."""
        return in_target_unit(build_client_model(self._net, self._parts, self._server, {}), self._target)

    def shared_of(self, client: int | str) -> nn.Module:
        """The shared model with the local parts and buffers of a client."""
        return self._model(client, personal=False)

    def personal(self, client: int | str) -> nn.Module:
        """The personal model of a client, by number or name; of one that was never selected, the shared model."""
        if not self.method.has_personal:
            raise InputError(f"method {self.method.name!r} has no personal models; use shared, or model({client!r})")
        return self.model(client)

    def model(self, client: int | str) -> nn.Module:
        """The model that a client uses, by number or name.

        Its personal model if it has one; otherwise the shared model, with the local parts and buffers of the client.
        """
        return self._model(client, personal=True)

    def _model(self, client: int | str, *, personal: bool) -> nn.Module:
        owner = self.method.name, client_number(client, self.client_names)
        kept = {} if self._client_states is None else self._client_states.get(owner)
        model = build_client_model(self._net, self._parts, self._server, kept, personal=personal)
        return in_target_unit(model, self._target)
