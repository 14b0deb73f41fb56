"""The results of a run, of every method beside the baselines; and of several seeds, with mean and std."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedtilt.attacks.attack import Attack, AttackedFederation
from fedtilt.auditing.clients import ClientAudit, audit_clients
from fedtilt.auditing.samples import Audit, audit_samples, most_robust
from fedtilt.data import Federation
from fedtilt.engine.updates import distances_by_round
from fedtilt.errors import InputError
from fedtilt.evaluation.certificate import Certificate
from fedtilt.evaluation.gains import Gains, client_gains
from fedtilt.evaluation.method_results import Baselines, EvaluatedResult, MethodResult
from fedtilt.evaluation.metrics import GroupMetrics, Metrics
from fedtilt.evaluation.prediction_sets import PredictionSets
from fedtilt.evaluation.predictions import CLIENT
from fedtilt.evaluation.scores import ACCURACY, scores_of
from fedtilt.files import file_name
from fedtilt.imports import import_extra
from fedtilt.text_tables import html_table

_MAX_LINES = 15  # methods in a text


class Result(Mapping[str, MethodResult]):
    """The results of a run by method name."""

    def __init__(
        self, methods: Mapping[str, MethodResult], federation: Federation | None = None,
        plot: "Callable[[Result], Any] | None" = None,
        export: Callable[[Path, str | None, int | str | None, bool], None] | None = None,
        baselines: Baselines | Callable[[], Baselines] | None = None,
    ) -> None:  # fmt: skip
        self._methods = dict(methods)
        self._federation = federation  # None: the data is not on this machine
        self._plot = plot
        self._export = export
        self._baselines = baselines  # or a function that computes them; None: the data is not on this machine

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
        return Result({name: self[name] for name in names}, self._federation, self._plot, self._export, self._baselines)

    def export(
        self, path: str | os.PathLike[str], method: str | None = None, client: int | str | None = None, *,
        force: bool = False,
    ) -> None:  # fmt: skip
        """Write a trained model, and its model card beside it; `ft.load` and `fedtilt predict` read it.

        Args:
            path: the file, such as model.safetensors or model.onnx
            method: the name of the method; default: the only one
            client: number or name of a client, for the model that it uses; default: the shared model
            force: whether to replace existing files
        """
        if method is None and len(self) > 1:
            first = next(iter(self))
            raise InputError(f"the run has the methods {', '.join(self)}; choose one, such as method={first!r}")
        if self._export is None:
            raise InputError("this result has no models; use fedtilt export and the run folder")
        self._export(Path(path), method or next(iter(self)), client, force)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the models of every method with their cards: METHOD.safetensors, and METHOD-CLIENT.safetensors.

        A method without personal models, local parameters and buffers has the shared model alone.

        Args:
            folder: where to write
            force: whether to replace existing files
        """
        for name, result in self.items():
            stem = Path(folder) / file_name(name)
            self.export(stem.with_name(f"{stem.name}.safetensors"), name, force=force)
            for number, client in enumerate(result.client_names):
                if result.has_own_model(number):
                    own = stem.with_name(f"{stem.name}-{file_name(client)}.safetensors")
                    self.export(own, name, number, force=force)

    @property
    def baselines(self) -> Baselines:
        """What the methods are compared with, by name; computed when it is first used, unless the run did.

        The majority class (or the mean), every client alone with the model and the steps of the run and, of tables,
        models of scikit-learn on all clients' rows.
        """
        if self._baselines is None:
            raise InputError("there are no baselines: the data is on the clients' own machines")
        if callable(self._baselines):
            self._baselines = self._baselines()
        return self._baselines

    @property
    def shown(self) -> dict[str, EvaluatedResult]:
        """The methods, and the baselines if they are computed."""
        return {**self._methods, **(self._baselines if isinstance(self._baselines, Mapping) else {})}

    def gains(self, against: str = "local", confidence: float = 0.95) -> dict[str, Gains]:
        """Which clients gain by each method, with an interval of their test samples, and who would stay out.

        Args:
            against: a baseline, such as "local" (every client alone) or "pooled logistic", or another method
            confidence: of the intervals
        """
        known = {**self._methods, **self.baselines}
        if against not in known:
            raise InputError(f"against = {against!r} is not in this result; choose one of {', '.join(known)}")
        theirs, others = known[against].predictions, {name: r for name, r in self.items() if name != against}
        return {name: client_gains(r.predictions, theirs, against, confidence) for name, r in others.items()}

    def prediction_sets(self, coverage: float = 0.9, bad_share: float = 0.0) -> dict[str, PredictionSets]:
        """The prediction sets of each method, see `MethodResult.prediction_sets`."""
        return {name: result.prediction_sets(coverage, bad_share) for name, result in self.items()}

    def certificate(self, confidence: float = 0.95, by: str | None = None) -> dict[str, Certificate]:
        """The certificate of each method, see `MethodResult.certificate`."""
        return {name: result.certificate(confidence, by) for name, result in self.items()}

    def audit(self, method: str | None = None) -> Audit:
        """Which training samples look mislabelled; the run must have been trained with `audit=True`.

        Args:
            method: the method that judges; default: the one with the smallest lam, and of equals the first
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
        """What a notebook shows: the metrics of every method, and of the baselines if they are computed."""
        named = {name: result.metrics.by_name() for name, result in self.shown.items()}
        columns = list(next(iter(named.values())))
        rows = [[name, *(values[column] for column in columns)] for name, values in named.items()]
        rounds = next(iter(self.values())).history[-1][0]
        title = f"Result after {rounds} round{'s' * (rounds != 1)}"
        return html_table(title, ["method", *(column.replace("_", " ") for column in columns)], rows)

    def audit_clients(self, method: str | None = None) -> ClientAudit:
        """Which clients look bad as a whole, and which are merely different; the run must have `audit=True`.

        Args:
            method: the method that judges; default: the one with the smallest lam, and of equals the first
        """
        samples = self.audit(method)
        assert self._federation is not None  # otherwise `audit` raises
        judge = self[samples.method]
        distances = distances_by_round(judge._server, self._federation.clients)
        return audit_clients(samples, self._federation, judge.shared_of, distances)

    def __repr__(self) -> str:
        """A line per method and baseline, of many methods the best."""
        higher = scores_of(next(iter(self._methods.values())).sums)[0].higher_is_better
        ranked = sorted(self._methods, key=lambda name: self[name].metrics.mean, reverse=higher)[:_MAX_LINES]
        others = {name: result for name, result in self.shown.items() if name not in self._methods}
        shown = {name: result for name, result in self._methods.items() if name in ranked} | others
        lines = [f"  {name}: {result.metrics.in_words()}" for name, result in shown.items()]
        if len(self) > _MAX_LINES:
            lines.append(f"  and {len(self) - _MAX_LINES} methods with a worse score")
        return "Result(\n" + "\n".join(lines) + "\n)"

    def to_pandas(self, by: str | None = None) -> Any:
        """A table with one row per method, client and class or group: samples and the scores on them.

        Baselines follow the methods if they are computed. Clients and classes have their numbers and, in `client_name`
        and `class_name`, their names. Classes have the columns correct, samples and accuracy in percent; other targets
        have samples and their scores, such as mae and rmse, or loss, perplexity and token_accuracy.

        Args:
            by: "class", "range" or a column of groups; default: what `tau` tilts over. With "client", a row per method
                and client, which also has the true score, shrunk towards the mean: estimate, low and high; beside
                computed baselines, also the difference to each of them with its interval, see `gains`
        """
        pandas = import_extra("pandas", "to_pandas()", "report")
        frames = []
        for name, result in self.shown.items():
            sums, total, groups = result.table(None if by == CLIENT else by)
            names = {CLIENT: result.client_names, by or result.group: groups}
            estimates: dict[str, Tensor] = {}
            if by == CLIENT:
                sums, total, names = sums.sum(1), total.sum(1), {CLIENT: result.client_names}
                estimates = dict(zip(("estimate", "low", "high"), result.client_estimates()[:3], strict=True))
            present, scores = total > 0, scores_of(sums)
            codes = dict(zip(names, present.nonzero().T.tolist(), strict=True))
            values = {"correct": sums} if scores[0] is ACCURACY else {}
            values |= {"samples": total} | {score.name: score.values(sums, total) for score in scores} | estimates
            columns = codes | {f"{key}_name": [names[key][i] for i in numbers] for key, numbers in codes.items()}
            columns |= {key: column[present].tolist() for key, column in values.items()}
            frames.append(pandas.DataFrame({"method": name} | columns))
        frame = pandas.concat(frames, ignore_index=True)
        return self._with_gains(frame) if by == CLIENT and isinstance(self._baselines, Mapping) else frame

    def _with_gains(self, frame: Any) -> Any:
        """A table by method and client with the difference to every baseline, and its interval."""
        for against in self.baselines:
            gains = {(n, c.client): c[2:] for n, found in self.gains(against).items() for c in found.clients}
            keys = zip(frame["method"], frame["client_name"], strict=True)
            over = f"over_{against.replace(' ', '_')}"
            frame[[over, f"{over}_low", f"{over}_high"]] = [gains.get(key, (math.nan,) * 3) for key in keys]
        return frame


class SeedValues(NamedTuple):
    """One metric of one method, one value per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        # not `statistics`: its exact sums would change the last bits of results.json
        return sum(self.values) / len(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None for one seed.

        >>> SeedValues((1.0, 3.0)).std
        1.4142135623730951
        """
        if len(self.values) == 1:
            return None
        mean = self.mean
        return float((sum((v - mean) ** 2 for v in self.values) / (len(self.values) - 1)) ** 0.5)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"mean": self.mean, "std": self.std, "seeds": list(self.values)}


def over_seeds(results: Mapping[int, Result]) -> dict[str, Any]:
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
            | {"evaluated": "personal" if by_seed[0].method.has_personal else "shared"}
            | {"last": [r.summary.to_json() for r in by_seed]}
        )
    shown = [result.shown for result in results.values()]
    names = [name for name in shown[0] if name not in methods and all(name in of_seed for of_seed in shown)]
    baselines = {name: _mean_and_std([of_seed[name].metrics for of_seed in shown]) for name in names}
    return {"seeds": list(results), "methods": methods} | ({"baselines": baselines} if baselines else {})


def _groups_over_seeds(by_seed: Sequence[MethodResult]) -> dict[str, Any]:
    """By grouping: every metric, and the score of every group that has test samples in all seeds."""
    columns = {}
    for name in by_seed[0].groups:
        found = [r.groups[name] for r in by_seed]
        common = [group for group in found[0].values if all(group in g.values for g in found)]
        values = {group: SeedValues(tuple(g.values[group] for g in found)).to_json() for group in common}
        columns[name] = _mean_and_std(found) | {found[0].score: values}
    return columns


def _mean_and_std(by_seed: Sequence[Metrics | GroupMetrics]) -> dict[str, Any]:
    columns = {key: tuple(metrics.by_name()[key] for metrics in by_seed) for key in by_seed[0].by_name()}
    return {key: SeedValues(values).to_json() for key, values in columns.items()}
