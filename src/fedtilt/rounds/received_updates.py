"""What the server of a simulation receives: the updates of honest clients, and what attackers send."""

from collections.abc import Mapping

from torch import Tensor

from fedtilt.parts import Tensors
from fedtilt.rounds.aggregation import RoundRule, losses_of, weights_of_clients
from fedtilt.rounds.attack import AttackedFederation
from fedtilt.rounds.client_update import ClientUpdate
from fedtilt.rounds.forged_updates import forge
from fedtilt.rounds.prepare import PreparedRun


def received_updates(
    prepared: PreparedRun,
    server: Mapping[str, Tensors],
    updates: Mapping[str, Mapping[int, ClientUpdate]],
    roots: Mapping[str, Tensor],
    number: int,
) -> dict[str, dict[int, ClientUpdate]]:
    """Method → client → its update; those of attackers are forged.

    Args:
        prepared: the run
        server: what the server keeps for every method
        updates: what the clients trained
        roots: method with FLTrust → the model that the server trained on its root set
        number: of the round
    """
    federation, settings = prepared.federation, prepared.settings
    if not isinstance(federation, AttackedFederation):
        return {name: dict(by_client) for name, by_client in updates.items()}
    forged = {}
    for m in prepared.methods:
        received, by_client = server[m.name]["parameters"], updates[m.name]
        by_client = {client: by_client[client] for client in sorted(by_client)}
        weights, _ = weights_of_clients(m, server[m.name], by_client)
        rule = RoundRule.of(
            m, len(by_client), received, weights, selected=len(by_client), seed=settings.seed, round=number,
            root=roots.get(m.name), losses=losses_of(m, by_client),
            lr=m.rates(settings.lr, None)[0] * settings.lr_factor(number),
        )  # fmt: skip
        forged[m.name] = forge(federation.attack, rule, by_client, federation.attackers, settings.seed, number)
    return forged
