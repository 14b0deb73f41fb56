"""The results of one method, or of a baseline, at the end of a run: metrics, sums, predictions and models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, nn

from fedtilt.data.naming import client_number
from fedtilt.data.targets import Target
from fedtilt.engine.client import build_client_model
from fedtilt.engine.client_states import ClientStates
from fedtilt.errors import InputError
from fedtilt.evaluation import true_spread as spread
from fedtilt.evaluation.certificate import Certificate
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.evaluation.metrics import GroupCounts, GroupMetrics, Metrics, counts_of_chance
from fedtilt.evaluation.metrics_frame import MetricsFrame, metrics_frame, with_targets
from fedtilt.evaluation.prediction_sets import PredictionSets
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.evaluation.weighted_predictions import ReliabilityBin, reliability_curve
from fedtilt.methods import Method
from fedtilt.models import in_target_unit
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import PrivacyLoss
from fedtilt.state import ClientState, ServerState


@dataclass(frozen=True, kw_only=True, repr=False)
class EvaluatedResult:
    """What was evaluated at the end of a run: the models of a method, or a baseline."""

    name: str
    history: list[tuple[int, RoundMetrics]]  # (round, metrics) of every evaluated round
    group_counts: Mapping[str, GroupCounts]  # sums and samples by grouping, first that which `tau` tilts over
    validation: Metrics | None = None  # of the evaluated models on validation data, if there is any
    client_names: tuple[str, ...]
    fixed_shares: bool = False  # of the classes in each client's test samples: chance is within classes
    group_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by grouping; empty: numbers
    threshold: Threshold | None = None  # on the probability of a rare class, chosen on validation data
    _predict: Callable[[], Predictions] | None = None  # None: the test data is not on this machine

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.metrics.in_words()})"

    @property
    def summary(self) -> RoundMetrics:
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

    def score(self, name: str) -> float:
        """The mean over clients of a score by name, such as "perplexity" or "label_accuracy"."""
        return self.metrics.value(name)

    @property
    def client_fairness(self) -> float:
        """Standard deviation over clients of the main score, of the accuracy in points: lower is fairer."""
        return self.metrics.client_fairness

    @property
    def group(self) -> str:
        """The grouping of `sums`: what `tau` tilts over."""
        return next(iter(self.group_counts))

    @property
    def sums(self) -> Tensor:
        """Sums of the evaluated models, see `scores`: (N, K) correct predictions, or (N, K, sums)."""
        return self.group_counts[self.group].sums

    @property
    def total(self) -> Tensor:
        """Test samples by client and group, (N, K)."""
        return self.group_counts[self.group].total

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
    def client_data_fairness(self) -> tuple[float, float] | None:
        """Mean and std over clients of the std of the score over a client's classes or groups: lower is fairer.

        None: the samples have neither.
        """
        return self.metrics.client_data_fairness

    def table(self, by: str | None = None) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """Sums and test samples by client and group (see `scores`), and the groups' names.

        Args:
            by: "class", "range", "all" or a column of groups; default: what `tau` tilts over
        """
        by = by or self.group
        if by not in self.group_counts:
            known = f"this run, which has {', '.join(map(repr, self.group_counts))}"
            raise InputError(f"by = {by!r} is no grouping of {known}; name the column in data.group")
        sums, total = self.group_counts[by]
        return sums, total, self.group_names.get(by) or tuple(map(str, range(total.shape[1])))

    def certificate(self, confidence: float = 0.95, by: str | None = None) -> Certificate:
        """Lower bounds of the accuracy of all clients, and of their classes or groups; `print` shows the statement."""
        sums, total, _ = self.table(by)
        return Certificate.of(sums, total, confidence, by or self.group)

    def true_spread(self, over: str = CLIENT, by: str | None = None, confidence: float = 0.95) -> spread.TrueSpread:
        """How far the true scores are apart: fairness beyond the chance of few test samples, with an interval.

        Args:
            over: "client"; "group": classes or groups, on the samples of all clients; or "group in client"
            by: "class", "range" or a column of groups; default: what `tau` tilts over
            confidence: of the interval
        """
        sums, total, _ = self.table(by)
        if over == "group":
            return spread.true_spread(sums.sum(0)[:, None], total.sum(0)[:, None], confidence)
        if over == "group in client":
            return spread.true_spread_in_clients(sums, total, confidence)
        if over != CLIENT:
            raise InputError(f"over = {over!r} is not possible; choose 'client', 'group' or 'group in client'")
        return spread.true_spread(*self._of_chance, confidence, fixed_shares=self.fixed_shares)

    def client_estimates(self, confidence: float = 0.95) -> spread.ClientEstimates:
        """The true score of every client, shrunk towards the mean (empirical Bayes), with an interval."""
        return spread.client_estimates(*self._of_chance, confidence, fixed_shares=self.fixed_shares)

    @property
    def _of_chance(self) -> GroupCounts:
        return counts_of_chance(self.group_counts, self.fixed_shares)

    @cached_property
    def predictions(self) -> Predictions:
        """What the evaluated models predict on the test data of all clients."""
        if self._predict is None:
            raise InputError("there are no predictions: the test data is on the clients' own machines")
        return self._predict()

    def metrics_frame(
        self, metrics: Sequence[str] | str | None = None, *, by: str | None = "client", positive: str | None = None,
        confidence: float = 0.95, resamples: int = 1000,
    ) -> MetricsFrame:  # fmt: skip
        """Metrics of the predictions overall and by group, with intervals: see `metrics_frame.metrics_frame`.

        The threshold decides what is predicted if there is one, as in exported models.
        """
        return metrics_frame(
            self.predictions, metrics, by=by, positive=positive, confidence=confidence, resamples=resamples,
            threshold=self.threshold,
        )  # fmt: skip

    def reliability_curve(self, positive: str | None = None) -> list[ReliabilityBin]:
        """Accuracy by confidence of the prediction; with `positive`, the share of that class by its probability."""
        return reliability_curve(with_targets(self.predictions, positive))


@dataclass(frozen=True, kw_only=True, repr=False)
class MethodResult(EvaluatedResult):
    """One method at the end of a run."""

    method: Method
    _net: nn.Module
    _parts: Parts
    _server: ServerState
    _target: Target | None = None  # what the targets are; None: classes
    _client_states: ClientStates | None = None  # None: on other machines
    _declared_sets: Callable[[float, float], PredictionSets] | None = None  # of sites; None: data is on this machine

    @property
    def shared(self) -> nn.Module:
        """The shared model; its local parts are the initial ones, and so are its buffers unless they are averaged."""
        return in_target_unit(build_client_model(self._net, self._parts, self._server, ClientState()), self._target)

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

    def has_own_model(self, client: int | str) -> bool:
        """Whether the model of a client differs from the shared one: personal, or with local parts or buffers."""
        owner = self.method.name, client_number(client, self.client_names)
        return self._client_states is not None and not self._client_states.get(owner).is_empty

    def prediction_sets(self, coverage: float = 0.9, bad_share: float = 0.0) -> PredictionSets:
        """The classes, or the interval, that contain the truth with this probability, for every client.

        They are calibrated on validation data: see docs/predicting.md.

        Args:
            coverage: the least probability that a set contains the truth
            bad_share: the share of clients that may report anything, where a client needs the samples of others
        """
        return (self._declared_sets or self.predictions.prediction_sets)(coverage, bad_share)

    def _model(self, client: int | str, *, personal: bool) -> nn.Module:
        owner = self.method.name, client_number(client, self.client_names)
        kept = ClientState() if self._client_states is None else self._client_states.get(owner)
        model = build_client_model(self._net, self._parts, self._server, kept, personal=personal)
        return in_target_unit(model, self._target)


Baselines = Mapping[str, EvaluatedResult]  # by name
