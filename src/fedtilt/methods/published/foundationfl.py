"""FoundationFL: synthetic updates, copies of the one farthest from the extremes, before a robust rule."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtilt.config.setting_fields import setting
from fedtilt.math.mixing import mix
from fedtilt.methods.before import Before, Prepared
from fedtilt.methods.component import ServerRound, Slot
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset


@dataclass(frozen=True)
class Foundation(Before):
    """Synthetic models beside those of the clients: copies of the one farthest from the extremes.

    The extremes are the largest and the smallest value of every coordinate; a model counts by its distance to the
    nearer one.

    Fang et al., Do We Really Need to Design New Byzantine-robust Aggregation Rules?, NDSS 2025, arXiv 2501.17381.
    """

    rule: ClassVar[str] = "foundation"
    share: float = setting(0.5, "synthetic models for every client's; 0 is the rule alone", ge=0)

    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        """The clients' models, and the synthetic ones after them."""
        count = int(self.share * len(models) + 1e-9)
        if count == 0:
            return Prepared(models, None, slot)
        extremes = models.amax(0), models.amin(0)
        distances = [[(model - end).double().norm() for end in extremes] for model in models]
        chosen = torch.tensor([min(pair) for pair in distances]).argmax()
        weights = torch.eye(len(models), dtype=torch.float64)
        weights = torch.cat([weights, weights[chosen].expand(count, -1)])
        return Prepared(mix(models, weights), weights, slot)


@preset(Foundation)
def foundationfl(share: float = 0.5, *, name: str = "foundationfl", **components: Any) -> Method:
    """FoundationFL: synthetic updates, copies of the one farthest from the extremes, before a robust rule."""
    components = {"aggregator": "median"} | components
    return compose(name, components, before=(Foundation(share=share),))
