"""FedBABU: the last layer stays as it is initially, and every client fine-tunes the whole model."""

from typing import Any

from fedtilt.methods.method import Method
from fedtilt.methods.personal import Local, Personal
from fedtilt.methods.presets import compose, preset


@preset(Personal)
def fedbabu(
    *, lr_personal: float | None = None, epochs_personal: int | None = None, name: str = "fedbabu", **components: Any
) -> Method:
    """FedBABU: clients train all but the last layer, which stays as it is initially; then each fine-tunes all of it.

    Oh et al., FedBABU: Towards Enhanced Representation for Federated Image Classification, ICLR 2022, arXiv 2106.06042.
    """
    tuned = Personal(mu=0.0, start="received", lr=lr_personal, epochs=epochs_personal)
    return compose(name, components, local=Local(trains=False), personal=tuned)
