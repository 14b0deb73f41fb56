"""FedBABU: the last layer stays as it is initially, and every client fine-tunes the whole model."""

from typing import Any

from fedtilt.methods.local_parts import Local
from fedtilt.methods.method import Method
from fedtilt.methods.personal import Personal
from fedtilt.methods.presets import compose, preset


@preset
def fedbabu(
    *, lr_personal: float | None = None, epochs_personal: int | None = None, name: str = "fedbabu", **components: Any
) -> Method:
    """FedBABU: clients train all but the last layer, which stays as it is initially; then each fine-tunes all of it.

    Oh et al., FedBABU: Towards Enhanced Representation for Federated Image Classification, ICLR 2022, arXiv 2106.06042.

    Args:
        lr_personal: learning rate of the fine-tuning; default: the run's
        epochs_personal: passes of the fine-tuning over the data; default: the run's
    """
    tuned = Personal(mu=0.0, start="received", lr=lr_personal, epochs=epochs_personal)
    return compose(name, components, local=Local(trains=False), personal=tuned)
