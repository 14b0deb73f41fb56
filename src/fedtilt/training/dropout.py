"""Dropout from keyed random numbers: a mask depends on the key of a client's batches, the step and the call alone.

Torch's own dropout draws from a global generator, so that a mask would depend on the device and on which models train
together. Inside `keyed_dropout`, the functions of `torch.nn.functional` that drop values, and the layers that call
them, take the same mask on every device and in every backend.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtilt import seeds
from fedtilt.locks import one_thread_at_a_time
from fedtilt.training import native

_KEYS = 64
_ALPHA = -1.7580993408473766  # what SELU gives for −inf: alpha dropout keeps the mean and variance of its outputs
_TORCH = {name: getattr(F, name) for name in (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
    "scaled_dot_product_attention", "embedding",
)}  # fmt: skip


class Masks(threading.local):
    """The masks of one step, in the order in which a forward pass asks for them."""

    def __init__(self) -> None:
        self._step: tuple[int, int] | tuple[Tensor, Tensor] | None = None
        self._first = 0
        self._keys: Sequence[Tensor] = ()  # of `_KEYS` masks: 32 low bits, and 32 high ones
        self._numbers: dict[int, int] = {}  # of masks, by a number that torch's generator has drawn for them
        self.shapes: list[tuple[int, ...]] = []  # of the masks of this forward pass

    def start(self, key: seeds.Bits, step: seeds.Bits, first: int = 0) -> None:
        """Begin the forward pass of a step.

        Args:
            key: of the client's batches, 64 signed bits; a tensor has no dimensions
            step: its number
            first: the number of the first sample in its batch; not 0 in a micro-batch
        """
        self._step, self._first, self.shapes, self._numbers = (key, step), first, [], {}

    def stop(self) -> None:
        """Return to torch's generators."""
        self._step = None

    @property
    def is_active(self) -> bool:
        """Whether a forward pass has begun."""
        return self._step is not None

    def keep(self, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
        """True with probability 1 − p, in multiples of 2^-24; the integers are the same on every device."""
        low, high = self._next_key()
        self.shapes.append(shape)
        start, size, dropped = self._first * math.prod(shape[1:]), math.prod(shape), round(p * 2**24)
        if isinstance(low, int) and isinstance(high, int) and device.type == "cpu" and native.available():
            return native.keep(low, high, start, size, dropped).reshape(shape)
        z = torch.arange(start, start + size, dtype=torch.int32, device=device).reshape(shape) ^ low
        z = (z ^ _shift_right(z, 16)) * 0x7FEB352D  # Wellons' finaliser for 32 bits, with the key in two halves
        z = (z ^ _shift_right(z, 15) ^ high) * (0x846CA68B - (1 << 32))
        return _shift_right(z ^ _shift_right(z, 16), 8) >= dropped

    def _next_key(self) -> Sequence[int | Tensor]:
        """The 32 low bits and the 32 high ones of the next mask's key."""
        assert self._step is not None
        key, step = self._step
        number = len(self.shapes)
        if isinstance(key, int):
            assert isinstance(step, int)
            # a checkpoint computes a part of the model again in the backward pass, with the generator's state of before
            number = self._numbers.setdefault(int(torch.randint(2**62, ())), len(self._numbers))
            return _halves(seeds.mix(seeds.mix(seeds.mix(key) + step) + number + 1))
        if number % _KEYS == 0:  # the keys of many masks at once are as much to compile as one
            numbers = torch.arange(number + 1, number + 1 + _KEYS, device=key.device)
            keys = seeds.mix(seeds.mix(seeds.mix(key) + step) + numbers)
            self._keys = [half.to(torch.int32) for half in _halves(keys)]
        return [half[number % _KEYS] for half in self._keys]


def _halves(key: seeds.Bits) -> list[seeds.Bits]:
    return [(half & 0xFFFFFFFF) - (1 << 31) for half in (key, key >> 32)]


def _shift_right(bits: Tensor, by: int) -> Tensor:
    return (bits >> by) & ((1 << (32 - by)) - 1)


_masks = Masks()


Functions = Mapping[str, Callable[..., Tensor]]  # of `torch.nn.functional`, by name


@contextlib.contextmanager
def keyed_dropout(others: Functions = MappingProxyType({})) -> Iterator[Masks]:
    """Let torch's dropout take its masks from here, in this thread, after `Masks.start`; other threads wait.

    Args:
        others: further functions that layers call in place of torch's; names of `_TORCH`

    >>> with keyed_dropout() as masks:
    ...     masks.start(7, step=1)
    ...     F.dropout(torch.ones(6), 0.5)
    tensor([0., 0., 2., 0., 0., 2.])
    """
    with one_thread_at_a_time():
        for name, function in (_KEYED | dict(others)).items():
            setattr(F, name, function)
        try:
            yield _masks
        finally:
            _masks.stop()
            for name, original in _TORCH.items():
                setattr(F, name, original)


def _is_off(p: float, training: bool) -> bool:
    return not _masks.is_active or not training or p == 0


def _keyed(
    name: str, drop: Callable[..., Tensor], *, channels: bool = False, unbatched: int | None = None, on: bool = True
) -> Callable[..., Tensor]:
    """The function of this name with keyed masks.

    Args:
        name: of `torch.nn.functional`
        drop: of the input, the shape of the mask and p
        channels: whether it drops whole channels (N, C, …)
        unbatched: an input with this many dimensions is (C, …)
        on: whether it drops by default
    """

    def function(input: Tensor, p: float = 0.5, training: bool = on, inplace: bool = False) -> Tensor:
        if _is_off(p, training):
            return _TORCH[name](input, p, training, inplace)
        kept = input.dim() if not channels else 1 if input.dim() == unbatched else 2
        dropped = drop(input, (*input.shape[:kept], *[1] * (input.dim() - kept)), p)
        return input.copy_(dropped) if inplace else dropped

    return function


def _drop(x: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """Zero with probability p, otherwise larger by 1 / (1 − p)."""
    # products, which a CPU computes several times as fast as `where`, and so their gradients
    return x * (1 / (1 - p) if p < 1 else 0.0) * _masks.keep(shape, p, x.device).to(x.dtype)


def _alpha_drop(x: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """Klambauer et al., Self-Normalizing Neural Networks, NeurIPS 2017, arXiv 1706.02515."""
    if p == 1:
        return torch.zeros_like(x)
    scale = ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5
    return scale * (torch.where(_masks.keep(shape, p, x.device), x, _ALPHA) - p * _ALPHA)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    named: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if _is_off(dropout_p, True):
        return _TORCH["scaled_dot_product_attention"](query, key, value, attn_mask, dropout_p, is_causal, **named)
    return written_out_attention(query, key, value, attn_mask, dropout_p, is_causal, **named)


def written_out_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """`scaled_dot_product_attention` as torch defines it."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    no_keys = None
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    elif attn_mask is not None:
        allowed = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -math.inf
        no_keys = ~allowed.any(-1, keepdim=True)  # such as those of a sample of padding alone
        attn_mask = attn_mask.masked_fill(no_keys, attn_mask is allowed)
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if masked else scores + attn_mask
    weights = scores.softmax(-1)
    weights = weights if _is_off(dropout_p, True) else _drop(weights, tuple(scores.shape), dropout_p)
    return weights @ value if no_keys is None else (weights @ value).masked_fill(no_keys, 0)


_KEYED: dict[str, Callable[..., Tensor]] = {
    "dropout": _keyed("dropout", _drop),
    "dropout1d": _keyed("dropout1d", _drop, channels=True, unbatched=2),
    "dropout2d": _keyed("dropout2d", _drop, channels=True),
    "dropout3d": _keyed("dropout3d", _drop, channels=True, unbatched=4),
    "alpha_dropout": _keyed("alpha_dropout", _alpha_drop, on=False),
    "feature_alpha_dropout": _keyed("feature_alpha_dropout", _alpha_drop, channels=True, on=False),
    "scaled_dot_product_attention": _attention,
}
