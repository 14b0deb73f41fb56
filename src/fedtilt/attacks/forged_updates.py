"""What attackers send in place of their updates, and of what the components of a method send beside them.

An update is u_n = w_n − w. Attackers know the updates of the honest clients of the round (ALIE, IPM, mimic); if no
honest client takes part, they use their own instead. With `search`, ALIE and IPM send what moves the result furthest.

Models of different strengths are all in the span of the honest updates, the forged one and the root model. The steps
before a rule and most rules depend on lengths and angles alone, so they are evaluated on the coordinates in an
orthonormal basis of this span: a few numbers per model in place of P. Only rules by coordinate need all P.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.attacks.attack import POISONING, Attack
from fedtilt.math.client_models import BlockedModels, gram

if TYPE_CHECKING:
    from fedtilt.engine.client import ClientUpdate
    from fedtilt.engine.server import RoundRule


KNOWING = ("alie", "ipm", "mimic")  # the kinds whose attackers know the honest updates, and all send the same


def forge(
    attack: Attack, rule: RoundRule, updates: Mapping[int, ClientUpdate], attackers: Collection[int]
) -> dict[int, ClientUpdate]:
    """The updates of a round, in the order of client numbers, those of attackers forged; `rule` is the server's."""
    received, round = rule.round.received, rule.round.round
    bad = sorted(client for client in updates if client in attackers)
    if not bad or round < attack.from_round or (attack.kind in POISONING and attack.strength == 1):
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
        key = seeds.key(rule.round.seed, "attack/noise", round=round, client=client)
        own, sent = updates[client], common
        if sent is None:
            sent = received + forged_update(attack.kind, own.parameters - received, known, strength, key)
        messages = {  # what components send is forged in the same way
            slot: {
                name: forged_update(
                    attack.kind, tensor, torch.stack([updates[n].sent[slot][name] for n in honest]), strength, key
                )
                for name, tensor in tensors.items()
            }
            for slot, tensors in own.sent.items()
        }
        forged[client] = own._replace(parameters=sent, sent=messages)
    return forged


def forged_update(kind: str, own: Tensor, honest: Tensor, strength: float, key: int = 0) -> Tensor:
    """The update (P,) that an attacker sends who trained `own`, where honest clients trained (H, P).

    >>> own, honest = torch.tensor([1.0]), torch.tensor([[1.0], [3.0]])
    >>> [round(forged_update(kind, own, honest, 1.0).item(), 2) for kind in ("sign_flip", "alie", "ipm", "mimic")]
    [-1.0, 0.59, -2.0, 1.0]
    """
    match kind:
        case "sign_flip":
            return -strength * own
        case "scale" | "label_flip" | "backdoor":
            return strength * own
        case "gaussian":
            return strength * seeds.normal(key, own.shape, own.device).to(own.dtype)
        case "same_value":
            return own.new_tensor(strength).expand_as(own)  # inf where float32 ends
        case "alie" | "ipm" | "mimic":
            base, direction = _line(kind, honest)
            return base + strength * direction
    raise ValueError(f"{kind!r} is not an attack")


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


_EVALUATIONS = 20  # as in ByzFL
_FIRST_STEP = 10.0
_SHRINK = 0.8
_BLOCK_BYTES, _LEAST_WIDTH = 2**20, 4096  # of models that are expanded
_LEAST_VARIANCE = 1e-12  # of a direction of the basis, relative to the largest: less is rounding


def worst_strength(damage: Callable[[float], float]) -> float:
    """The strength with the most damage, by the line search of ByzFL 0.0.11.

    A step that helps is doubled, until one does not help; from then on every step is 0.8 times the last.

    >>> round(worst_strength(lambda strength: -abs(strength - 30)), 1)
    30.0
    """
    best, step, grows = 0.0, _FIRST_STEP, True
    most = damage(best)
    for _ in range(_EVALUATIONS - 1):
        found = damage(best + step)
        if found > most:
            best, most = best + step, found
            step *= 2 if grows else _SHRINK
        else:
            step, grows = step * _SHRINK, False
    return best


def damage_of(
    rule: RoundRule, known: Tensor, is_bad: Sequence[bool], base: Tensor, direction: Tensor
) -> Callable[[float], float]:
    """Strength → the distance of the aggregated model from the honest mean.

    The honest clients send the updates `known` (H, P), those that attack (`is_bad`) base + strength · direction.
    """
    start, root = rule.round.received, rule.round.root
    fixed = [torch.zeros_like(start), base, direction, *([] if root is None else [root - start])]
    basis = _Basis(torch.cat([torch.stack(fixed), known]))
    origin, base_at, direction_at = basis.coordinates[:3]
    root_at = None if root is None else basis.coordinates[3]
    honest = basis.coordinates[len(fixed) :]
    bad = torch.tensor(is_bad)
    models = honest.new_empty(len(bad), len(origin))
    if not bad.all():
        models[~bad] = honest
    honest_mean = honest.mean(0)
    rule = rule.relative_to(origin, root_at)
    centred = [None if point is None else basis.expand((point - honest_mean)[None])[0] for point in (origin, root_at)]
    by_coordinate = rule.relative_to(*centred) if rule.is_by_coordinate else None  # type: ignore[arg-type]
    steps_by_coordinate = any(step.by_coordinate for step in rule.method.before)

    def damage(strength: float) -> float:
        models[bad] = base_at + strength * (direction_at - origin)
        if steps_by_coordinate:
            assert by_coordinate is not None
            return float(by_coordinate.aggregate(basis.expand(models - honest_mean).all())[0].norm())
        mixed, mixed_rule = rule.prepare(models)
        if by_coordinate is None:
            return float((mixed_rule.apply(mixed)[0] - honest_mean).norm())
        expanded = basis.expand(mixed - honest_mean)
        models_ = expanded if rule.method.aggregator.by_blocks else expanded.all()
        return float(by_coordinate.apply(models_)[0].norm())

    return damage


class _Basis:
    """Points (K, P) by their coordinates (K, r) in an orthonormal basis of their span, in float64, on the CPU."""

    def __init__(self, points: Tensor) -> None:
        matrix = gram(points)
        self._points, self._centre = points, matrix.diagonal().argmin()
        variances, vectors = torch.linalg.eigh(matrix)
        kept = variances > _LEAST_VARIANCE * variances[-1]
        kept[-1] = True  # also if all points are equal
        self._deviations, self._vectors = variances[kept].clamp_min(0).sqrt(), vectors[:, kept]
        self.coordinates = self._vectors * self._deviations

    def expand(self, differences: Tensor) -> _ExpandedModels:
        """Differences of points, (n, r), in the coordinates of the points, (n, P)."""
        weights = differences / self._deviations.clamp_min(torch.finfo(torch.float64).tiny) @ self._vectors.T
        weights[:, self._centre] = -weights.sum(1)  # the Gram matrix is of differences to this point
        return _ExpandedModels(weights.to(self._points), self._points)


class _ExpandedModels(BlockedModels):
    """The combinations weights (C, K) of points (K, P), computed a block at a time, which stays in the cache."""

    def __init__(self, weights: Tensor, points: Tensor) -> None:
        self._weights, self._points = weights, points
        self.shape, self.device = (len(weights), points.shape[1]), points.device

    def __getitem__(self, client: int) -> Tensor:
        return self._weights[client] @ self._points

    def map_blocks(
        self, function: Callable[..., Tensor], arguments: Sequence[Any], by_column: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        width = max(_LEAST_WIDTH, _BLOCK_BYTES // (4 * len(self)))
        for left in range(0, self.shape[1], width):
            columns = slice(left, left + width)
            block = self._weights @ self._points[:, columns]
            yield function(block, *(vector[columns] for vector in by_column), *arguments)

    def all(self) -> Tensor:
        """All models, (C, P)."""
        return self._weights @ self._points
