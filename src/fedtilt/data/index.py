"""The samples of each client, by their positions in the data set."""

from collections.abc import Sequence

import torch
from torch import Tensor


def client_sizes(index: Sequence[Tensor]) -> Tensor:
    """The number of samples of each client, int64."""
    return torch.tensor([len(rows) for rows in index], dtype=torch.int64)


def owners(index: Sequence[Tensor]) -> Tensor:
    """The client of each sample, where samples are ordered by client."""
    return torch.repeat_interleave(torch.arange(len(index)), client_sizes(index))


def classes_by_client(y: Tensor, index: Sequence[Tensor], classes: int) -> list[Tensor]:
    """The classes of each client's samples, ascending."""
    present = torch.zeros(len(index), classes, dtype=torch.bool)
    present[owners(index), y[torch.cat(list(index))]] = True
    return list(present.nonzero()[:, 1].split(present.sum(1).tolist()))
