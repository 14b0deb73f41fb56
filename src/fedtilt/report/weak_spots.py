"""Where a method fails: the client and the class or group that it fails most, and the clients with the worst scores."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedtilt.evaluation.scores import Score, client_scores
from fedtilt.evaluation.true_spread import client_estimates, knows_variances
from fedtilt.report.run_reader import Run, SeedRun


def knows_chance(run: Run) -> bool:
    """Whether the part of chance in the scores is known; otherwise, nothing can be said to fail beyond it."""
    return all(knows_variances(s.sums(run.methods[0]), s.total) for s in run.compared)


class Worst(NamedTuple):
    """The client, or the class or group, that a method fails most: the worst of those below the mean beyond chance."""

    name: str
    value: float  # estimate of its true score
    low: float  # of its interval
    high: float
    seed: int | None = None  # of a client, or of a range that other seeds do not have

    @classmethod
    def of(
        cls, score: Score, sums: Tensor, total: Tensor, names: Sequence[str], seed: int | None = None
    ) -> Self | None:
        """The worst of several clients or groups, from sums and samples; None: chance explains all, or unknown."""
        found = client_estimates(sums[:, None], total[:, None])
        i = found.worst(score.higher_is_better)
        if i is None:
            return None
        return cls(names[i], float(found.estimate[i]), float(found.low[i]), float(found.high[i]), seed)


def worst_client(run: Run, method: str) -> Worst | None:
    """The client that a method fails most, of all seeds, which have clients of their own."""
    found = [Worst.of(run.score, s.sums(method).sum(1), s.total.sum(1), s.client_names, s.seed) for s in run.compared]
    worst = [client for client in found if client is not None]
    return (min if run.score.higher_is_better else max)(worst, key=lambda client: client.value, default=None)


def worst_group(run: Run, method: str) -> Worst | None:
    """The class or group that a method fails most, over the samples of all clients and seeds.

    The ranges of a target depend on the training samples: if seeds have others, it is one of the first seed.
    """
    first, seed_runs, seed = run.compared[0], run.compared, None
    if any(s.class_names != first.class_names for s in run.compared):
        seed_runs, seed = run.compared[:1], first.seed
    sums = torch.stack([s.sums(method).sum(0) for s in seed_runs]).sum(0)
    total = torch.stack([s.total.sum(0) for s in seed_runs]).sum(0)
    return Worst.of(run.score, sums, total, first.class_names, seed)


class ClientScores(NamedTuple):
    """The score of every method on one client."""

    seed_run: SeedRun
    client: int
    samples: int
    values: dict[str, float]  # by method


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
    worst = [_client_scores(methods, run.compared[i], client) for i, client in list(dict.fromkeys(turns))[:limit]]
    return sorted(worst, key=lambda entry: min(sign * value for value in entry.values.values()))


def _client_scores(methods: Sequence[str], seed_run: SeedRun, client: int) -> ClientScores:
    total = seed_run.total[[client]]
    values = {m: float(client_scores(seed_run.sums(m)[[client]], total)) for m in methods}
    return ClientScores(seed_run, client, int(total.sum()), values)
