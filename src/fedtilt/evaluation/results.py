"""What a run found: metrics, counts and models of every method."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from fedtilt.checks import whole
from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts, Metrics, measure
from fedtilt.methods import Method
from fedtilt.models import with_weights
from fedtilt.rounds.client_states import ClientStates


class Summary(NamedTuple):
    """Metrics of one method after one round. Both models are always measured; `evaluated` is the one that counts."""

    shared: Metrics
    personal: Metrics | None  # None: the method has no personal models
    ever_selected: Metrics | None  # personal, without the clients that never took part; None where there are none such
    clean: Metrics | None  # judged, over the clients without outliers; None unless only some carry them
    never_selected: int

    @property
    def evaluated(self) -> Metrics:
        """The personal models where the method has them, otherwise the shared one."""
        return self.personal or self.shared

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        parts = {key: value and asdict(value) for key, value in self._asdict().items() if key != "never_selected"}
        return parts | {"never_selected": self.never_selected}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Summary":
        """Back from plain values."""

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
        )


def evaluated_counts(counts: Counts) -> Tensor:
    """Right answers (N, K) of the models that count."""
    return counts.shared if counts.personal is None else counts.personal


def summarise(counts: Counts, total: Tensor, has_outliers: Tensor) -> Summary:
    """All metrics of one method from its counts."""
    evaluated = evaluated_counts(counts)
    ever_selected = None
    if counts.personal is not None and counts.never_selected.any() and total[~counts.never_selected].any():
        ever_selected = measure(counts.personal[~counts.never_selected], total[~counts.never_selected])
    some = has_outliers.any() and not has_outliers.all() and total[~has_outliers].any()
    return Summary(
        shared=measure(counts.shared, total),
        personal=None if counts.personal is None else measure(counts.personal, total),
        ever_selected=ever_selected,
        clean=measure(evaluated[~has_outliers], total[~has_outliers]) if some else None,
        never_selected=int(counts.never_selected.sum()),
    )


def summarised(counts: Mapping[str, Counts] | None, total: Tensor | None, has_outliers: Tensor) -> dict[str, Summary]:
    """The metrics of every method that was judged on these samples; none where there are none."""
    if counts is None or total is None:
        return {}
    return {name: summarise(own, total, has_outliers) for name, own in counts.items()}


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One method at the end of a run."""

    method: Method
    history: list[tuple[int, Summary]]  # (round, metrics) of every judged round
    correct: Tensor  # (N, K) right answers of the judged models
    total: Tensor  # (N, K) test samples
    validation: Metrics | None = None  # of the judged models on the data set aside, if any: to choose settings by
    client_names: tuple[str, ...]
    class_names: tuple[str, ...] = ()  # empty: classes go by their numbers
    _net: nn.Module
    _shared: Tensor
    _client_states: ClientStates | None = None  # None: personal models are elsewhere

    @property
    def summary(self) -> Summary:
        """The metrics after the last round."""
        return self.history[-1][1]

    @property
    def metrics(self) -> Metrics:
        """The metrics of the judged models after the last round."""
        return self.summary.evaluated

    @property
    def accuracy(self) -> float:
        """Mean accuracy over clients, in percent."""
        return self.metrics.accuracy

    @property
    def client_fairness(self) -> float:
        """Standard deviation of accuracy over clients: lower is fairer."""
        return self.metrics.client_fairness

    @property
    def client_data_fairness(self) -> tuple[float, float]:
        """Mean and standard deviation over clients of the spread of accuracy over a client's classes."""
        return self.metrics.client_data_fairness

    @property
    def shared(self) -> nn.Module:
        """The shared model."""
        return with_weights(self._net, self._shared).cpu()

    def personal(self, client: int | str) -> nn.Module:
        """A client's model, by its number or name: its personal one, or the shared one if it has none."""
        owner = self.method.name, number_of(client, self.client_names)
        own = self._client_states.get(owner) if self._client_states is not None and self.method.personal else None
        return with_weights(self._net, self._shared if own is None else own).cpu()


def number_of(client: int | str, names: Sequence[str]) -> int:
    """The number of a client that is given by it or by its name."""
    number = names.index(client) if client in names else client
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if isinstance(number, str):
        raise InputError(f"client {client} does not exist; the clients are {names[0]} to {names[-1]}")
    number = whole(number, "a client's number")
    if not 0 <= number < len(names):
        raise InputError(f"client {client} does not exist; the clients are {names[0]} to {names[-1]}")
    return number


def over_seeds(results: Mapping[int, "Result"]) -> dict[str, Any]:
    """The comparison table as plain values: every metric of every method, its mean and std over the seeds.

    Where data is set aside, `validation` has the same of it.
    """
    methods = {}
    for name in next(iter(results.values())):
        own = [result[name] for result in results.values()]
        held = [r.validation for r in own if r.validation is not None]
        methods[name] = (
            _columns([r.metrics for r in own])
            | ({"validation": _columns(held)} if held else {})
            | {"evaluated": _evaluated(own[0].method), "last": [r.summary.to_json() for r in own]}
        )
    return {"seeds": list(results), "methods": methods}


def _columns(seeds: Sequence[Metrics]) -> dict[str, Any]:
    columns = {}
    for key in seeds[0].by_name():
        values = [metrics.by_name()[key] for metrics in seeds]
        mean = sum(values) / len(values)
        spread = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else None
        columns[key] = {"mean": mean, "std": spread, "seeds": values}
    return columns


def _evaluated(method: Method) -> str:
    return "personal" if method.personal else "shared"


class Result(Mapping[str, MethodResult]):
    """The results of a run by method name."""

    def __init__(self, methods: Mapping[str, MethodResult]) -> None:
        self._methods = dict(methods)

    def __getitem__(self, name: str) -> MethodResult:
        if name not in self._methods:
            raise KeyError(f"no method {name!r} in this run; it has {', '.join(self._methods)}")
        return self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def only(self, names: Iterable[str]) -> "Result":
        """These methods alone."""
        return Result({name: self[name] for name in names})

    def __repr__(self) -> str:
        rows = "\n".join(
            f"  {name}: accuracy {r.accuracy:.2f} %, client fairness {r.client_fairness:.2f}, "
            f"client data fairness {r.client_data_fairness[0]:.2f} / {r.client_data_fairness[1]:.2f}"
            for name, r in self._methods.items()
        )
        return f"Result(\n{rows}\n)"

    def to_pandas(self) -> Any:
        """A table with one row per method, client and class: right answers, samples and accuracy in percent.

        Clients and classes have their numbers and, in `client_name` and `class_name`, their names.
        """
        try:
            import pandas
        except ImportError:
            raise InputError('to_pandas() needs pandas; pip install "fedtilt[report]"') from None
        rows = []
        for name, result in self._methods.items():
            for client, label in (result.total > 0).nonzero().tolist():
                right, samples = int(result.correct[client, label]), int(result.total[client, label])
                named = result.client_names[client], result.class_names[label] if result.class_names else str(label)
                rows.append((name, client, label, *named, right, samples, 100 * right / samples))
        titles = ["method", "client", "class", "client_name", "class_name", "correct", "samples", "accuracy"]
        return pandas.DataFrame(rows, columns=titles)
