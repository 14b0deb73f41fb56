"""What the server of a simulation receives: the updates of honest clients, and what attackers send."""

from collections.abc import Mapping

from torch import Tensor

from fedtilt.attacks.attack import AttackedFederation
from fedtilt.attacks.forged_updates import forge
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.prepare import PreparedRun
from fedtilt.engine.server import RoundRule
from fedtilt.parts import Tensors


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
        by_client = {client: updates[m.name][client] for client in sorted(updates[m.name])}
        rule, _ = RoundRule.of(
            m, server[m.name], by_client, settings, selected=len(by_client), population=federation.clients,
            round=number, root=roots.get(m.name),
        )  # fmt: skip
        forged[m.name] = forge(federation.attack, rule, by_client, federation.attackers, settings.seed, number)
    return forged
