"""When a run ends before its last round."""

from dataclasses import dataclass
from typing import ClassVar

from fedtilt.config.named import NamedSettings
from fedtilt.config.setting_fields import setting


@dataclass(frozen=True, kw_only=True)
class Patience(NamedSettings):
    """End the run when its models no longer improve on validation data; of several methods, their mean counts."""

    rule: ClassVar[str] = "patience"
    rounds: int = setting(10, "rounds without an improvement, after which the run ends", ge=1)
    by: str = setting(
        "mean",
        "what improves: the accuracy, or MAE, as the mean over all clients, or over the worst tenth of them (worst)",
        choices=("mean", "worst"),
    )
    restore_best: bool = setting(False, "whether the run ends with the models of its best round, not of its last")


STOPS: dict[str, type[Patience]] = {cls.rule: cls for cls in (Patience,)}
