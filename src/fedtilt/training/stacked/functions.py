"""Functions of `torch.nn.functional` in a form that batches over jobs, and that is deterministic on CUDA."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedtilt.training.dropout import Functions, Masks, keyed_dropout, written_out_attention
from fedtilt.training.stacked.layers import BatchedFunction

_TOKENS_AT_ONCE = 1024  # of a batch, that are compared with each other


@contextlib.contextmanager
def batched_functions() -> Iterator[Masks]:
    """Let layers call these functions and take keyed masks, in this thread; see `keyed_dropout`."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # of transformers in evaluation: it does not batch
    try:
        replaced: Functions = {"embedding": _embedding, "scaled_dot_product_attention": written_out_attention}
        with keyed_dropout(replaced) as masks:
            yield masks
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def _embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    if max_norm is not None:
        raise RuntimeError("an embedding with max_norm changes its own weights")
    if scale_grad_by_freq:
        raise RuntimeError("an embedding with scale_grad_by_freq counts the tokens of padding")
    rows = len(weight)
    skipped = rows if padding_idx is None else padding_idx % rows  # its gradient is 0
    (out,) = _Embedding.apply(input.reshape(-1), weight, skipped)
    return out.reshape(*input.shape, -1)


def _rows_of(index: Tensor, weight: Tensor, skipped: int) -> tuple[Tensor]:
    """The rows (L, n, D) of matrices (L, rows, D) at these indices (L, n)."""
    return (weight[torch.arange(len(weight), device=weight.device)[:, None], index],)


def _embedding_gradient(grad: Tensor, index: Tensor, rows: int, skipped: int) -> tuple[Tensor]:
    """Gradients (L, n, D) added up at their indices (L, n), in a fixed order: (L, rows, D).

    Of equal indices in a block, the first one has the sum of all, and the others go to a row behind the last.
    """
    total = grad.new_zeros(len(grad), rows + 1, grad.shape[2])
    model = torch.arange(len(grad), device=grad.device)[:, None]
    for of_block, grad_of_block in zip(index.split(_TOKENS_AT_ONCE, 1), grad.split(_TOKENS_AT_ONCE, 1), strict=True):
        same = of_block[:, :, None] == of_block[:, None, :]
        is_first = ~same.tril(-1).any(2)
        row = torch.where(is_first & (of_block != skipped), of_block, rows)
        summed = torch.bmm(same.to(grad.dtype), grad_of_block)
        total = total.index_put((model, row), total[model, row] + summed)
    return (total[:, :rows],)


class _Embedding(BatchedFunction):
    """The rows (n, D) of a matrix at these indices (n,).

    Torch adds up the gradients of equal indices in the order of threads, once it is compiled.
    """

    many = staticmethod(_rows_of)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        index, weight, ctx.skipped = inputs
        ctx.rows = len(weight)
        ctx.save_for_backward(index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        (index,) = ctx.saved_tensors
        (by_weight,) = _EmbeddingGradient.apply(grad, index, ctx.rows, ctx.skipped)
        return None, by_weight, None


class _EmbeddingGradient(BatchedFunction):
    """The gradient of `_Embedding` by its weights."""

    many = staticmethod(_embedding_gradient)
