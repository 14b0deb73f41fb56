"""What attackers send in place of their updates.

An update is u_n = w_n − w. Attackers know the updates of the honest clients of the round (ALIE, IPM, mimic); if no
honest client takes part, they use their own instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.attacks.attack import POISONING, Attack
from fedtilt.attacks.strength import damage_of, worst_strength

if TYPE_CHECKING:
    from fedtilt.engine.client import ClientUpdate
    from fedtilt.engine.server import RoundRule


KNOWING = ("alie", "ipm", "mimic")  # the kinds whose attackers know the honest updates, and all send the same


def forge(
    attack: Attack,
    rule: RoundRule,
    updates: Mapping[int, ClientUpdate],
    attackers: Collection[int],
    seed: int,
    round: int,
) -> dict[int, ClientUpdate]:
    """The updates of a round, those of attackers forged.

    Args:
        attack: its kind and strength
        rule: what the server does with the models of these updates, in the order of client numbers
        updates: client → what it trained
        attackers: the clients that attack
        seed: the seed of the run, for noise
        round: the number of the round
    """
    received = rule.round.received
    bad = sorted(client for client in updates if client in attackers)
    if not bad or round < attack.from_round or attack.kind == "label_flip":
        return dict(updates)
    honest = [client for client in sorted(updates) if client not in attackers] or bad
    known = torch.stack([updates[client].parameters for client in honest]) - received  # (H, P)
    strength = attack.strength or 1.0
    common = None  # what all attackers send
    if attack.kind in KNOWING:
        base, direction = _line(attack.kind, known)
        if attack.search:
            is_bad = [client in bad for client in sorted(updates)]
            strength = worst_strength(damage_of(rule, known, is_bad, base, direction))
        common = received + (base + strength * direction)
    forged = dict(updates)
    for client in bad:
        sent = common
        if sent is None:
            key = seeds.key(seed, "attack/noise", round=round, client=client)
            own = updates[client].parameters - received
            sent = received + forged_update(attack.kind, own, known, strength, key)
        forged[client] = updates[client]._replace(parameters=sent)
    return forged


def forged_update(kind: str, own: Tensor, honest: Tensor, strength: float, key: int = 0) -> Tensor:
    """The update (P,) that an attacker sends.

    Args:
        kind: of `attack.KINDS`
        own: what it trained, (P,)
        honest: what honest clients trained, (H, P)
        strength: see `Attack`
        key: of its noise

    >>> own, honest = torch.tensor([1.0]), torch.tensor([[1.0], [3.0]])
    >>> [round(forged_update(kind, own, honest, 1.0).item(), 2) for kind in ("sign_flip", "alie", "ipm", "mimic")]
    [-1.0, 0.59, -2.0, 1.0]
    """
    match kind:
        case "sign_flip":
            return -strength * own
        case "scale" | "backdoor":
            return strength * own
        case "gaussian":
            return strength * seeds.normal(key, own.shape, own.device).to(own.dtype)
        case "same_value":
            return torch.full_like(own, strength)
        case "alie" | "ipm" | "mimic":
            base, direction = _line(kind, honest)
            return base + strength * direction
    raise ValueError(f"{kind!r} is not an attack on updates; {', '.join(POISONING)} poison data")


def _line(kind: str, honest: Tensor) -> tuple[Tensor, Tensor]:
    """Base and direction, (P,) each: attackers that know the honest updates (H, P) send base + strength · direction."""
    mean = honest.mean(0)
    match kind:
        case "alie":
            # not Tensor.std, which takes seven times as long over the first dimension
            variance = (honest - mean).square_().sum(0) / max(1, len(honest) - 1)
            return mean, -variance.sqrt()
        case "ipm":
            return torch.zeros_like(mean), -mean
        case _:  # mimic
            return honest[0], torch.zeros_like(mean)
