"""What is trained, and on what: a lane is one model that descends on one client's batches."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from fedtilt import seeds


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalJob:
    """Start here; every step is one mini-batch, −lr · (∇R(tau, lam) + pull · (θ − anchor))."""

    start: Tensor  # (P,)
    anchor: Tensor  # (P,)
    prox: float
    tau: float
    lam: float
    lr: float

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two lanes of one client that must come out the same; anchors count only where they pull."""
        return id(self.start), id(self.anchor) if self.prox else None, self.prox, self.tau, self.lam, self.lr


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches:
    """A client's data of one round and the order it is visited in, the same for all of the client's lanes."""

    x: Tensor  # (n, …)
    y: Tensor  # (n,)
    order: Tensor  # (epochs, n): a permutation per epoch
    size: int  # samples a batch; the last of an epoch may be smaller
    key: int  # for what is random inside a model (dropout)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for order in self.order:
            x, y = self.x[order], self.y[order]  # one gather an epoch; batches are views of it
            yield from zip(x.split(self.size), y.split(self.size), strict=True)

    @property
    def per_epoch(self) -> int:
        """Steps of one epoch."""
        return -(-len(self.y) // self.size)

    def __len__(self) -> int:
        return len(self.order) * self.per_epoch


def make_batches(x: Tensor, y: Tensor, *, seed: int, round: int, client: int, epochs: int, batch_size: int) -> Batches:
    """The batches of one client's round: the order depends on (seed, round, client) alone."""
    order = seeds.permutations(seeds.key(seed, "order", round=round, client=client), epochs, len(y), device=y.device)
    return Batches(
        x=x,
        y=y,
        order=order,
        size=max(1, min(batch_size, len(y))),
        key=seeds.key(seed, "dropout", round=round, client=client),
    )


def deduplicate(jobs: list[LocalJob]) -> tuple[list[LocalJob], list[int]]:
    """The distinct lanes, and for every lane the place of its twin among them."""
    places: dict[tuple[object, ...], int] = {}
    distinct: list[LocalJob] = []
    where = []
    for job in jobs:
        if job.identity not in places:
            places[job.identity] = len(distinct)
            distinct.append(job)
        where.append(places[job.identity])
    return distinct, where
