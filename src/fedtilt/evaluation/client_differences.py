"""The difference of two methods in any metric as a mean of terms, one per client, on one draw of the test rows.

A mean over clients is one already. Of the other metrics, the terms are those of their linear approximation (influence
functions): their variance is that of the metric, and clients in which two methods are equal have a term of 0.

| metric | term of a client with values v and w, apart from a factor |
| --- | --- |
| std over clients | (v − v̄)² − (w − w̄)², which adds up to the difference of the variances |
| worst or best tenth | v and w cut at the mean of both methods' limits, so that only the clients beyond count |
| score of a group at all clients | the difference of its sums at the client |
| AUPRC, AUROC, F1, … of all rows | what changes without the client, by the jackknife |
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.evaluation.intervals import LARGE, MIN_CLIENTS
from fedtilt.evaluation.metrics import BEYOND_CHANCE
from fedtilt.evaluation.metrics_frame import with_targets
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.evaluation.scores import Score, client_scores, client_variances, scores_of, spread_in_clients
from fedtilt.evaluation.weighted_predictions import Array, PredictedClasses, Weighted

_UNITS = 100  # of a jackknife: the clients, or groups of them


def row_scores(predictions: Predictions) -> Tensor:
    """The main score of every row, (S,) float64: 100 for a correct prediction, else 0; minus an error or a loss."""
    sums = predictions.sums()
    score = scores_of(sums)[0]
    return (1 if score.higher_is_better else -1) * score.values(sums, torch.ones(len(sums)))


class Rows(NamedTuple):
    """What one method predicts on every test row."""

    clients: Array  # (S,) the number of the client
    scores: Array | None  # (S,) the main score, higher is better; None: not at hand
    samples: PredictedClasses | None  # of classes

    @classmethod
    def of(cls, predictions: Predictions) -> Self:
        """The rows of stored predictions."""
        samples = with_targets(predictions) if predictions.of_classes else None
        return cls(predictions.groupings[CLIENT].codes.numpy(), row_scores(predictions).numpy(), samples)


@dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """What several methods got on one draw of the test rows, such as one seed."""

    sums: Mapping[str, Tensor]  # by method, (clients, groups, …) as in `metrics`
    total: Tensor  # (clients, groups) rows
    rows: Callable[[str], Rows | None] = lambda method: None  # read where a verdict needs them; None: not at hand
    new_data: bool = False  # whether another seed draws new data, rather than divides the same rows again
    # what chance adds to the variance of each client's score, by method; None: the rows are random
    chance: Callable[[str], Tensor] | None = None

    def chance_of(self, method: str) -> Tensor:
        """What chance adds to the variance of each client's score, (clients,); NaN: unknown, or no rows."""
        return client_variances(self.sums[method], self.total) if self.chance is None else self.chance(method)


class Differences(NamedTuple):
    """The differences of pairs of methods; above 0, the first is better."""

    value: Array  # (pairs,)
    terms: Array  # (pairs, clients or units): their mean is close to the value
    differs: Array  # (pairs, units) bool: where the two methods are not equal
    freedom: int  # degrees of freedom of the variance of the terms
    is_mean: bool = False  # of the main score, so that the rows add up to it
    of_rows: bool = False  # of few clients, so that only rows can be tested
    reason: str = ""  # why there is nothing to say


def differences(draw: Draw, key: str, pairs: Sequence[tuple[str, str]], *, higher_is_better: bool) -> Differences:
    """The differences of pairs of methods in a metric: a key of `Metrics.by_name` or of `METRICS`, or of groups.

    Of groups, the columns of the sums: "group K", the score of column K over the rows of all clients; "worst group"
    and "group spread" of these; "worst in clients", the mean over clients of the score of the worst of their groups.
    """
    methods = list(dict.fromkeys(name for pair in pairs for name in pair))
    number = {name: n for n, name in enumerate(methods)}
    ours, theirs = np.array([[number[a], number[b]] for a, b in pairs]).reshape(-1, 2).T
    is_score = any(key == score.name for score in scores_of(draw.sums[methods[0]]))
    found = (_of_rows if key in METRICS and not is_score else _of_clients)(draw, key, methods)
    if isinstance(found, str):
        nothing = np.zeros((len(pairs), 1))
        return Differences(np.full(len(pairs), math.nan), nothing, nothing > 0, 1, reason=found)
    result = found(ours, theirs)
    sign = 1 if higher_is_better else -1
    return result._replace(value=sign * result.value, terms=sign * result.terms)


_Pairs = Callable[[Array, Array], Differences]  # of the numbers of both methods of every pair


def _of_clients(draw: Draw, key: str, methods: Sequence[str]) -> _Pairs | str:
    """From values of clients; or why not."""
    sums, total = [draw.sums[name] for name in methods], draw.total
    main, *others = scores_of(sums[0])
    score = next((s for s in others if key == s.name or key.startswith(f"{s.name}_")), main)
    what = key if score is main or key == score.name else key.removeprefix(f"{score.name}_")

    def values(of: Callable[..., Tensor]) -> Array:
        return np.stack([of(found, total, score).numpy() for found in sums])

    few = int((total.sum(1) > 0).sum()) < MIN_CLIENTS
    if what == main.name:
        return _means(values(client_scores), is_mean=True, of_rows=few)
    if few:
        return f"fewer than {MIN_CLIENTS} clients"
    if what.startswith("group ") or what in ("worst group", "group spread"):
        return _groups(sums, total, score, what)
    if what in ("minimum", "maximum"):
        return "one client alone, chosen by its rows"
    means = {score.name: client_scores, "worst in clients": _worst_in_clients}
    means["client_data_fairness_mean"] = spread_in_clients
    if what in means:
        return _means(values(means[what]))
    stds = {"client_fairness": client_scores, "client_data_fairness_std": spread_in_clients}
    if what in stds:
        return _stds(values(stds[what]))
    if what == BEYOND_CHANCE:
        chance = torch.stack([draw.chance_of(name) for name in methods])[:, total.sum(1) > 0]
        return "what chance adds is not known" if chance.isnan().any() else _stds(values(client_scores), chance.numpy())
    return _tails(values(client_scores), lowest=(what == "worst") == score.higher_is_better)


def _worst_in_clients(sums: Tensor, total: Tensor, score: Score) -> Tensor:
    return score.worst(score.values(sums, total), 1)[total.sum(1) > 0]


def _means(values: Array, *, is_mean: bool = False, of_rows: bool = False) -> _Pairs:
    def pairs(ours: Array, theirs: Array) -> Differences:
        terms = values[ours] - values[theirs]
        return Differences(terms.mean(1), terms, terms != 0, terms.shape[1] - 1, is_mean, of_rows)

    return pairs


def _stds(values: Array, chance: Array | None = None) -> _Pairs:
    """Of standard deviations over clients, as differences of variances; without `chance`, the variances of values."""
    squares, count = np.square(values - values.mean(1, keepdims=True)), values.shape[1]
    if chance is not None:
        squares = squares - (1 - 1 / count) * chance
    std = np.sqrt(np.maximum(0, squares.mean(1)))

    def pairs(ours: Array, theirs: Array) -> Differences:
        value, terms = std[ours] - std[theirs], squares[ours] - squares[theirs]
        scale = std[ours] + std[theirs]
        terms = terms / np.where(scale > 0, scale, 1)[:, None]
        return Differences(value, terms, values[ours] != values[theirs], count - 1)

    return pairs


def _tails(values: Array, *, lowest: bool) -> _Pairs:
    """Of the mean of the tenth of the clients with the lowest, or the highest, values."""
    values = values if lowest else -values
    count = values.shape[1]
    tenth = math.ceil(count / 10)
    ordered = np.sort(values, 1)
    means, limits = ordered[:, :tenth].mean(1), ordered[:, tenth - 1 : tenth + 1].mean(1)

    def pairs(ours: Array, theirs: Array) -> Differences:
        limit = (limits[ours] + limits[theirs])[:, None] / 2
        terms = (np.minimum(values[ours], limit) - np.minimum(values[theirs], limit)) * count / tenth
        value = means[ours] - means[theirs]
        return Differences(value if lowest else -value, terms if lowest else -terms, terms != 0, count - 1)

    return pairs


def _groups(sums: Sequence[Tensor], total: Tensor, score: Score, what: str) -> _Pairs | str:
    """Of the scores of groups over the rows of all clients: of one, of the worst, or their standard deviation."""
    tested, columns = total.sum(1) > 0, total.sum(0) > 0
    count = total[:, columns].sum(0).double().numpy()
    of_all = np.stack([score.values(found.sum(0), total.sum(0))[columns].numpy() for found in sums])
    of_rows = [score.values(found, total.clamp(min=1)) * total for found in sums]
    parts = np.stack([found[tested][:, columns].numpy() for found in of_rows]) / count  # (methods, clients, groups)
    if not np.allclose(parts.sum(1), of_all):
        return f"the {score.title} is not a mean of rows"
    clients, groups = parts.shape[1:]
    deviation = of_all - of_all.mean(1, keepdims=True)
    std = np.sqrt(np.square(deviation).mean(1))
    worst = of_all.argmin(1) if score.higher_is_better else of_all.argmax(1)

    def pairs(ours: Array, theirs: Array) -> Differences:
        change = parts[ours] - parts[theirs]
        if what == "group spread":  # exact: the difference of two variances is a product of sums and differences
            both = np.maximum(std[ours] + std[theirs], 1e-12)
            weights = (deviation[ours] + deviation[theirs]) / (groups * both[:, None])
            terms = clients * (change * weights[:, None]).sum(2)
            value = std[ours] - std[theirs]
        else:  # the worst group of the better method: its difference is at most that of both worst groups
            value = of_all[ours, worst[ours]] - of_all[theirs, worst[theirs]]
            is_better = (value > 0) == score.higher_is_better
            chosen = np.where(is_better, worst[ours], worst[theirs])
            if what != "worst group":
                chosen[:] = int(columns[: int(what[6:])].sum())
                value = of_all[ours, chosen] - of_all[theirs, chosen]
            terms = clients * np.take_along_axis(change, chosen[:, None, None], 2)[..., 0]
        return Differences(value, terms, (change != 0).any(2) & (terms != 0), clients - 1)

    return pairs


def _of_rows(draw: Draw, key: str, methods: Sequence[str]) -> _Pairs | str:
    """Of a metric of all rows, from its values without each client, or group of clients; or why not."""
    found = [draw.rows(name) for name in methods]
    samples = [each.samples for each in found if each is not None and each.samples is not None]
    first = found[0]
    if first is None or len(samples) < len(methods):
        return "the predictions are not stored"
    names, unit = np.unique(first.clients, return_inverse=True)
    rng = seeds.generator(seeds.key(0, "jackknife of metrics"))
    if len(names) < MIN_CLIENTS:  # the clients are fixed: groups of the rows of each
        for client in range(len(names)):
            members = rng.permutation(np.flatnonzero(first.clients == names[client]))
            unit[members] = client + len(names) * (np.arange(len(members)) % (_UNITS // len(names)))
        unit = np.unique(unit, return_inverse=True)[1]
    elif len(names) > _UNITS:
        unit = rng.permutation(len(names))[unit] % _UNITS
    units = int(unit.max()) + 1
    positive = samples[0].rarer if samples[0].positive is None else samples[0].positive
    informed = units if positive is None else len(np.unique(unit[samples[0].labels == positive]))
    if informed < MIN_CLIENTS:
        what = "clients" if len(names) >= MIN_CLIENTS else "groups of rows"
        return f"fewer than {MIN_CLIENTS} {what} with the rarer class"
    weights = np.concatenate([np.ones((1, units)), 1 - np.eye(units)])
    if len(unit) > LARGE:
        weighted = [Weighted(each, weights, unit) for each in samples]
    else:
        weighted = [Weighted(each, weights[:, unit]) for each in samples]
    values = np.stack([METRICS[key].values(each) for each in weighted])
    if np.isnan(values).any():
        return "not defined without one of the clients"

    def pairs(ours: Array, theirs: Array) -> Differences:
        change = values[ours] - values[theirs]
        value, without = change[:, 0], change[:, 1:]
        terms = units * value[:, None] - (units - 1) * without
        return Differences(value, terms, np.ones_like(terms, dtype=bool), informed - 1)

    return pairs
