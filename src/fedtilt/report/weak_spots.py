"""Where a method fails: the client and the class or group that it fails most, and the clients with the worst scores."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch

from fedtilt.evaluation.metrics import GroupCounts
from fedtilt.evaluation.scores import Score, client_scores
from fedtilt.evaluation.true_spread import client_estimates, knows_variances
from fedtilt.report.run_reader import Run, SeedRun


def knows_chance(run: Run) -> bool:
    """Whether the part of chance in the scores is known; otherwise, nothing can be said to fail beyond it."""
    return all(knows_variances(*s.of_chance(run.methods[0]), fixed_shares=s.fixed_shares) for s in run.compared)


class Worst(NamedTuple):
    """The client, or the class or group, that a method fails most: the worst of those below the mean beyond chance."""

    name: str
    value: float  # estimate of its true score
    low: float  # of its interval
    high: float
    seed: int | None = None  # None: of all seeds

    @classmethod
    def of(
        cls, score: Score, counts: GroupCounts, names: Sequence[str], seed: int | None = None, *,
        fixed_shares: bool = False, error: float = 0.05,
    ) -> Self | None:  # fmt: skip
        """The worst of several, named wrongly with the probability `error` at most; None: all is chance, or unknown."""
        found = client_estimates(*counts, fixed_shares=fixed_shares)
        i = found.worst(score.higher_is_better, error)
        if i is None:
            return None
        return cls(names[i], float(found.estimate[i]), float(found.low[i]), float(found.high[i]), seed)


def worst_client(run: Run, method: str) -> Worst | None:
    """The client that a method fails most, of all seeds, which have clients of their own."""
    error = 0.05 / len(run.compared)
    found = [
        Worst.of(run.score, s.of_chance(method), s.client_names, s.seed, fixed_shares=s.fixed_shares, error=error)
        for s in run.compared
    ]
    worst = [client for client in found if client is not None]
    return (min if run.score.higher_is_better else max)(worst, key=lambda client: client.value, default=None)


def worst_group(run: Run, method: str) -> Worst | None:
    """The class or group that a method fails most, over the samples of all clients in the first seed.

    Other seeds have new samples if data is generated; otherwise they draw the same rows again, and are no more samples.
    """
    first, seed_runs = run.compared[0], run.compared
    if not first.generated or any(s.class_names != first.class_names for s in run.compared):
        seed_runs = run.compared[:1]
    sums = torch.stack([s.sums(method).sum(0) for s in seed_runs]).sum(0)
    total = torch.stack([s.total.sum(0) for s in seed_runs]).sum(0)
    seed = first.seed if len(seed_runs) < len(run.compared) else None
    return Worst.of(run.score, GroupCounts(sums[:, None], total[:, None]), first.class_names, seed)


class ClientScores(NamedTuple):
    """The score of every method on one client."""

    seed_run: SeedRun
    client: int
    values: dict[str, float]  # by method

    @property
    def never_selected(self) -> bool:
        """Whether a method has no personal model of it, though it has of others."""
        counts = [self.seed_run.counts[method] for method in self.values]
        return any(found.personal is not None and bool(found.never_selected[self.client]) for found in counts)


def worst_clients(run: Run, methods: Sequence[str], limit: int = 12) -> list[ClientScores]:
    """The clients with the worst score under any method, worst first; methods contribute clients in turn."""
    sign = 1 if run.score.higher_is_better else -1
    queues = []
    for method in methods:
        entries = []
        for i, seed_run in enumerate(run.compared):
            values = sign * client_scores(seed_run.sums(method), seed_run.total)
            entries += [(v, i, client) for client, v in zip(seed_run.tested, values.tolist(), strict=True)]
        queues.append(sorted(entries)[:limit])
    turns = [(i, client) for turn in zip(*queues, strict=True) for _, i, client in turn]
    worst = []
    for i, client in list(dict.fromkeys(turns))[:limit]:
        seed_run, rows = run.compared[i], slice(client, client + 1)
        by_method = {m: float(client_scores(seed_run.sums(m)[rows], seed_run.total[rows])) for m in methods}
        worst.append(ClientScores(seed_run, client, by_method))
    return sorted(worst, key=lambda entry: min(sign * value for value in entry.values.values()))
