"""From what was collected to one suspicion score per sample: the estimated probability that its label is wrong.

1. Evidence for each class, out of sample: g_k, the logarithm of the probability that the received models give it,
   averaged over the rounds of the client, of which the r-th counts r times because later models are better.

2. The noise model. A sample is truly of class k with probability

       p_k ∝ exp(g_k / T) · s_k

   Its label y is right, or it is wrong with a share e of its client, drawn to that of all, and has another class by a
   confusion q of all clients:

       P(y) = (1 − e) p_y + e Σ_k≠y p_k q(y | k)

   s_k is the number of other samples of the client that are truly of class k, as far as that is known: a federation of
   clients with few classes trains a shared model that does not know which ones a client has. Without the sample itself,
   since otherwise a wrong label of a class that the client does not have would vouch for itself. Where the inputs alone
   tell the class, s is 1: shares would teach the audit the habit of a client. e, q and s maximise the likelihood by
   expectation–maximisation, q with a few wrong labels spread evenly. T is the best of a grid: it tells wrong labels
   from classes that the inputs do not tell apart. The score is the posterior probability that the label is wrong.

3. With shares, the evidence is also corrected by what a ridge regression of the client's labels on the
   log-probabilities, without a sample, predicts for it. It trusts a label as far as step 2 does, so that it does not
   learn a habit either. Its weight grows with the number of samples, and with its agreement with the shared model. Step
   2 is taken again, and the result with the higher likelihood is used.

A model that was trained on wrong labels is a little unsure of every sample of a class. With two classes, a higher T
then explains these labels as well as noise does; where the inputs tell the classes, the score is that of the mixture
below. Where inputs hardly tell the class (`told_part`), many wrong labels and none explain the labels equally well.
Then no label is named, and a warning says so; the order of labels is that of p_y, without the noise.

Confident learning estimates confusions by counting (Northcutt, Jiang, Chuang, JAIR 2021, arXiv 1911.00068); the
likelihood is that of Dawid and Skene (Applied Statistics 28, 1979) with one label per sample; class shares by
expectation–maximisation are from Saerens, Latinne and Decaestecker (Neural Computation 14, 2002).

Losses alone (`labels.audit`) have no classes. There too, right and wrong labels are two normal distributions of the
margin with one variance, a mixture as in DivideMix (Li et al., ICLR 2020, arXiv 2002.07394). The mean of the wrong
ones is at most minus half that of the right ones: a wrong label is below the true class about as far as a right one is
above the others. Without it, the mixture would split clean data in two.

Tests with planted flips compare it with the truth: see docs/audit.md.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.auditing.collect import margins
from fedtilt.data.data_warnings import warn

_RIDGE = 10.0  # strength of the regression, in samples
_HALF_WEIGHT = 100  # the regression counts half as much as the shared model at a client with this many samples
_LEAST_WRONG = 0.5  # the mean margin of wrong labels is at most minus so much of that of right ones
_PRIOR_SAMPLES = 10.0  # how strongly the share of wrong labels of a client is drawn to that of all
_ITERATIONS = 200
_TEMPERATURES = tuple(10 ** (k / 5) for k in range(-3, 5))
_FINER = (0.8, 1.0, 1.25)  # of the best of these temperatures
_TRIAL_STEPS, _LAST_STEPS = 12, 30  # of expectation–maximisation, at every temperature and at the best one
_FIRST_SHARE = 0.1  # of wrong labels, where the fit starts
_CONFUSION_PRIOR = 2.0  # wrong labels of every class that are spread evenly over the others
_CLASS_PRIOR = 1.0  # samples of a client that are spread evenly over the classes
_HABIT = 0.02  # nats per label that class shares have to gain, since they learn the habit of a client too
_LEAST_TOLD = 0.35  # a fit in which inputs and labels together tell less of the class names none
_TOLD_APART = 0.5  # of two classes: a fit that explains this much of what class shares leave open of the labels
_MANY_WRONG = 0.05  # a share of wrong labels that is worth a warning then


class Noise(NamedTuple):
    """Shares of wrong labels, and which label a wrong one has."""

    shares: Tensor  # (clients,)
    confusion: Tensor  # (K, K): the probability of a wrong label (columns), given the true class (rows)


class Fit(NamedTuple):
    """The noise model, fitted to the labels of all clients together."""

    noise: Noise
    temperature: float
    with_shares: bool  # of classes in the client
    p: Tensor  # (n, K) the probability of each class without the label of the sample
    posterior: Tensor  # (n, K) and with it
    log_likelihood: float

    def wrong(self, y: Tensor) -> Tensor:
        """The probability that each label is wrong, (n,)."""
        return (1 - self.posterior.gather(1, y[:, None])[:, 0]).clamp(0.0, 1.0)

    def merit(self, y: Tensor) -> float:
        """What the best fit has most of: the log-likelihood, less what class shares have to gain."""
        return self.log_likelihood - _HABIT * self.with_shares * len(y)


def fit_noise(evidence: Tensor, y: Tensor, client: Tensor, with_shares: Sequence[bool] = (False, True)) -> Fit:
    """The noise model at the best temperature, with class shares or without.

    Args:
        evidence: for each class, of models that were not trained on these labels, (n, K)
        y: labels (n,)
        client: the number of the client of each sample, from 0, (n,)
        with_shares: the choices
    """
    classes, clients = evidence.shape[1], int(client.max()) + 1
    noise = Noise(
        torch.full((clients,), _FIRST_SHARE, dtype=evidence.dtype),
        torch.full((classes, classes), 1 / max(1, classes - 1), dtype=evidence.dtype).fill_diagonal_(0.0),
    )
    as_labelled = torch.nn.functional.one_hot(y, classes).to(evidence)
    tried = [
        _maximise(evidence, y, client, Fit(noise, t, s, as_labelled, as_labelled, 0.0), _TRIAL_STEPS)
        for t in _TEMPERATURES
        for s in with_shares
    ]
    best = max(tried, key=lambda fit: fit.merit(y))
    finer = [
        _maximise(evidence, y, client, best._replace(temperature=f * best.temperature), _TRIAL_STEPS) for f in _FINER
    ]
    return _maximise(evidence, y, client, max(finer, key=lambda fit: fit.merit(y)), _LAST_STEPS)


def _maximise(evidence: Tensor, y: Tensor, client: Tensor, fit: Fit, steps: int) -> Fit:
    """Expectation–maximisation at one temperature, with class shares or without."""
    noise, posterior = fit.noise, fit.posterior
    sizes = torch.bincount(client, minlength=len(noise.shares)).to(evidence)
    is_label = torch.nn.functional.one_hot(y, evidence.shape[1]).to(evidence)
    for _ in range(steps):
        prior = _other_samples(posterior, client).log() if fit.with_shares else 0.0
        p = (evidence / fit.temperature + prior).softmax(1)
        joint = p * label_probabilities(noise, y, client)
        total = joint.sum(1, keepdim=True).clamp_min(1e-300)
        posterior = joint / total
        wrong = posterior * (1 - is_label)
        by_client = torch.zeros_like(sizes).index_add_(0, client, wrong.sum(1))
        shares = (by_client + _PRIOR_SAMPLES * by_client.sum() / sizes.sum()) / (sizes + _PRIOR_SAMPLES)
        confusion = _with_prior(wrong.T @ is_label)
        noise = Noise(shares.clamp(1e-6, 0.95), confusion)
    return Fit(noise, fit.temperature, fit.with_shares, p, posterior, float(total.log().sum()))


def told_part(fit: Fit, y: Tensor, client: Tensor) -> float:
    """How far inputs tell the class, times how far labels do: 1 − H(p) / H(class shares), times |1 − e K / (K − 1)|.

    Either is 0 if it tells nothing, and 1 if it tells all; e is the share of wrong labels of a client.
    """
    classes = fit.p.shape[1]
    inputs = 1 + float((fit.p * _log(fit.p)).sum()) / -_log_likelihood_of_shares(y, client, classes)
    labels = (1 - fit.noise.shares[client] * classes / max(1, classes - 1)).abs().mean()
    return inputs * float(labels)


def explained_part(fit: Fit, y: Tensor, client: Tensor) -> float:
    """How much better than class shares the fit explains the labels: 1 − its log-likelihood / that of the shares."""
    return 1 - fit.log_likelihood / _log_likelihood_of_shares(y, client, fit.p.shape[1])


def _log_likelihood_of_shares(y: Tensor, client: Tensor, classes: int) -> float:
    """That of the labels, by the class shares of their client or of all, whichever is higher; below 0."""
    shares = _other_samples(torch.nn.functional.one_hot(y, classes).double(), client)
    of_client = float((shares / shares.sum(1, keepdim=True)).gather(1, y[:, None]).log().sum())
    counts = torch.bincount(y, minlength=classes).double()
    of_all = float((counts * _log(counts / counts.sum())).sum())
    return min(max(of_client, of_all), -1e-9)


def _other_samples(classes: Tensor, client: Tensor) -> Tensor:
    """How many other samples of its client each sample has of every class, (n, K), with a prior.

    Args:
        classes: probabilities of the classes of each sample, (n, K)
        client: the number of the client of each sample (n,)
    """
    counts = torch.zeros(int(client.max()) + 1, classes.shape[1], dtype=classes.dtype).index_add_(0, client, classes)
    return (counts[client] - classes).clamp_min(0.0) + _CLASS_PRIOR / classes.shape[1]


def label_probabilities(noise: Noise, y: Tensor, client: Tensor) -> Tensor:
    """The probability of each label, given the true class, (n, K): 1 − e if it is the class, else e q(y | k)."""
    e = noise.shares[client][:, None]
    return (e * noise.confusion.T[y]).scatter(1, y[:, None], 1 - e)


def _with_prior(counts: Tensor) -> Tensor:
    """Rows of shares from counts of wrong labels and of those that are spread evenly; the diagonal is 0."""
    classes = len(counts)
    counts = (counts + _CONFUSION_PRIOR / max(1, classes - 1)).fill_diagonal_(0.0)
    return counts / counts.sum(1, keepdim=True).clamp_min(1e-300)


def _local_evidence(log_p: Tensor, y: Tensor, trust: Tensor, shared: Tensor) -> Tensor:
    """What the other samples of a client say about each of its samples, on the scale of the shared evidence, (n, K)."""
    local = _leave_one_out(log_p, y, trust)
    a, b = margins(shared, y), margins(local, y)
    scale = a.abs().mean() / b.abs().mean().clamp_min(1e-9)
    return len(y) / (len(y) + _HALF_WEIGHT) * _correlation(a, b).clamp_min(0.0) * scale * local


def _leave_one_out(log_p: Tensor, y: Tensor, trust: Tensor) -> Tensor:
    """What a ridge regression of the labels on the log-probabilities, without a sample, predicts for it, (n, K).

    Args:
        log_p: log-probabilities of models that were not trained on these labels, (n, K)
        y: labels (n,)
        trust: the weight of each sample, (n,) in [0, 1]
    """
    n = len(y)
    x = log_p - log_p.mean(0)
    x = torch.cat([x / x.std(unbiased=False).clamp_min(1e-9), torch.ones(n, 1, dtype=x.dtype)], 1)
    penalty = torch.full((x.shape[1],), _RIDGE, dtype=x.dtype)
    penalty[-1] = 1e-6  # the intercept
    weighted = (x * trust[:, None]).T
    solution = torch.linalg.solve(weighted @ x + penalty.diag(), weighted)  # (K + 1, n)
    leverage = (x * solution.T).sum(1, keepdim=True).clamp(max=0.99)
    targets = torch.nn.functional.one_hot(y, log_p.shape[1]).to(x)
    return (x @ (solution @ targets) - leverage * targets) / (1 - leverage)


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(), b - b.mean()
    return (a @ b) / (a.norm() * b.norm()).clamp_min(1e-12)


class Mixture(NamedTuple):
    """Right and wrong labels as two normal distributions of the margin."""

    right: float  # mean margin of right labels
    wrong: float  # mean margin of wrong labels
    deviation: float
    shares: Tensor  # (clients,) share of wrong labels

    def score(self, margin: Tensor, client: Tensor) -> Tensor:
        """The probability that a label is wrong."""
        slope = (self.wrong - self.right) / self.deviation**2
        middle = (self.wrong + self.right) / 2
        return (slope * (margin - middle) + self.shares[client].logit()).sigmoid()


def fit_mixture(margin: Tensor, client: Tensor, clients: int) -> Mixture:
    """The mixture by expectation–maximisation.

    Args:
        margin: margins of the labels (n,), negative for labels that look wrong
        client: the number of the client of each sample (n,)
        clients: the number of clients
    """
    margin = margin.double()
    sizes = torch.bincount(client, minlength=clients).double()
    deviation = math.sqrt(float(margin.var(unbiased=False)) / 2 + 1e-6)
    least = 0.1 * deviation  # right labels are on the right side, so that the order by margin stays
    right = max(float(margin.median()), least)
    mixture = Mixture(right, -right, deviation, torch.full((clients,), 0.1, dtype=torch.float64))
    for _ in range(_ITERATIONS):
        p = mixture.score(margin, client)
        share = float(p.mean().clamp(1e-6, 1 - 1e-6))
        right = max(float(((1 - p) * margin).sum() / (1 - p).sum().clamp_min(1e-9)), least)
        wrong = min(float((p * margin).sum() / p.sum().clamp_min(1e-9)), -_LEAST_WRONG * right)
        variance = float(((1 - p) * (margin - right) ** 2 + p * (margin - wrong) ** 2).mean())
        by_client = torch.zeros(clients, dtype=torch.float64).index_add_(0, client, p)
        shares = (by_client + _PRIOR_SAMPLES * share) / (sizes + _PRIOR_SAMPLES)
        before = mixture
        mixture = Mixture(right, wrong, math.sqrt(variance + 1e-6), shares.clamp(1e-9, 1 - 1e-9))
        if float((mixture.shares - before.shares).abs().max()) + abs(mixture.wrong - before.wrong) < 1e-6:
            break
    return mixture


class Share(NamedTuple):
    """An estimated share of wrong labels, with a 95 % interval."""

    share: float
    low: float
    high: float


def wrong_label_share(scores: Tensor) -> Share:
    """The mean score, with Wilson's interval; it does not cover errors of the mixture itself.

    >>> wrong_label_share(torch.full((100,), 0.5)).share
    0.5
    """
    n, p, z = len(scores), float(scores.mean()), 1.959964
    if not n:
        return Share(math.nan, 0.0, 1.0)
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Share(p, max(0.0, (centre - spread) / (1 + z * z / n)), min(1.0, (centre + spread) / (1 + z * z / n)))


def expected_precision(scores: Tensor) -> Tensor:
    """For every number of worst samples, the share of them that is expected to be wrong: the mean of their scores."""
    ordered = scores.sort(descending=True).values
    return ordered.cumsum(0) / torch.arange(1, len(ordered) + 1)


def score_clients(log_p: Sequence[Tensor], labels: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Score, margin and the class it looks like, of all samples of these clients, one client after the other.

    The margin is the logarithm of the odds that the label is right.
    """
    sizes = [len(y) for y in labels]
    y, client = torch.cat(list(labels)), torch.repeat_interleave(torch.arange(len(labels)), torch.tensor(sizes))
    evidence = torch.cat(list(log_p))
    fit = fit_noise(evidence, y, client)
    if fit.with_shares:
        trust, shared = 1 - fit.wrong(y), fit.temperature * _log(fit.p)
        parts = zip(log_p, labels, trust.split(sizes), shared.split(sizes), strict=True)
        local = torch.cat([_local_evidence(*part) for part in parts])
        fit = max(fit, fit_noise(evidence + local, y, client, (True,)), key=lambda fit: fit.merit(y))
    score, classes = fit.wrong(y), fit.posterior
    if told_part(fit, y, client) < _LEAST_TOLD:
        if float(score.mean()) > _MANY_WRONG:
            warn([
                "wrong labels and classes that the model does not tell apart explain these labels equally well: all "
                "scores are 0; train longer, or add inputs that tell the classes"
            ])  # fmt: skip
        score, classes = torch.zeros_like(score), fit.p  # without the noise that is not known
    elif evidence.shape[1] == 2 and explained_part(fit, y, client) >= _TOLD_APART:
        margin = margins(evidence, y)
        score = fit_mixture(margin, client, len(labels)).score(margin, client)
    is_label = torch.nn.functional.one_hot(y, evidence.shape[1]).bool()
    looks_like = classes.masked_fill(is_label & (score >= 0.5)[:, None], -1.0).argmax(1)
    own = classes.gather(1, y[:, None])[:, 0]
    return score, _log(own) - _log(1 - own), looks_like


def _log(p: Tensor) -> Tensor:
    return p.clamp_min(1e-300).log()
