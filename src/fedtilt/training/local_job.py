"""A local job: one model that is trained on one client's batches in one round."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from fedtilt import seeds


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalJob:
    """Gradient descent from `start`, one mini-batch a step: θ ← θ − lr · (∇R(tau, lam) + prox · (θ − anchor))."""

    start: Tensor  # (P,)
    anchor: Tensor  # (P,) the centre of the proximal term
    prox: float  # strength of the proximal term, 0 for none
    tau: float
    lam: float
    lr: float

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two jobs of one client that give the same result; without a proximal term the anchor is unused."""
        return id(self.start), id(self.anchor) if self.prox else None, self.prox, self.tau, self.lam, self.lr


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches:
    """A client's data of one round and the order of its samples, the same for all jobs of the client."""

    x: Tensor  # (n, …)
    y: Tensor  # (n,)
    order: Tensor  # (epochs, n): a permutation per epoch
    size: int  # samples per batch; the last batch of an epoch may be smaller
    key: int  # seeds the randomness inside a model (dropout)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for order in self.order:
            x, y = self.x[order], self.y[order]  # one gather per epoch; batches are views of it
            yield from zip(x.split(self.size), y.split(self.size), strict=True)

    @property
    def per_epoch(self) -> int:
        """Batches per epoch."""
        return -(-len(self.y) // self.size)

    def __len__(self) -> int:
        return len(self.order) * self.per_epoch


def make_batches(x: Tensor, y: Tensor, *, seed: int, round: int, client: int, epochs: int, batch_size: int) -> Batches:
    """The batches of one client in one round; their order depends on (seed, round, client) alone.

    Args:
        x: The client's samples, (n, …).
        y: Their labels, (n,).
        seed: The seed of the run.
        round: The number of the round.
        client: The number of the client.
        epochs: Passes over the data.
        batch_size: Samples per batch, at most n.
    """
    order = seeds.permutations(seeds.key(seed, "order", round=round, client=client), epochs, len(y), device=y.device)
    return Batches(
        x=x,
        y=y,
        order=order,
        size=max(1, min(batch_size, len(y))),
        key=seeds.key(seed, "dropout", round=round, client=client),
    )


def deduplicate(jobs: list[LocalJob]) -> tuple[list[LocalJob], list[int]]:
    """The distinct jobs, and for every job the index of its equal among them."""
    index_of: dict[tuple[object, ...], int] = {}
    distinct: list[LocalJob] = []
    indices = []
    for job in jobs:
        if job.identity not in index_of:
            index_of[job.identity] = len(distinct)
            distinct.append(job)
        indices.append(index_of[job.identity])
    return distinct, indices
