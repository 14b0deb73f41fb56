"""The root set of a rule: clean samples on the server, which trains on them as a client does."""

from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Federation, Outliers
from fedtilt.data.inputs import named_tensors
from fedtilt.engine.client import finish, plan
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.methods import Method
from fedtilt.methods.aggregators import Rooted
from fedtilt.parts import Parts
from fedtilt.state import ClientState, ServerState, Slot
from fedtilt.training import BACKENDS


class RootUpdate(NamedTuple):
    """What the server has after a client's round on the root set."""

    parameters: Tensor  # (S,)
    slot: Slot  # its next state as a client


class RootSet(NamedTuple):
    """Samples, the same in all rounds, drawn from the training data of all clients together as in FLTrust's paper."""

    federation: Federation  # with one client more, whose samples they are; the others have none

    @classmethod
    def of(cls, method: Method, federation: Federation, seed: int) -> Self | None:
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
        chosen = rows[seeds.choose(seeds.key(seed, "root set"), len(rows), rule.root_samples)]
        none = [rows[:0]] * federation.clients
        with_root = replace(
            federation,
            dataset=replace(federation.dataset, noisy_train=None),
            outliers=Outliers(),
            client_names=(*federation.client_names, "root set"),
            train_index=[*none, chosen.to(federation.dataset.y_train.device)],
        )
        return cls(with_root)

    @property
    def client(self) -> int:
        """The number of the client that has the samples."""
        return self.federation.clients - 1

    def tensors(self) -> list[Tensor]:
        """Everything that the server trains on."""
        x, y = self.federation.clean_train(self.client)
        weights = self.federation.train_weights(self.client)
        groups = self.federation.train_groups(self.client).values()
        return [*named_tensors(x, "x").values(), y, *groups, *([] if weights is None else [weights])]

    def train(
        self, method: Method, server: ServerState, *, net: nn.Module, parts: Parts, settings: TrainSettings,
        backend: str, round: int,
    ) -> RootUpdate:  # fmt: skip
        """The shared parameters after a client's round on the root set, and what the server then keeps as a client."""
        federation, client = self.federation, self.client
        state = ClientState.from_tensors(server.slot("root"))
        jobs = plan(method, server, state, parts=parts, settings=settings, round=round, group=federation.group, net=net)
        job, device = jobs["shared"], server.parameters.device
        batches = BatchSettings.of(settings).of_clients(federation, round, {client: [job]}, device)
        (result,) = BACKENDS[backend](net, [job], [batches[client]], precision=settings.precision)
        update, state = finish(
            method, jobs, {"shared": result}, state, parts=parts, settings=settings,
            rows=len(federation.train_index[client]), samples=federation.train_size(client), net=net,
        )  # fmt: skip
        kept = replace(state, personal=None, personal_buffers=None)  # of the methods whose one job trains both models
        return RootUpdate(update.parameters, kept.to_tensors())
