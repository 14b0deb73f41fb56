"""What all lanes of a round are laid out in, so that one step can train them."""

from typing import NamedTuple

from torch import Tensor


class Buffers(NamedTuple):
    """What a step reads and writes; all on one device, rows of parameters in the order of the chain, if it is one."""

    theta: Tensor  # (L, length)
    anchor: Tensor  # (L, length), the distinct ones first
    anchor_of: Tensor  # (L,) which anchor is a lane's
    prox: Tensor  # (L,)
    lr: Tensor  # (L,)
    tau: Tensor  # (L,)
    lam: Tensor  # (L,)
    client: Tensor  # (L,) whose samples a lane trains on
    length: Tensor  # (L,) how many steps it makes
    x: Tensor  # (C, samples, values)
    y: Tensor  # (C, samples)
    picks: Tensor  # (steps, C, width) samples of every step, −1 for none
    at: Tensor  # (1,) the step
