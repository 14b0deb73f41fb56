"""What stays on its client: a personal model, held near the shared one, and local parameters of the shared model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.methods.component import Component
from fedtilt.parts import LAST_LAYER

STARTS = (
    "last",  # where the client's last round ended; in its first round, at the received w
    "initial",  # the same, but in its first round at the initial model, as in the paper's Algorithm 1
    "received",  # at the received w in every round: fine-tuning
)


@dataclass(frozen=True)
class Personal(Component):
    """Ditto's personal model: v minimises the objective plus mu/2 · ‖v − w‖², with w as the client receives it.

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv 2012.04221.
    """

    kind: ClassVar[str] = "personal"
    rule: ClassVar[str] = "proximal"
    mu: float = setting(
        0.01, "weight of the proximal term of the personal model towards the shared one; in a preset, inf is without "
        "personal models", ge=0,
    )  # fmt: skip
    start: str = setting(
        "last",
        "where the personal model starts in a round: where its last round ended (first at the received model, or at "
        "the initial one), or at the received model every time",
        choices=STARTS,
    )
    lr: float | None = setting(None, "learning rate of the personal model; default: the run's", gt=0, example=0.01)
    epochs: int | None = setting(
        None, "passes of the personal model over the data in a round; default: the run's", ge=1, example=5
    )


@dataclass(frozen=True)
class Moreau(Component):
    """pFedMe's personal model: `inner_steps` on every batch, then the client's shared model moves towards it.

    T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv 2006.08848; mu is their
    lambda.
    """

    kind: ClassVar[str] = "personal"
    rule: ClassVar[str] = "moreau"
    mu: float = setting(5.0, "weight of the proximal term", gt=0)
    start: ClassVar[str] = "last"
    epochs: ClassVar[None] = None
    inner_steps: int = setting(5, "steps of the personal model on every batch", ge=1)
    lr: float | None = setting(None, "learning rate of the personal model; default: the run's", gt=0, example=0.1)


PersonalModel = Personal | Moreau


@dataclass(frozen=True)
class Local(Component):
    """Parameters that are never averaged, beside those of the run.

    All together as in FedPer (Arivazhagan et al., 2019, arXiv 1912.00818), or first alone as in FedRep (Collins et al.,
    ICML 2021, arXiv 2102.07078).
    """

    kind: ClassVar[str] = "local"
    rule: ClassVar[str] = "local"
    names: tuple[str, ...] = setting(
        (LAST_LAYER,), 'patterns of parameter names; "last" is the last layer',
        allowed='a list of patterns of names, such as ["head.*"]',
    )  # fmt: skip
    first_epochs: int | None = setting(
        None, "passes that train these parameters alone, before only the others train; default: all train together",
        ge=1, example=10,
    )  # fmt: skip
    trains: bool = setting(
        True, "whether they train at all; otherwise they stay as they are initially", allowed="true or false"
    )

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not isinstance(self.names, Sequence):
            raise InputError(f"local is a list of patterns, such as ['last'], got {self.names!r}")
        super().__post_init__()
        if not self.names:
            raise InputError("local names no parameters; give patterns such as ['last'], or leave it out")
        if self.first_epochs is not None and not self.trains:
            raise InputError(f"first_epochs = {self.first_epochs} has no effect with trains = False; leave one out")
