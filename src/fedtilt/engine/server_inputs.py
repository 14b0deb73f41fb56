"""What the server of a simulation has in a round: updates, those of attackers forged, and the model of a root set."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.attacks.attack import AttackedFederation
from fedtilt.attacks.forged_updates import forge
from fedtilt.data import Federation
from fedtilt.data.inputs import Inputs, take, to_device
from fedtilt.engine.client import ClientUpdate, plan
from fedtilt.engine.prepare import PreparedRun
from fedtilt.engine.server import RoundRule
from fedtilt.executors.in_process import BatchSettings
from fedtilt.methods.aggregators import FLTrust
from fedtilt.parts import Tensors
from fedtilt.training import BACKENDS


def root_set(federation: Federation, samples: int, seed: int, device: torch.device) -> tuple[Inputs, Tensor]:
    """Clean samples, drawn from the training data of all clients together, as in the paper; the same in all rounds."""
    rows = torch.cat([index.cpu() for index in federation.train_index])
    chosen = rows[seeds.choose(seeds.key(seed, "root set"), len(rows), samples)]
    data = federation.dataset
    x = federation.model_input(to_device(take(data.x_train, chosen.to(data.y_train.device)), device))
    return x, data.y_train[chosen.to(data.y_train.device)].to(device)


def train_on_root_sets(prepared: PreparedRun, server: Mapping[str, Tensors], round: int) -> dict[str, Tensor]:
    """For every method with FLTrust, the shared parameters after a client's round on the root set."""
    trained = {}
    settings, federation, device = prepared.settings, prepared.federation, prepared.device
    for m in prepared.methods:
        if not isinstance(m.aggregator, FLTrust):
            continue
        jobs = plan(
            m, server[m.name], {}, parts=prepared.parts, settings=settings, round=round, group=federation.group
        )  # fmt: skip
        x, y = root_set(federation, m.aggregator.root_samples, settings.seed, device)
        # a client number that no client has
        batches = BatchSettings.of(settings).make(x, y, round, federation.clients, [jobs["shared"]])
        train = BACKENDS[prepared.backend.name]
        (result,) = train(prepared.net, [jobs["shared"]], [batches], precision=settings.precision)
        model = result.parameters if result.anchor is None else result.anchor
        trained[m.name] = prepared.parts.keeping(m.local_names).shared(model)
    return trained


def received_updates(
    prepared: PreparedRun,
    server: Mapping[str, Tensors],
    updates: Mapping[str, Mapping[int, ClientUpdate]],
    roots: Mapping[str, Tensor],
    number: int,
) -> Mapping[str, Mapping[int, ClientUpdate]]:
    """Method → client → its update; those of attackers are forged."""
    federation, settings = prepared.federation, prepared.settings
    if not isinstance(federation, AttackedFederation):
        return updates
    forged = {}
    for m in prepared.methods:
        by_client = {client: updates[m.name][client] for client in sorted(updates[m.name])}
        rule, _ = RoundRule.of(
            m, server[m.name], by_client, settings, selected=len(by_client), population=federation.clients,
            round=number, root=roots.get(m.name),
        )  # fmt: skip
        forged[m.name] = forge(federation.attack, rule, by_client, federation.attackers, settings.seed, number)
    return forged
