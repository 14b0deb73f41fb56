"""The results of a run: metrics, counts and models of every method."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from fedtilt.audit.clients import ClientAudit, audit_clients
from fedtilt.audit.samples import Audit, audit_samples, most_robust
from fedtilt.data import Federation
from fedtilt.data.groups import CLASS
from fedtilt.data.naming import client_number
from fedtilt.errors import InputError
from fedtilt.evaluation.certificate import Certificate
from fedtilt.evaluation.groups import GroupMetrics, measure_groups
from fedtilt.evaluation.metrics import Counts, GroupCounts, Metrics, measure
from fedtilt.evaluation.metrics_frame import MetricsFrame, as_samples, metrics_frame
from fedtilt.evaluation.predictions import Predictions
from fedtilt.evaluation.reliability import ReliabilityBin, reliability_curve
from fedtilt.methods import Method
from fedtilt.parts import Parts, Tensors
from fedtilt.rounds.client_states import ClientStates
from fedtilt.rounds.gaussian_mechanism import PrivacyLoss
from fedtilt.rounds.round import build_client_model
from fedtilt.rounds.update_distances import distances_by_round


class Summary(NamedTuple):
    """Metrics of one method after one round, of its shared and its personal models."""

    shared: Metrics
    personal: Metrics | None  # None: the method has no personal models
    ever_selected: Metrics | None  # personal, without clients never selected; None: all were selected
    clean: Metrics | None  # evaluated, over clients without outliers; None unless only some have outliers
    never_selected: int  # how many clients
    privacy: PrivacyLoss | None = None  # of the shared model; None: the run has no privacy
    groups: Mapping[str, GroupMetrics] = MappingProxyType({})  # evaluated, by grouping; empty: the data names no groups

    @property
    def evaluated(self) -> Metrics:
        """The metrics of the personal models if the method has them, otherwise of the shared model."""
        return self.personal or self.shared

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        names = ("shared", "personal", "ever_selected", "clean")
        parts = {name: value and asdict(value) for name in names for value in [getattr(self, name)]}
        privacy = {} if self.privacy is None else {"privacy": self.privacy._asdict()}
        groups = {name: found.to_json() for name, found in self.groups.items()}
        return parts | {"never_selected": self.never_selected} | privacy | ({"groups": groups} if groups else {})

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Summary":
        """From JSON values."""

        def metrics(part: dict[str, Any] | None) -> Metrics | None:
            if part is None:
                return None
            return Metrics(**(part | {"client_data_fairness": tuple(part["client_data_fairness"])}))

        shared = metrics(values["shared"])
        assert shared is not None
        return cls(
            shared,
            metrics(values["personal"]),
            metrics(values["ever_selected"]),
            metrics(values["clean"]),
            values["never_selected"],
            PrivacyLoss(**values["privacy"]) if "privacy" in values else None,
            {name: GroupMetrics.from_json(found) for name, found in values.get("groups", {}).items()},
        )


def evaluated_counts(counts: Counts) -> Tensor:
    """Correct predictions (N, K) of the personal models if the method has them, otherwise of the shared model."""
    return counts.shared if counts.personal is None else counts.personal


def group_counts(counts: Counts, total: Tensor, names: Iterable[str]) -> dict[str, GroupCounts]:
    """The counts of the evaluated models by grouping: the classes first, then the columns of groups."""
    return dict(zip(names, [GroupCounts(evaluated_counts(counts), total), *counts.groups], strict=True))


def summarise(
    counts: Counts, total: Tensor, has_outliers: Tensor, groups: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Summary:
    """All metrics of one method from its counts; `groups` are the names that `group_names` gives."""
    evaluated = evaluated_counts(counts)
    ever_selected = None
    if counts.personal is not None and counts.never_selected.any() and total[~counts.never_selected].any():
        ever_selected = measure(counts.personal[~counts.never_selected], total[~counts.never_selected])
    only_some = has_outliers.any() and not has_outliers.all() and total[~has_outliers].any()
    return Summary(
        shared=measure(counts.shared, total),
        personal=None if counts.personal is None else measure(counts.personal, total),
        ever_selected=ever_selected,
        clean=measure(evaluated[~has_outliers], total[~has_outliers]) if only_some else None,
        never_selected=int(counts.never_selected.sum()),
        groups={
            name: measure_groups(found, groups[name]) for name, found in group_counts(counts, total, groups).items()
        }
        if groups
        else {},
    )


def summarise_all(
    counts: Mapping[str, Counts] | None,
    total: Tensor | None,
    has_outliers: Tensor,
    privacy: PrivacyLoss | None = None,
    groups: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> dict[str, Summary]:
    """`summarise` for every method; empty if the round was not evaluated."""
    if counts is None or total is None:
        return {}
    summaries = {name: summarise(found, total, has_outliers, groups) for name, found in counts.items()}
    return {name: summary._replace(privacy=privacy) for name, summary in summaries.items()}


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One method at the end of a run."""

    method: Method
    history: list[tuple[int, Summary]]  # (round, metrics) of every evaluated round
    correct: Tensor  # (N, K) correct predictions of the evaluated models
    total: Tensor  # (N, K) test samples
    validation: Metrics | None = None  # of the evaluated models on validation data, if there is any
    client_names: tuple[str, ...]
    class_names: tuple[str, ...] = ()  # empty: classes are named by their numbers
    group_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "class" and columns of groups, if any
    group_counts: Mapping[str, GroupCounts] = field(default_factory=dict)  # correct and total (N, groups) of each
    _net: nn.Module
    _parts: Parts
    _server: Tensors  # what the server keeps
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
    def client_fairness(self) -> float:
        """Standard deviation of accuracy over clients, in points: lower is fairer."""
        return self.metrics.client_fairness

    @property
    def groups(self) -> Mapping[str, GroupMetrics]:
        """Accuracy, spread and worst group by grouping: "class" and the columns of groups; empty without columns."""
        return self.summary.groups

    @property
    def privacy(self) -> PrivacyLoss | None:
        """Epsilon and delta of the shared model after the last round; None: the run has no privacy."""
        return self.summary.privacy

    @property
    def client_data_fairness(self) -> tuple[float, float]:
        """Mean and standard deviation over clients of the std of a client's per-class accuracy: lower is fairer."""
        return self.metrics.client_data_fairness

    def table(self, by: str = CLASS) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """Correct predictions and test samples, (clients, groups), and the groups' names, by class or column."""
        if by == CLASS:
            return self.correct, self.total, self.class_names or tuple(map(str, range(self.total.shape[1])))
        if by not in self.group_counts:
            known = ", ".join(map(repr, self.group_counts or [CLASS]))
            raise InputError(
                f"by = {by!r} is no grouping of this run, which has {known}; name the column in data.group"
            )
        return *self.group_counts[by], self.group_names[by]

    def certificate(self, confidence: float = 0.95, by: str = CLASS) -> Certificate:
        """Lower bounds of the accuracy of all clients, and of their classes or groups; `print` shows the statement."""
        correct, total, _ = self.table(by)
        return Certificate(correct, total, confidence, by)

    @cached_property
    def predictions(self) -> Predictions:
        """Predicted probabilities of the evaluated models on the test data of all clients."""
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
            by: "client", "class" (each class against all others) or a column of groups; None: only overall
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
        return build_client_model(self._net, self._parts, self._server, {})

    def shared_of(self, client: int | str) -> nn.Module:
        """The shared model with the local parts and buffers of a client."""
        return self._model(client, personal=False)

    def personal(self, client: int | str) -> nn.Module:
        """The personal model of a client, by number or name; of one that was never selected, the shared model."""
        if not self.method.personal:
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
        return build_client_model(self._net, self._parts, self._server, kept, personal=personal)


def over_seeds(results: Mapping[int, "Result"]) -> dict[str, Any]:
    """The comparison table as JSON values: every metric of every method, its mean and std over the seeds.

    If there is validation data, `validation` has the same metrics on it.
    """
    methods = {}
    for name in next(iter(results.values())):
        by_seed = [result[name] for result in results.values()]
        validation = [r.validation for r in by_seed if r.validation is not None]
        methods[name] = (
            _mean_and_std([r.metrics for r in by_seed])
            | ({"validation": _mean_and_std(validation)} if validation else {})
            | ({"groups": _groups_over_seeds(by_seed)} if by_seed[0].groups else {})
            | {"evaluated": "personal" if by_seed[0].method.personal else "shared"}
            | {"last": [r.summary.to_json() for r in by_seed]}
        )
    return {"seeds": list(results), "methods": methods}


def _groups_over_seeds(by_seed: Sequence[MethodResult]) -> dict[str, Any]:
    """By grouping: every metric, and the accuracy of every group that has test samples in all seeds."""
    columns = {}
    for name in by_seed[0].groups:
        found = [r.groups[name] for r in by_seed]
        common = [group for group in found[0].accuracy if all(group in g.accuracy for g in found)]
        accuracy = {group: _column([g.accuracy[group] for g in found]) for group in common}
        columns[name] = _mean_and_std(found) | {"accuracy": accuracy}
    return columns


def _mean_and_std(by_seed: Sequence[Metrics | GroupMetrics]) -> dict[str, Any]:
    """Mean and sample std over the seeds of every metric, and its values."""
    return {key: _column([metrics.by_name()[key] for metrics in by_seed]) for key in by_seed[0].by_name()}


def _column(values: Sequence[float]) -> dict[str, Any]:
    # not `statistics`: its exact sums would change the last bits of results.json
    mean = sum(values) / len(values)
    std = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else None
    return {"mean": mean, "std": std, "seeds": list(values)}


class Result(Mapping[str, MethodResult]):
    """The results of a run by method name."""

    def __init__(self, methods: Mapping[str, MethodResult], federation: Federation | None = None) -> None:
        self._methods = dict(methods)
        self._federation = federation  # None: the data is not on this machine

    def __getitem__(self, name: str) -> MethodResult:
        if name not in self._methods:
            raise KeyError(f"no method {name!r} in this run; it has {', '.join(self._methods)}")
        return self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def only(self, names: Iterable[str]) -> "Result":
        """The results of these methods only."""
        return Result({name: self[name] for name in names}, self._federation)

    def certificate(self, confidence: float = 0.95, by: str = CLASS) -> dict[str, Certificate]:
        """The certificate of each method, see `MethodResult.certificate`."""
        return {name: result.certificate(confidence, by) for name, result in self.items()}

    def audit(self, method: str | None = None) -> Audit:
        """Which training samples look mislabelled; the run must have been trained with `audit=True`.

        Args:
            method: the method that judges; left out: the one with the smallest lam, and of equals the first
        """
        judge = self[method or most_robust([result.method for result in self.values()])]
        if self._federation is None or judge._client_states is None:
            raise InputError("the samples are not on this machine; the audit is written where they are, on their sites")
        return audit_samples(judge.method.name, judge._client_states, self._federation)

    def audit_clients(self, method: str | None = None) -> ClientAudit:
        """Which clients look bad as a whole, and which are merely different; the run must have `audit=True`.

        Args:
            method: the method that judges; left out: the one with the smallest lam, and of equals the first
        """
        samples = self.audit(method)
        assert self._federation is not None  # otherwise `audit` raises
        judge = self[samples.method]
        distances = distances_by_round(judge._server, self._federation.clients)
        return audit_clients(samples, self._federation, judge.shared_of, distances)

    def __repr__(self) -> str:
        rows = "\n".join(
            f"  {name}: accuracy {r.accuracy:.2f} %, client fairness {r.client_fairness:.2f}, "
            f"client data fairness {r.client_data_fairness[0]:.2f} / {r.client_data_fairness[1]:.2f}"
            for name, r in self._methods.items()
        )
        return f"Result(\n{rows}\n)"

    def to_pandas(self, by: str = CLASS) -> Any:
        """A table with one row per method, client and class: correct predictions, samples and accuracy in percent.

        Clients and classes have their numbers and, in `client_name` and `class_name`, their names. With `by`, a column
        of groups, there is a row per group instead of class, with its number in that column.
        """
        try:
            import pandas
        except ImportError:
            raise InputError('to_pandas() needs pandas; pip install "fedtilt[report]"') from None
        rows = []
        for name, result in self._methods.items():
            correct, total, group_names = result.table(by)
            for client, group in (total > 0).nonzero().tolist():
                right, samples = int(correct[client, group]), int(total[client, group])
                names = result.client_names[client], group_names[group]
                rows.append((name, client, group, *names, right, samples, 100 * right / samples))
        columns = ["method", "client", by, "client_name", f"{by}_name", "correct", "samples", "accuracy"]
        return pandas.DataFrame(rows, columns=columns)
