"""The root set of a rule: clean samples on the server, which trains on them as a client does."""

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.data.inputs import Inputs, take, to_device
from fedtilt.engine.client import plan
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.executors.in_process import BatchSettings
from fedtilt.methods import Method
from fedtilt.methods.aggregators import Rooted
from fedtilt.parts import Parts
from fedtilt.state import ClientState, ServerState
from fedtilt.training import BACKENDS


class RootSet(NamedTuple):
    """Samples, the same in all rounds, drawn from the training data of all clients together as in FLTrust's paper."""

    x: Inputs
    y: Tensor
    client: int  # a number that no client has
    group: str  # what the tilts over classes are over

    @classmethod
    def of(cls, method: Method, federation: Federation, seed: int, device: torch.device) -> Self | None:
        """The root set of a method; None: its rule needs none."""
        rule = method.aggregator
        if not isinstance(rule, Rooted):
            return None
        rows = torch.cat([index.cpu() for index in federation.train_index])
        if rule.root_samples > len(rows):
            raise InputError(
                f"root_samples = {rule.root_samples} of method {method.name!r} is more than the {len(rows)} training "
                "samples that they are drawn from; lower it"
            )
        data = federation.dataset
        chosen = rows[seeds.choose(seeds.key(seed, "root set"), len(rows), rule.root_samples)].to(data.y_train.device)
        x = federation.model_input(to_device(take(data.x_train, chosen), device))
        return cls(x, data.y_train[chosen].to(device), federation.clients, federation.group)

    def train(
        self, method: Method, server: ServerState, *, net: nn.Module, parts: Parts, settings: TrainSettings,
        backend: str, round: int,
    ) -> Tensor:  # fmt: skip
        """The shared parameters after a client's round on the root set."""
        jobs = plan(method, server, ClientState(), parts=parts, settings=settings, round=round, group=self.group)
        job = jobs["shared"]
        batches = BatchSettings.of(settings).make(self.x, self.y, round, self.client, [job])
        (result,) = BACKENDS[backend](net, [job], [batches], precision=settings.precision)
        model = result.parameters if result.anchor is None else result.anchor
        return parts.keeping(method.local_names).shared(model)
