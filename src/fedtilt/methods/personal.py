"""Personal models: a second model of every client, which stays there and is held near the shared one."""

from dataclasses import dataclass
from typing import ClassVar

from fedtilt.config.setting_fields import setting
from fedtilt.methods.component import Component

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
    mu: float = setting(0.01, "weight of the proximal term towards the shared model", ge=0)
    start: str = setting(
        "last",
        "where v starts in a round: where its last round ended (first at the received model, or at the initial one), "
        "or at the received model every time",
        choices=STARTS,
    )
    lr: float | None = setting(None, "its learning rate; default: the run's", gt=0, example=0.01)
    epochs: int | None = setting(None, "its passes over the data in a round; default: the run's", ge=1, example=5)


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
    lr: float | None = setting(None, "its learning rate; default: the run's", gt=0, example=0.1)


PersonalModel = Personal | Moreau
PERSONAL: dict[str, type[PersonalModel]] = {cls.rule: cls for cls in (Personal, Moreau)}
