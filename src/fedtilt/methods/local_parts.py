"""Local parts: parameters of the shared model that stay on their client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.methods.component import Component
from fedtilt.parts import LAST_LAYER


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
        None, "passes that train these parameters alone before only the others train; default: all train together",
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


LOCAL = {"local": Local}
