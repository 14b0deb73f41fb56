"""Scores, client fairness and client data fairness from sums per client and group.

| task | sums over samples, (clients, groups, …) | scores |
| --- | --- | --- |
| classification | correct predictions, whole numbers | accuracy |
| regression | absolute and squared errors, float64 | MAE, RMSE |
| language | the loss of a sample, its share of right tokens, its tokens | loss, perplexity, token accuracy |
| multilabel | loss, share of right labels, whether all are, labels found, labels found or there | label accuracy, … |

`sample_sums` computes what is summed. A sample counts once, however many tokens or labels it has.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtilt.data.targets import IGNORED, LabelTarget, NumericTarget, Target, TokenTarget
from fedtilt.errors import InputError
from fedtilt.math.losses import label_cross_entropy

_MOST_LOSS = 700.0  # a perplexity beyond is not a finite number


class Score(NamedTuple):
    """A quantity that models are evaluated by."""

    name: str  # in files
    title: str  # in tables
    unit: str  # of a value; empty: that of the target
    spread_unit: str  # of a standard deviation
    higher_is_better: bool
    values: Callable[[Tensor, Tensor], Tensor]  # (sums, samples) → values of the shape of `samples`
    share: int | None = None  # of a mean of shares in [0, 1]: which of the sums is theirs; None: it has no bound

    def text(self, value: float, digits: int = 2) -> str:
        """A value with its unit.

        >>> ACCURACY.text(97.5, 0), MAE.text(43.21, 1)
        ('98 %', '43.2')
        """
        return f"{value:.{digits}f} {self.unit}".rstrip()

    def worst(self, values: Tensor, dim: int = -1) -> Tensor:
        """The worst of several values; NaN does not count."""
        return self._nan_as_best(values).amin(dim) if self.higher_is_better else self._nan_as_best(values).amax(dim)

    def worst_position(self, values: Tensor) -> int:
        """The position of the worst of several values; NaN does not count."""
        found = self._nan_as_best(values)
        return int(found.argmin() if self.higher_is_better else found.argmax())

    def _nan_as_best(self, values: Tensor) -> Tensor:
        return values.nan_to_num(nan=math.inf if self.higher_is_better else -math.inf)


ACCURACY = Score(
    "accuracy", "accuracy", "%", "points", True, lambda correct, samples: 100 * correct.double() / samples.double()
)
MAE = Score("mae", "MAE", "", "", False, lambda errors, samples: errors[..., 0] / samples.double())
RMSE = Score("rmse", "RMSE", "", "", False, lambda errors, samples: (errors[..., 1] / samples.double()).sqrt())
LOSS = Score("loss", "loss", "", "", False, lambda sums, samples: sums[..., 0] / samples.double())
PERPLEXITY = Score(
    "perplexity", "perplexity", "", "", False,
    lambda sums, samples: LOSS.values(sums, samples).clamp(max=_MOST_LOSS).exp(),
)  # fmt: skip
TOKEN_ACCURACY = Score("token_accuracy", "token accuracy", "%", "points", True, lambda s, n: _percent(s[..., 1], n), 1)
LABEL_ACCURACY = Score("label_accuracy", "label accuracy", "%", "points", True, lambda s, n: _percent(s[..., 1], n), 1)
EXACT_MATCH = Score("exact_match", "exact match", "%", "points", True, lambda s, n: _percent(s[..., 2], n), 2)
MICRO_F1 = Score(  # of samples without a label, none of which is found: 100
    "micro_f1", "micro F1", "%", "points", True,
    lambda s, n: torch.where(s[..., 4] > 0, 200 * s[..., 3] / s[..., 4], 100.0).where(n > 0, math.nan),
)  # fmt: skip
_SCORES_OF = {  # by the number of sums, the main score first
    NumericTarget.sums: (MAE, RMSE),
    TokenTarget.sums: (LOSS, PERPLEXITY, TOKEN_ACCURACY),
    LabelTarget.sums: (LABEL_ACCURACY, EXACT_MATCH, MICRO_F1, LOSS),
}
BEYOND_CHANCE = "client_fairness_beyond_chance"  # in files
SCORES = {score.name: score for scores in ((ACCURACY,), *_SCORES_OF.values()) for score in scores}


def _percent(sums: Tensor, samples: Tensor) -> Tensor:
    return 100 * sums / samples.double()


def scores_of(sums: Tensor) -> tuple[Score, ...]:
    """The scores that follow from sums, the main one first."""
    return _SCORES_OF[sums.shape[-1]] if sums.is_floating_point() else (ACCURACY,)


def others_of(score: Score) -> tuple[Score, ...]:
    """The scores beside a main one."""
    return next((scores[1:] for scores in _SCORES_OF.values() if scores[0] is score), ())


def shares_of(sums: Tensor) -> tuple[Score, Tensor] | None:
    """The first score that is a mean of shares of samples, and the sums of these; None: errors have no bound."""
    if not sums.is_floating_point():
        return ACCURACY, sums
    return next(((s, sums[..., s.share]) for s in scores_of(sums) if s.share is not None), None)


def share_columns(count: int) -> list[int]:
    """Which of this many sums are of shares in [0, 1]."""
    return sorted({score.share for score in _SCORES_OF[count] if score.share is not None})


def no_sums(target: Target | None, *shape: int, device: torch.device | None = None) -> Tensor:
    """Sums of no samples; those that are no whole numbers are on the CPU, where the order of additions is fixed."""
    if target is None:
        return torch.zeros(shape, dtype=torch.long, device=device)
    return torch.zeros(*shape, target.sums, dtype=torch.float64)


def sample_sums(target: Target | None, outputs: Tensor, y: Tensor) -> Tensor:
    """What is summed of every sample: whole numbers (…), or float64 (…, sums) on the CPU.

    Args:
        target: what the targets are; None: classes
        outputs: of the model
        y: targets as in the data set
    """
    if isinstance(target, NumericTarget):
        error = (target.predictions(outputs) - y.double()).cpu()
        return torch.stack([error.abs(), error.square()], -1)
    if isinstance(target, TokenTarget):
        is_token = y != IGNORED
        tokens = is_token.sum(-1)
        losses = F.cross_entropy(
            outputs.float().flatten(0, -2), y.flatten(), reduction="none", ignore_index=IGNORED
        ).reshape(y.shape)  # fmt: skip
        right = (outputs.argmax(-1) == y).sum(-1)
        return torch.stack([losses.double().sum(-1) / tokens, right.double() / tokens, tokens.double()], -1).cpu()
    if isinstance(target, LabelTarget):
        losses = label_cross_entropy(outputs.float().flatten(0, -2), y.flatten(0, -2)).reshape(y.shape[:-1])
        found, there = outputs > 0, y > 0  # a label is predicted if it is more probable than not
        right = (found == there).double()
        counts = (found & there).sum(-1), found.sum(-1) + there.sum(-1)
        columns = [losses.double(), right.mean(-1), right.amin(-1), *(count.double() for count in counts)]
        return torch.stack(columns, -1).cpu()
    return (outputs.argmax(-1) == y).long()


def main_score(names: Container[str]) -> Score:
    """The main score of a table that has these keys.

    >>> main_score({"mae": 1.0, "rmse": 2.0}).title
    'MAE'
    """
    return next(score for score in SCORES.values() if score.name in names)


class GroupCounts(NamedTuple):
    """Sums of one method's evaluated models, and test samples, (clients, groups) of one grouping."""

    sums: Tensor
    total: Tensor


class Counts(NamedTuple):
    """Sums of one method's models by client and group."""

    shared: Tensor
    personal: Tensor | None  # None: no personal models; a client never selected is evaluated on the shared model
    never_selected: Tensor  # (clients,) bool
    groups: tuple[GroupCounts, ...] = ()  # of the other groupings, in the order of `group_names`

    @property
    def evaluated(self) -> Tensor:
        """The sums of the personal models if the method has them, otherwise of the shared model."""
        return self.shared if self.personal is None else self.personal

    def of_clients(self, rows: slice) -> "Counts":
        """The sums of these clients alone."""
        groups = tuple(GroupCounts(group.sums[rows], group.total[rows]) for group in self.groups)
        personal = None if self.personal is None else self.personal[rows]
        return Counts(self.shared[rows], personal, self.never_selected[rows], groups)

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
    client_data_fairness: tuple[float, float]  # mean and std over clients of the std over a client's groups
    worst: float  # mean of the worst tenth of the clients (at least one)
    best: float  # mean of the best tenth
    worst_client: float
    clients: int  # with test data
    beyond_chance: float | None = None  # std over clients of the true score, see `true_spread`; None: unknown
    other: "Metrics | None" = None  # of the next score: the RMSE beside the MAE

    @property
    def all(self) -> "Iterator[Metrics]":
        """The metrics of every score, the main one first."""
        yield self
        if self.other is not None:
            yield from self.other.all

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
        means = {found.score: found.mean for found in self.all}
        if score not in means:
            raise InputError(f"there is no {score} here, but {' and '.join(means)}")
        return means[score]

    def by_name(self) -> dict[str, float]:
        """Every metric under its name in tables and files."""
        mean, std = self.client_data_fairness
        found = {
            self.score: self.mean,
            "client_fairness": self.client_fairness,
            "client_data_fairness_mean": mean,
            "client_data_fairness_std": std,
            "worst": self.worst,
            "best": self.best,
            _extreme(SCORES[self.score]): self.worst_client,
        } | self._known_beyond_chance
        return found if self.other is None else found | _with_prefix(self.other)

    @property
    def _known_beyond_chance(self) -> dict[str, float]:
        return {} if self.beyond_chance is None else {BEYOND_CHANCE: self.beyond_chance}

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found = {
            self.score: self.mean,
            "client_fairness": self.client_fairness,
            "client_data_fairness": self.client_data_fairness,
            "worst": self.worst,
            "best": self.best,
            _extreme(SCORES[self.score]): self.worst_client,
            "clients": self.clients,
        } | self._known_beyond_chance
        return found if self.other is None else found | {"other": self.other.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values."""
        found = dict(values)
        score = main_score(found)
        found["mean"] = found.pop(score.name)
        found["worst_client"] = found.pop(_extreme(score))
        found["beyond_chance"] = found.pop(BEYOND_CHANCE, None)
        if "other" in found:
            found["other"] = cls.from_json(found["other"])
        return cls(score=score.name, **found | {"client_data_fairness": tuple(found["client_data_fairness"])})


@dataclass(frozen=True, kw_only=True)
class GroupMetrics:
    """A score and its fairness for the groups of one grouping; units are those of `Metrics`."""

    score: str = "accuracy"  # the name of the score
    values: Mapping[str, float]  # of every group that has test samples, over the samples of all clients
    spread: float  # population std of these: 0 is perfectly fair
    client_spread: tuple[float, float]  # mean and std over clients of the std over a client's groups
    client_worst: float  # mean over clients of the score of a client's worst group
    other: "GroupMetrics | None" = None  # of the next score: the RMSE beside the MAE

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
        mean, std = self.client_spread
        found = {
            "spread": self.spread,
            "worst": self.worst[1],
            "client_spread_mean": mean,
            "client_spread_std": std,
            "client_worst": self.client_worst,
        }
        return found if self.other is None else found | _with_prefix(self.other)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found: dict[str, Any] = {
            self.score: dict(self.values),
            "spread": self.spread,
            "client_spread": self.client_spread,
            "client_worst": self.client_worst,
        }
        return found if self.other is None else found | {"other": self.other.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values."""
        found = dict(values)
        score = main_score(found).name
        if "other" in found:
            found["other"] = cls.from_json(found["other"])
        client_spread = tuple(found.pop("client_spread"))
        return cls(score=score, values=found.pop(score), client_spread=client_spread, **found)


def _extreme(score: Score) -> str:
    """The name of the worst client's score in files."""
    return "minimum" if score.higher_is_better else "maximum"


def _with_prefix(metrics: Metrics | GroupMetrics) -> dict[str, float]:
    """The metrics of a score beside the main one and of those after it, under names that begin with the score's."""
    own = replace(metrics, other=None).by_name().items()
    found = {key if key == metrics.score else f"{metrics.score}_{key}": value for key, value in own}
    return found if metrics.other is None else found | _with_prefix(metrics.other)


def client_scores(sums: Tensor, total: Tensor, score: Score | None = None) -> Tensor:
    """The score of every client that has test data, shape (clients with data,); None: the main score."""
    samples = total.sum(1)
    has_samples = samples > 0
    return (score or scores_of(sums)[0]).values(sums.sum(1)[has_samples], samples[has_samples])


def spread_in_clients(sums: Tensor, total: Tensor, score: Score | None = None) -> Tensor:
    """Population std of the score over the groups of every client that has test data, (clients with data,)."""
    present = total > 0  # (N, K)
    values = (score or scores_of(sums)[0]).values(sums, total.clamp(min=1))
    count = present.sum(1).clamp(min=1).double()
    mean = (values * present).sum(1) / count
    variance = ((values - mean[:, None]).square() * present).sum(1) / count
    return variance.sqrt()[present.any(1)]


def sampling_variances(sums: Tensor, samples: Tensor) -> Tensor:
    """The variance of every score due to its few samples, unbiased, in the shape of `samples`; NaN: unknown.

    Sums of language and multilabel have no squares of the main score, so that their variances are unknown.

    Args:
        sums: correct predictions, or absolute and squared errors in a further dimension; see `metrics`
        samples: their number
    """
    n, score = samples.double(), scores_of(sums)[0]
    if score not in (ACCURACY, MAE):
        return torch.full_like(n, math.nan)
    mean = score.values(sums, samples)
    squares = 100 * mean if score is ACCURACY else sums[..., 1] / n  # mean of the squared scores of samples
    of_one = (squares - mean.square()).clamp(min=0) * n / (n - 1)  # variance of the score of one sample
    return torch.where(samples > 1, of_one, of_one[samples > 1].mean()).where(samples > 0, math.nan) / n


def variance_beyond_chance(values: Tensor, variances: Tensor) -> Tensor:
    """The variance of true values in every row, without what chance adds to it; may be below 0; NaN does not count."""
    count = (~variances.isnan()).sum(-1).double()
    mean = values.nanmean(-1, keepdim=True)
    return (values - mean).square().nanmean(-1) - (1 - 1 / count) * variances.nanmean(-1)


def _client_spread_beyond_chance(sums: Tensor, total: Tensor) -> float | None:
    """The standard deviation over clients of the true main score; None: unknown."""
    samples = total.sum(1)
    variances = sampling_variances(sums.sum(1), samples)[samples > 0]
    variance = variance_beyond_chance(client_scores(sums, total), variances)
    return None if variance.isnan() else variance.clamp(min=0).sqrt().item()


def compute_metrics(sums: Tensor, total: Tensor) -> Metrics:
    """All metrics from sums and samples, both by client and group, over the clients that have test data.

    >>> import torch
    >>> m = compute_metrics(torch.tensor([[9, 5], [10, 0]]), torch.tensor([[10, 10], [10, 0]]))
    >>> m.accuracy, m.client_fairness, m.client_data_fairness
    (85.0, 15.0, (10.0, 10.0))
    """
    if total.dim() != 2 or sums.shape[:2] != total.shape or sums.dim() != 2 + sums.is_floating_point():
        raise InputError(
            "counts must be two tables of one shape (clients, groups), "
            f"got {tuple(sums.shape)} and {tuple(total.shape)}"
        )
    if (sums < 0).any() or (scores_of(sums)[0] is ACCURACY and (sums > total).any()):
        raise InputError("a client has more correct predictions than samples in a class, or a negative count")
    if not total.any():
        raise InputError("no client has any test data to evaluate on")
    return _metrics_of(scores_of(sums), sums, total)


def _metrics_of(scores: tuple[Score, ...], sums: Tensor, total: Tensor) -> Metrics:
    score, *others = scores
    values = client_scores(sums, total, score)
    spread = spread_in_clients(sums, total, score)
    ordered = values.sort(descending=not score.higher_is_better).values  # the worst first
    tenth = math.ceil(len(ordered) / 10)
    return Metrics(
        score=score.name,
        mean=values.mean().item(),
        client_fairness=values.std(correction=0).item(),
        client_data_fairness=(spread.mean().item(), spread.std(correction=0).item()),
        worst=ordered[:tenth].mean().item(),
        best=ordered[-tenth:].mean().item(),
        worst_client=ordered[0].item(),
        clients=len(ordered),
        beyond_chance=_client_spread_beyond_chance(sums, total) if score is scores_of(sums)[0] else None,
        other=_metrics_of(tuple(others), sums, total) if others else None,
    )


def compute_group_metrics(counts: GroupCounts, names: tuple[str, ...]) -> GroupMetrics:
    """The metrics of one grouping.

    >>> import torch
    >>> counts = GroupCounts(torch.tensor([[9, 5], [10, 0]]), torch.tensor([[10, 10], [10, 0]]))
    >>> found = compute_group_metrics(counts, ("f", "m"))
    >>> found.accuracy, found.worst, found.spread, found.client_spread, found.client_worst
    ({'f': 95.0, 'm': 50.0}, ('m', 50.0), 22.5, (10.0, 10.0), 75.0)
    """
    return _group_metrics_of(scores_of(counts.sums), *counts, names)


def _group_metrics_of(scores: tuple[Score, ...], sums: Tensor, total: Tensor, names: tuple[str, ...]) -> GroupMetrics:
    score, *others = scores
    pooled = score.values(sums.sum(0), total.sum(0))
    present = total.sum(0) > 0
    spread = spread_in_clients(sums, total, score)
    worst = score.worst(score.values(sums, total), 1)[total.sum(1) > 0]
    return GroupMetrics(
        score=score.name,
        values={name: value for name, value, kept in zip(names, pooled.tolist(), present, strict=True) if kept},
        spread=pooled[present].std(correction=0).item(),
        client_spread=(spread.mean().item(), spread.std(correction=0).item()),
        client_worst=worst.mean().item(),
        other=_group_metrics_of(tuple(others), sums, total, names) if others else None,
    )
