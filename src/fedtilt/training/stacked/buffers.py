"""The buffers that all jobs of a round are loaded into, so that one step trains them all."""

from typing import NamedTuple

from torch import Tensor


class Buffers(NamedTuple):
    """What a step reads and writes, on one device; L jobs, C clients.

    Parameter rows are in the order of the `SequentialNet` if the kernels train the model, otherwise in the model's.
    """

    theta: Tensor  # (L, row_length)
    anchor: Tensor  # (L, row_length), the distinct anchors first
    anchor_index: Tensor  # (L,) the row of a job's anchor
    prox: Tensor  # (L,)
    lr: Tensor  # (L,)
    tau: Tensor  # (L,)
    lam: Tensor  # (L,)
    client_index: Tensor  # (L,) the client whose samples a job trains on
    steps: Tensor  # (L,) the number of steps of a job
    x: Tensor  # (C, samples, sample_size)
    y: Tensor  # (C, samples)
    batch_indices: Tensor  # (steps, C, batch size) the samples of every step, −1 for padding
    first_step: Tensor  # (1,) the number of the next step to run
