"""Scores: what is summed of every sample of a task, and what follows from sums per client and group.

| task | sums over samples, (clients, groups, …) | scores |
| --- | --- | --- |
| classification | correct predictions, whole numbers | accuracy |
| regression | absolute and squared errors, float64 | MAE, RMSE |
| language | the loss of a sample, its share of right tokens, its tokens | loss, perplexity, token accuracy |
| multilabel | loss, share of right labels, whether all are, labels found, labels found or there | label accuracy, … |

A sample counts once, however many tokens or labels it has.
"""

import math
from collections.abc import Callable, Container
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtilt.data.targets import IGNORED, TARGETS, LabelTarget, NumericTarget, Target, TokenTarget
from fedtilt.math.losses import label_cross_entropy

_MOST_LOSS = 700.0  # a perplexity beyond is not a finite number
_NO_PREDICTION = -(2**40)  # in place of 0 or 1; a sum with it is below 0


class Score(NamedTuple):
    """A quantity that models are evaluated by."""

    name: str  # in files
    title: str  # in tables
    unit: str  # of a value; empty: that of the target
    higher_is_better: bool
    values: Callable[[Tensor, Tensor], Tensor]  # (sums, samples) → values of the shape of `samples`
    share: int | None = None  # of a mean of shares in [0, 1]: which of the sums is theirs; None: it has no bound

    @property
    def spread_unit(self) -> str:
        """The unit of a standard deviation."""
        return "points" if self.unit == "%" else self.unit

    def text(self, value: float, digits: int = 2) -> str:
        """A value with its unit.

        >>> ACCURACY.text(97.5, 0), MAE.text(43.21, 1)
        ('98 %', '43.2')
        """
        return f"{value:.{digits}f} {self.unit}".rstrip()

    def worst(self, values: Tensor, dim: int = -1) -> Tensor:
        """The worst of several values; NaN does not count."""
        if self.higher_is_better:
            return values.nan_to_num(nan=math.inf).amin(dim)
        return values.nan_to_num(nan=-math.inf).amax(dim)


def _error(name: str, title: str, values: Callable[[Tensor, Tensor], Tensor]) -> Score:
    return Score(name, title, "", False, values)


def _share(name: str, title: str, column: int) -> Score:
    return Score(name, title, "%", True, lambda sums, samples: 100 * sums[..., column] / samples.double(), column)


ACCURACY = Score("accuracy", "accuracy", "%", True, lambda correct, n: 100 * correct.double() / n.double())
MAE = _error("mae", "MAE", lambda sums, n: sums[..., 0] / n.double())
RMSE = _error("rmse", "RMSE", lambda sums, n: (sums[..., 1] / n.double()).sqrt())
LOSS = _error("loss", "loss", lambda sums, n: sums[..., 0] / n.double())
PERPLEXITY = _error("perplexity", "perplexity", lambda sums, n: LOSS.values(sums, n).clamp(max=_MOST_LOSS).exp())
TOKEN_ACCURACY = _share("token_accuracy", "token accuracy", 1)
LABEL_ACCURACY = _share("label_accuracy", "label accuracy", 1)
EXACT_MATCH = _share("exact_match", "exact match", 2)
MICRO_F1 = Score(  # of samples without a label, none of which is found: 100
    "micro_f1", "micro F1", "%", True,
    lambda s, n: torch.where(s[..., 4] > 0, 200 * s[..., 3] / s[..., 4], 100.0).where(n > 0, math.nan),
)  # fmt: skip
TASK_SCORES = {  # the main score first
    "classification": (ACCURACY,),
    "regression": (MAE, RMSE),
    "language": (LOSS, PERPLEXITY, TOKEN_ACCURACY),
    "multilabel": (LABEL_ACCURACY, EXACT_MATCH, MICRO_F1, LOSS),
}
SCORES = {score.name: score for scores in TASK_SCORES.values() for score in scores}


def main_score(names: Container[str]) -> Score:
    """The main score of a table that has these keys.

    >>> main_score({"mae": 1.0, "rmse": 2.0}).title
    'MAE'
    """
    return next(score for score in SCORES.values() if score.name in names)


def scores_of(sums: Tensor) -> tuple[Score, ...]:
    """The scores that follow from sums, the main one first."""
    if not sums.is_floating_point():
        return TASK_SCORES["classification"]
    return TASK_SCORES[next(task for task, target in TARGETS.items() if target.sums == sums.shape[-1])]


def others_of(score: Score) -> tuple[Score, ...]:
    """The scores beside a main one."""
    return next(scores[1:] for scores in TASK_SCORES.values() if scores[0] is score)


def shares_of(sums: Tensor) -> tuple[Score, Tensor] | None:
    """The first score that is a mean of shares of samples, and the sums of these; None: errors have no bound."""
    if not sums.is_floating_point():
        return ACCURACY, sums
    return next(((s, sums[..., s.share]) for s in scores_of(sums) if s.share is not None), None)


def no_sums(target: Target | None, *shape: int, device: torch.device | None = None) -> Tensor:
    """Sums of no samples; those that are no whole numbers are on the CPU, where the order of additions is fixed."""
    if target is None:
        return torch.zeros(shape, dtype=torch.long, device=device)
    return torch.zeros(*shape, target.sums, dtype=torch.float64)


def sample_sums(target: Target | None, outputs: Tensor, y: Tensor) -> Tensor:
    """What is summed of every sample: whole numbers (…) of classes (target None), or float64 (…, sums) on the CPU."""
    if isinstance(target, NumericTarget):
        return error_sums((target.predictions(outputs) - y.double()).cpu())
    if isinstance(target, TokenTarget):
        is_token = y != IGNORED
        tokens = is_token.sum(-1)
        logits = outputs.float().flatten(0, -2)
        losses = F.cross_entropy(logits, y.flatten(), reduction="none", ignore_index=IGNORED).reshape(y.shape)
        right = (outputs.argmax(-1) == y).sum(-1)
        return torch.stack([losses.double().sum(-1) / tokens, right.double() / tokens, tokens.double()], -1).cpu()
    if isinstance(target, LabelTarget):
        losses = label_cross_entropy(outputs.float().flatten(0, -2), y.flatten(0, -2)).reshape(y.shape[:-1])
        found, there = outputs > 0, y > 0  # a label is predicted if it is more probable than not
        right = (found == there).double()
        counts = (found & there).sum(-1), found.sum(-1) + there.sum(-1)
        columns = [losses.double(), right.mean(-1), right.amin(-1), *(count.double() for count in counts)]
        return torch.stack(columns, -1).cpu()
    right = (outputs.argmax(-1) == y).long()  # of NaN, the highest is the first
    return right.masked_fill(outputs.isnan().any(-1), _NO_PREDICTION)


def are_numbers(sums: Tensor) -> Tensor:
    """Where sums are of outputs that are numbers."""
    return sums.isfinite() if sums.is_floating_point() else sums >= 0


def error_sums(errors: Tensor) -> Tensor:
    """What is summed of the errors (…) of numbers, (…, 2)."""
    return torch.stack([errors.abs(), errors.square()], -1)


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


# -- the part of chance in scores ------------------------------------------------------------------------------------


def sampling_variances(sums: Tensor, samples: Tensor) -> Tensor:
    """The variance of every score due to its few samples, unbiased, in the shape of `samples`; NaN: unknown.

    Sums of language and multilabel have no squares of the main score, so that their variances are unknown.
    """
    n = samples.double()
    of_one = row_variances(sums, samples) * n / (n - 1)
    return torch.where(samples > 1, of_one, of_one[samples > 1].mean()).where(samples > 0, math.nan) / n


def row_variances(sums: Tensor, samples: Tensor) -> Tensor:
    """The population variance of the scores of single samples, in the shape of `samples`; NaN: unknown."""
    mean, squares = _row_moments(sums, samples)
    return (squares - mean.square()).clamp(min=0)


def class_variances(sums: Tensor, total: Tensor) -> Tensor:
    """The variance of a sample of every class over all clients, (K,).

    Each class has two average samples more, because all of a few may be right by chance.
    """
    n, average = total.sum(0), _row_moments(sums.sum((0, 1)), total.sum())
    moments = _row_moments(sums.sum(0), n).where(n > 0, 0.0)
    mean, squares = (n * moments + 2 * average[:, None]) / (n + 2)
    return (squares - mean.square()).clamp(min=0)


def _row_moments(sums: Tensor, samples: Tensor) -> Tensor:
    """The mean of the scores of single samples, and of their squares, (2, …)."""
    score = scores_of(sums)[0]
    mean = score.values(sums, samples)
    if score is ACCURACY:
        return torch.stack([mean, 100 * mean])
    return torch.stack([mean, sums[..., 1] / samples.double() if score is MAE else mean * math.nan])


def client_variances(sums: Tensor, total: Tensor, fixed_shares: bool = False) -> Tensor:
    """The sampling variances of the clients' main scores, (clients,); NaN: unknown, or no test data.

    With fixed shares of classes, chance is within them: groups must be the classes, and of one column it is unknown.
    """
    if not fixed_shares:
        return sampling_variances(sums.sum(1), total.sum(1))
    if total.shape[1] == 1:
        return total.sum(1) * math.nan
    of_cells = torch.where(total > 1, sampling_variances(sums, total), class_variances(sums, total))
    return (total.square() * of_cells).where(total > 0, 0.0).sum(1) / total.sum(1).square()


def variance_beyond_chance(values: Tensor, variances: Tensor) -> Tensor:
    """The variance of true values in every row, without what chance adds to it; may be below 0; NaN does not count."""
    count = (~variances.isnan()).sum(-1).double()
    mean = values.nanmean(-1, keepdim=True)
    return (values - mean).square().nanmean(-1) - (1 - 1 / count) * variances.nanmean(-1)
