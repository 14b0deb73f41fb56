"""What a client sends to the server after a round."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class ClientUpdate(NamedTuple):
    """What a client sends after a round."""

    parameters: Tensor  # (S,)
    samples: int | float  # training samples, or the sum of their weights
    buffers: Tensor | None = None  # (B,) if the server averages them
    declared: Mapping[str, float] = {}  # numbers that a method asks for, such as the loss of the received model
    tensors: Mapping[str, Tensor] = {}  # vectors (S,) that a method asks for, such as the change of a control variate
