"""Metrics of models: client fairness and client data fairness of scores, from sums per client and group."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple, Self

from torch import Tensor

from fedtilt.data.groups import CLASS
from fedtilt.errors import InputError
from fedtilt.evaluation import scores
from fedtilt.evaluation.scores import ACCURACY, SCORES, Score, client_scores, client_variances, scores_of

BEYOND_CHANCE = "client_fairness_beyond_chance"  # in files
_CLIENT_DATA_FAIRNESS = "client_data_fairness_mean", "client_data_fairness_std"
_CLIENT_SPREAD = "client_spread_mean", "client_spread_std"


class GroupCounts(NamedTuple):
    """Sums of one method's evaluated models, and test samples, (clients, groups) of one grouping."""

    sums: Tensor
    total: Tensor

    def of_clients(self, rows: slice | Tensor) -> "GroupCounts":
        """The counts of these clients alone."""
        return GroupCounts(self.sums[rows], self.total[rows])


def counts_of_chance(by_grouping: Mapping[str, GroupCounts], fixed_shares: bool) -> GroupCounts:
    """The counts that chance follows from: where shares of classes are fixed, those by class.

    Where these are not known, or targets are no classes, it is one column, from which chance is then unknown.
    """
    first = next(iter(by_grouping.values()))
    if not fixed_shares:
        return first
    if CLASS in by_grouping:
        return by_grouping[CLASS]
    return GroupCounts(first.sums.sum(1, keepdim=True), first.total.sum(1, keepdim=True))


class Counts(NamedTuple):
    """Sums of one method's models by client and group."""

    shared: Tensor
    personal: Tensor | None  # None: no personal models; a client never selected is evaluated on the shared model
    never_selected: Tensor  # (clients,) bool
    groups: tuple[GroupCounts, ...] = ()  # of the other groupings, in the order of `group_names`
    # of the shared and of the evaluated models, where shares of classes are fixed: see `counts_of_chance`
    chance: tuple[GroupCounts, GroupCounts] | None = None

    @property
    def evaluated(self) -> Tensor:
        """The sums of the personal models if the method has them, otherwise of the shared model."""
        return self.shared if self.personal is None else self.personal

    def of_clients(self, rows: slice) -> "Counts":
        """The sums of these clients alone."""
        groups = tuple(group.of_clients(rows) for group in self.groups)
        personal = None if self.personal is None else self.personal[rows]
        chance = self.chance and (self.chance[0].of_clients(rows), self.chance[1].of_clients(rows))
        return Counts(self.shared[rows], personal, self.never_selected[rows], groups, chance)

    def by_grouping(self, total: Tensor, names: Iterable[str]) -> dict[str, GroupCounts]:
        """The sums of the evaluated models by grouping, in the order of `group_names`."""
        return dict(zip(names, [GroupCounts(self.evaluated, total), *self.groups], strict=True))


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """A score and its fairness for one set of models, over the clients that have test data.

    Accuracy is in percent and its spread in points; MAE and RMSE are in the unit of the target.
    """

    score: str = "accuracy"  # the name of the score
    mean: float  # of the score over clients
    client_fairness: float  # population std over clients: 0 is perfectly fair
    # mean and std over clients of the std over a client's groups; None: the samples have no groups
    client_data_fairness: tuple[float, float] | None
    worst: float  # mean of the worst tenth of the clients (at least one)
    best: float  # mean of the best tenth
    worst_client: float
    clients: int  # with test data
    beyond_chance: float | None = None  # std over clients of the true score, see `true_spread`; None: unknown
    others: tuple["Metrics", ...] = ()  # of the scores beside the main one: the RMSE beside the MAE

    @property
    def accuracy(self) -> float:
        """Mean accuracy over clients, in percent."""
        return self.value("accuracy")

    @property
    def mae(self) -> float:
        """Mean over clients of the mean absolute error, in the unit of the target."""
        return self.value("mae")

    @property
    def rmse(self) -> float:
        """Mean over clients of the root mean squared error, in the unit of the target."""
        return self.value("rmse")

    def value(self, score: str) -> float:
        """The mean of a score over clients."""
        means = {found.score: found.mean for found in (self, *self.others)}
        if score not in means:
            raise InputError(f"there is no {score} here, but {' and '.join(means)}")
        return means[score]

    def in_words(self) -> str:
        """Scores and fairness in one line."""
        means = ", ".join(f"{SCORES[m.score].title} {SCORES[m.score].text(m.mean)}" for m in (self, *self.others))
        fairness = f"client fairness {self.client_fairness:.2f}"
        if self.client_data_fairness is not None:
            fairness += ", client data fairness {:.2f} / {:.2f}".format(*self.client_data_fairness)
        return f"{means}, {fairness}"

    def by_name(self) -> dict[str, float]:
        """Every metric under its name in tables and files."""
        found = {self.score: self.mean, "client_fairness": self.client_fairness}
        if self.client_data_fairness is not None:
            found |= zip(_CLIENT_DATA_FAIRNESS, self.client_data_fairness, strict=True)
        found |= {"worst": self.worst, "best": self.best, _extreme(self.score): self.worst_client}
        found |= {} if self.beyond_chance is None else {BEYOND_CHANCE: self.beyond_chance}
        return found | _of_others(self.others)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return replace(self, others=()).by_name() | {"clients": self.clients} | _others_to_json(self.others)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values."""
        score = scores.main_score(values).name
        has_groups = _CLIENT_DATA_FAIRNESS[0] in values
        return cls(
            score=score, mean=values[score],
            client_data_fairness=itemgetter(*_CLIENT_DATA_FAIRNESS)(values) if has_groups else None,
            worst_client=values[_extreme(score)], beyond_chance=values.get(BEYOND_CHANCE),
            others=tuple(map(cls.from_json, values.get("others", ()))),
            **{key: values[key] for key in ("client_fairness", "worst", "best", "clients")},
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GroupMetrics:
    """A score and its fairness for the groups of one grouping; units are those of `Metrics`."""

    score: str = "accuracy"  # the name of the score
    values: Mapping[str, float]  # of every group that has test samples, over the samples of all clients
    spread: float  # population std of these: 0 is perfectly fair
    client_spread: tuple[float, float]  # mean and std over clients of the std over a client's groups
    client_worst: float  # mean over clients of the score of a client's worst group
    others: tuple["GroupMetrics", ...] = ()  # of the scores beside the main one

    @property
    def accuracy(self) -> Mapping[str, float]:
        """The accuracy of every group, in percent."""
        if self.score != "accuracy":
            raise InputError(f"there is no accuracy here, but {self.score}; use values")
        return self.values

    @property
    def worst(self) -> tuple[str, float]:
        """The group with the worst score, and its score."""
        choose = min if SCORES[self.score].higher_is_better else max
        return choose(self.values.items(), key=lambda item: item[1])

    def by_name(self) -> dict[str, float]:
        """The figures that have a name in files, without the scores of the groups."""
        found = {"spread": self.spread, "worst": self.worst[1]}
        found |= zip(_CLIENT_SPREAD, self.client_spread, strict=True)
        return found | {"client_worst": self.client_worst} | _of_others(self.others)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        figures = replace(self, others=()).by_name()
        return {self.score: dict(self.values)} | figures | _others_to_json(self.others)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values."""
        score = scores.main_score(values).name
        return cls(
            score=score, values=values[score], client_spread=itemgetter(*_CLIENT_SPREAD)(values),
            others=tuple(map(cls.from_json, values.get("others", ()))),
            **{key: values[key] for key in ("spread", "client_worst")},
        )  # fmt: skip


def _extreme(score: str) -> str:
    """The name of the worst client's score in files."""
    return "minimum" if SCORES[score].higher_is_better else "maximum"


def _of_others(others: Iterable[Metrics | GroupMetrics]) -> dict[str, float]:
    """The metrics of the scores beside the main one; their names begin with the score's."""
    return {k if k == o.score else f"{o.score}_{k}": value for o in others for k, value in o.by_name().items()}


def _others_to_json(others: Sequence[Metrics | GroupMetrics]) -> dict[str, Any]:
    return {"others": [other.to_json() for other in others]} if others else {}


def compute_metrics(sums: Tensor, total: Tensor, chance: GroupCounts | None = None) -> Metrics:
    """All metrics from sums and samples, both by client and group, over the clients that have test data.

    >>> import torch
    >>> m = compute_metrics(torch.tensor([[9, 5], [10, 0]]), torch.tensor([[10, 10], [10, 0]]))
    >>> m.accuracy, m.client_fairness, m.client_data_fairness
    (85.0, 15.0, (10.0, 10.0))

    `chance` are the counts of `counts_of_chance`; None: test data was drawn at random.
    """
    if total.dim() != 2 or sums.shape[:2] != total.shape or sums.dim() != 2 + sums.is_floating_point():
        shapes = f"{tuple(sums.shape)} and {tuple(total.shape)}"
        raise InputError(f"counts must be two tables of one shape (clients, groups), got {shapes}")
    main, *others = scores_of(sums)
    if (sums < 0).any() or (main is ACCURACY and (sums > total).any()):
        raise InputError("a client has more correct predictions than samples in a class, or a negative count")
    if not total.any():
        raise InputError("no client has any test data to evaluate on")
    variances = client_variances(sums, total) if chance is None else client_variances(*chance, fixed_shares=True)
    variance = scores.variance_beyond_chance(client_scores(sums, total), variances[total.sum(1) > 0])
    return replace(
        _metrics_of(main, sums, total),
        beyond_chance=None if variance.isnan() else variance.clamp(min=0).sqrt().item(),
        others=tuple(_metrics_of(score, sums, total) for score in others),
    )


def _metrics_of(score: Score, sums: Tensor, total: Tensor) -> Metrics:
    values, spread = client_scores(sums, total, score), scores.spread_in_clients(sums, total, score)
    ordered = values.sort(descending=not score.higher_is_better).values  # the worst first
    tenth = math.ceil(len(ordered) / 10)
    return Metrics(
        score=score.name, mean=values.mean().item(), client_fairness=values.std(correction=0).item(),
        client_data_fairness=(spread.mean().item(), spread.std(correction=0).item()) if total.shape[1] > 1 else None,
        worst=ordered[:tenth].mean().item(), best=ordered[-tenth:].mean().item(), worst_client=ordered[0].item(),
        clients=len(ordered),
    )  # fmt: skip


def compute_group_metrics(counts: GroupCounts, names: tuple[str, ...]) -> GroupMetrics:
    """The metrics of one grouping.

    >>> import torch
    >>> counts = GroupCounts(torch.tensor([[9, 5], [10, 0]]), torch.tensor([[10, 10], [10, 0]]))
    >>> found = compute_group_metrics(counts, ("f", "m"))
    >>> found.accuracy, found.worst, found.spread, found.client_spread, found.client_worst
    ({'f': 95.0, 'm': 50.0}, ('m', 50.0), 22.5, (10.0, 10.0), 75.0)
    """
    main, *others = (_group_metrics_of(score, *counts, names) for score in scores_of(counts.sums))
    return replace(main, others=tuple(others))


def _group_metrics_of(score: Score, sums: Tensor, total: Tensor, names: tuple[str, ...]) -> GroupMetrics:
    pooled = score.values(sums.sum(0), total.sum(0))
    present = total.sum(0) > 0
    spread = scores.spread_in_clients(sums, total, score)
    worst = score.worst(score.values(sums, total), 1)[total.sum(1) > 0]
    return GroupMetrics(
        score=score.name,
        values={name: value for name, value, kept in zip(names, pooled.tolist(), present, strict=True) if kept},
        spread=pooled[present].std(correction=0).item(),
        client_spread=(spread.mean().item(), spread.std(correction=0).item()),
        client_worst=worst.mean().item(),
    )
