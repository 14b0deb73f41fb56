"""The results of a run: metrics, sums and models of every method."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedtilt.attacks.attack import Attack, AttackedFederation
from fedtilt.auditing.clients import ClientAudit, audit_clients
from fedtilt.auditing.samples import Audit, audit_samples, most_robust
from fedtilt.data import Federation
from fedtilt.engine.update_distances import distances_by_round
from fedtilt.errors import InputError
from fedtilt.evaluation.certificate import Certificate
from fedtilt.evaluation.method_result import MethodResult
from fedtilt.evaluation.metrics import Metrics
from fedtilt.evaluation.scores import ACCURACY, SCORES, scores_of
from fedtilt.html_table import html_table


class Result(Mapping[str, MethodResult]):
    """The results of a run by method name."""

    def __init__(
        self,
        methods: Mapping[str, MethodResult],
        federation: Federation | None = None,
        plot: "Callable[[Result], Any] | None" = None,
    ) -> None:
        self._methods = dict(methods)
        self._federation = federation  # None: the data is not on this machine
        self._plot = plot

    def __getitem__(self, name: str) -> MethodResult:
        if name not in self._methods:
            raise KeyError(f"no method {name!r} in this run; it has {', '.join(self._methods)}")
        return self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    @property
    def attack(self) -> Attack | None:
        """The attack of the run; None: nobody attacked."""
        return self._federation.attack if isinstance(self._federation, AttackedFederation) else None

    @property
    def attackers(self) -> tuple[str, ...]:
        """The names of the clients that attacked; all metrics are over the others."""
        fed = self._federation
        return tuple(fed.client_names[n] for n in fed.attackers) if isinstance(fed, AttackedFederation) else ()

    def only(self, names: Iterable[str]) -> "Result":
        """The results of these methods only."""
        return Result({name: self[name] for name in names}, self._federation, self._plot)

    def certificate(self, confidence: float = 0.95, by: str | None = None) -> dict[str, Certificate]:
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

    @property
    def has_outliers(self) -> Tensor | None:
        """Which clients have outliers, (clients,) bool; None: the data is not on this machine."""
        return None if self._federation is None else self._federation.has_outliers

    def plot(self) -> Any:
        """The figures of the report: curves, clients and classes; a notebook shows them, and `save` writes a page."""
        if self._plot is None:
            raise InputError("this result has no figures; use fedtilt report and the run folder")
        return self._plot(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the metrics of every method."""
        named = {name: result.metrics.by_name() for name, result in self.items()}
        columns = list(next(iter(named.values())))
        rows = [[name, *(values[column] for column in columns)] for name, values in named.items()]
        rounds = next(iter(self.values())).history[-1][0]
        title = f"Result after {rounds} round{'s' * (rounds != 1)}"
        return html_table(title, ["method", *(column.replace("_", " ") for column in columns)], rows)

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
        rows = "\n".join(f"  {name}: {_in_words(r.metrics)}" for name, r in self._methods.items())
        return f"Result(\n{rows}\n)"

    def to_pandas(self, by: str | None = None) -> Any:
        """A table with one row per method, client and class or group: samples and the scores on them.

        Clients and classes have their numbers and, in `client_name` and `class_name`, their names. Classes have the
        columns correct, samples and accuracy in percent; numbers as targets have samples, mae and rmse.

        Args:
            by: "class", "range" or a column of groups; left out: what `tau` tilts over
        """
        try:
            import pandas
        except ImportError:
            raise InputError('to_pandas() needs pandas; pip install "fedtilt[report]"') from None
        rows = []
        for name, result in self._methods.items():
            sums, total, group_names = result.table(by)
            scores = scores_of(sums)
            values = torch.stack([score.values(sums, total) for score in scores], -1)
            for client, group in (total > 0).nonzero().tolist():
                correct = [int(sums[client, group])] if scores[0] is ACCURACY else []
                names = result.client_names[client], group_names[group]
                found = [*correct, int(total[client, group]), *values[client, group].tolist()]
                rows.append((name, client, group, *names, *found))
        by = by or result.group
        figures = ["correct"] * (scores[0] is ACCURACY) + ["samples", *(score.name for score in scores)]
        return pandas.DataFrame(rows, columns=["method", "client", by, "client_name", f"{by}_name", *figures])


def _in_words(metrics: Metrics) -> str:
    score, spread = SCORES[metrics.score], metrics.client_data_fairness
    other = "" if metrics.other is None else f", {SCORES[metrics.other.score].title} {metrics.other.mean:.2f}"
    return (
        f"{score.title} {score.text(metrics.mean)}{other}, client fairness {metrics.client_fairness:.2f}, "
        f"client data fairness {spread[0]:.2f} / {spread[1]:.2f}"
    )
