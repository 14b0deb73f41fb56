"""FedMinMax: the server weights the groups of all clients, towards the best model for the worst group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.math.fair import project_to_simplex
from fedtilt.methods.component import ServerRound, Slot
from fedtilt.methods.features import class_count, evaluated, members, with_features
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset
from fedtilt.methods.training import ClientBatches, ClientResult, Training


@dataclass(frozen=True)
class FedMinMax(Training):
    """FedMinMax's client: every loss counts with its group's weight mu / rho, and the risks of groups are sent.

    rho are the shares of the groups among the samples of all clients so far, and mu starts at rho. After a round the
    server moves mu along the risks of the received model, and back to the simplex:

        mu ← projection(mu + lr · risks)

    Papadaki et al., Minimax Demographic Group Fairness in Federated Learning, FAccT 2022, arXiv 2201.08304.
    """

    rule: ClassVar[str] = "fedminmax"
    lr: float = setting(0.01, "step of the groups' weights", gt=0)
    groups: int | None = setting(None, "how many groups the data has; default: one for every class", ge=1, example=2)

    def group_count(self, model: nn.Module) -> int:
        """The number of groups."""
        return class_count(model, self.rule) if self.groups is None else self.groups

    def init_server(self, model: nn.Module, population: int) -> Slot:
        """Mu, and the samples of every group so far."""
        zero = torch.zeros(self.group_count(model))
        return {"mu": zero, "samples": zero}

    def sends(self, model: nn.Module) -> Slot:
        """Of every group, its samples and the sum of their losses."""
        zero = torch.zeros(self.group_count(model))
        return {"samples": zero, "losses": zero}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """All steps with weighted groups."""
        count = len(received["mu"])
        if batches.groups.is_floating_point() or int(batches.groups.max()) >= count:
            raise InputError(
                f"{self.rule!r} knows {count} groups, and the data has more; set groups to their number, or name "
                "columns of groups"
            )
        _, outputs = evaluated(model, batches.x, len(batches.y), self.rule)
        member = members(batches.groups, count, batches.weights)
        sent = {"samples": member.sum(0), "losses": batches.loss(outputs, batches.y).detach().float() @ member}
        weights = self._weights(received)
        step = batches.stepper(model.parameters())
        for batch in batches.steps:
            _, outputs = with_features(model, batch.x, self.rule)
            step(batch.mean(batches.loss(outputs, batch.y) * weights[batch.groups]))
        return ClientResult(model, sends=sent)

    @staticmethod
    def _weights(slot: Slot) -> Tensor:
        """Mu / rho; before the first round all 1."""
        known = slot["samples"] > 0
        rho = slot["samples"] / slot["samples"].sum().clamp_min(torch.finfo(torch.float32).tiny)
        return torch.where(known, slot["mu"] / rho.where(known, 1.0), 1.0)

    def server_step(self, sent: Mapping[str, Tensor], round: ServerRound, slot: Slot) -> Slot:
        """Mu after a step along the risks; a group that nobody of the round has stays where it is."""
        here, losses = (sent[name].double().sum(0).cpu() for name in ("samples", "losses"))
        before, mu = slot["samples"].double().cpu(), slot["mu"].double().cpu()
        samples = before + here
        mu = torch.where(before > 0, mu, samples / samples.sum())  # of a group that is new, its share
        mu = project_to_simplex(mu + self.lr * losses / here.where(here > 0, 1.0))
        return {"mu": mu.to(slot["mu"]), "samples": samples.to(slot["samples"])}


@preset(FedMinMax)
def fedminmax(
    weights_lr: float = 0.01, groups: int | None = None, *, name: str = "fedminmax", **components: Any
) -> Method:
    """FedMinMax: groups of samples count more the larger their risk over all clients, for the best worst group."""
    components = {"weighting": "samples"} | components
    return compose(name, components, training=FedMinMax(lr=weights_lr, groups=groups))
