"""Copies between the host and a device that neither waits for."""

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device | str) -> Tensor:
    """Values of the host on a device; on CUDA, the host does not wait for the work that is queued there."""
    if torch.device(device).type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def as_rows(vectors: Sequence[Tensor]) -> Tensor:
    """Vectors (P,) as the rows of one tensor, which is not copied if they are its rows already; do not change it.

    >>> matrix = torch.zeros(3, 2)
    >>> as_rows(matrix.unbind()).data_ptr() == matrix.data_ptr()
    True
    """
    first = vectors[0]
    size, memory = first.numel() * first.element_size(), first.untyped_storage().data_ptr()
    lie_in_a_row = all(
        vector.data_ptr() == first.data_ptr() + i * size
        and vector.untyped_storage().data_ptr() == memory
        and vector.shape == first.shape
        and vector.dtype == first.dtype
        and vector.is_contiguous()
        for i, vector in enumerate(vectors)
    )
    if not lie_in_a_row:
        return torch.stack(list(vectors))
    return first.as_strided((len(vectors), *first.shape), (first.numel(), *first.stride()))
