"""Objectives: what a client minimises, as a function of the losses of a batch, their groups and weights."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtilt.checks import number
from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.math.tilt import nested_tilt
from fedtilt.methods.component import Component, describe, unchanged

Levels = Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Objective(Component):
    """What a client minimises; a subclass has `__call__`."""

    kind: ClassVar[str] = "objective"

    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        """One number, differentiable in the losses.

        It is called on batches, also inside `torch.func.vmap`, so it must not look at values or depend on their order.

        Args:
            losses: of the samples of a batch, (n,)
            groups: the group of each, those that the data names, else its class, (n,)
            weights: how much each counts, (n,); 0: it does not, and must not change the result
        """
        raise InputError(f"objective {self.label!r} has no __call__(losses, groups, weights); write one")


def objective_value(objective: Objective, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    """The objective of the losses of a batch; raises InputError if it is not a number that they decide."""
    value = objective(losses, groups, weights)
    if not isinstance(value, Tensor) or value.numel() != 1:
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"{describe(objective)} returned {found}; expected one number, a tensor of shape ()")
    if losses.requires_grad and not value.requires_grad:
        raise InputError(f"{describe(objective)} returned a number without a gradient; compute it from the losses")
    return value.reshape(())


def check_objective(objective: Objective, *, weighted: bool = False) -> None:
    """Raise InputError if an objective of a few losses is not a number that they decide, or ignores their weights."""
    losses = torch.tensor([1.0, 2.0, 5.0], requires_grad=True) * 1.0  # as in training, no leaf of the graph
    groups, weights = torch.tensor([0, 1, 1]), torch.ones(3)
    with unchanged(objective, "__call__", losses, groups, weights):
        value = objective_value(objective, losses, groups, weights)
    if torch.autograd.grad(value, losses, retain_graph=True, allow_unused=True)[0] is None:
        raise InputError(
            f"{describe(objective)} returned a number that does not depend on the losses; compute it from them"
        )
    if weighted and torch.equal(objective_value(objective, losses, groups, torch.tensor([1.0, 1.0, 0.0])), value):
        raise InputError(f"{describe(objective)} ignores the weights that the samples have; count them by `weights`")


@functools.lru_cache(maxsize=64)  # asked about every job
def counts_weight_0(objective: Objective) -> bool:
    """Whether samples of weight 0 change an objective or its gradient: a stack fills the batches of clients with them.

    >>> from fedtilt.methods import component_of
    >>> def unweighted(losses, groups, weights):
    ...     return losses.mean()
    >>> counts_weight_0(component_of("objective", unweighted)), counts_weight_0(Tilted(tau=1.0))
    (True, False)
    """
    found = []
    for filled in (0, 2):
        losses = torch.tensor([1.0, 2.0, 5.0, 0.5, 9.0][: 3 + filled], requires_grad=True)
        groups, weights = torch.tensor([0, 1, 1, 2, 0])[: 3 + filled], torch.tensor([1.0] * 3 + [0.0] * filled)
        value = objective_value(objective, losses, groups, weights)
        found.append((value.detach(), *torch.autograd.grad(value, losses)))
    (value, gradient), (filled_value, filled_gradient) = found
    expected = torch.cat([gradient, torch.zeros(2)])
    return not (torch.allclose(value, filled_value, 1e-4) and torch.allclose(expected, filled_gradient, 1e-4, 1e-6))


def _levels(value: Any) -> tuple[tuple[str, float], ...]:
    """Pairs of groups and a tilt, each of other groups."""
    found: list[tuple[str, float]] = []
    for level in [None] if isinstance(value, str) or not isinstance(value, Sequence) else value:
        match level:
            case (str(name), tilt) if name not in dict(found):
                found.append((name, number(tilt, f"the tilt over {name!r} in levels")))
            case _:
                raise InputError(
                    "levels are pairs of groups, each once, and a tilt, from inner to outer, such as "
                    f'[("class", 5.0), ("ward", 2.0)]; got {value!r:.60}'
                )
    return tuple(found)


@dataclass(frozen=True)
class Tilted(Objective):
    """The two-level tilted loss R: tilt `lam` over the samples of a group, `tau` over the groups; 0, 0 is the mean.

    Zhang et al., FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning, arXiv 2503.13537.

    >>> Tilted(tau=2.0, lam=-1.0).to_table()
    {'rule': 'tilted', 'tau': 2.0, 'lam': -1.0}
    """

    rule: ClassVar[str] = "tilted"
    tau: float = setting(
        0.0, "tilt over the groups of a client, those that the data names, else its classes; > 0 weights the worst "
        "groups, < 0 the best", inf=True,
    )  # fmt: skip
    lam: float = setting(
        0.0, "tilt over the samples of a group; > 0 weights the largest losses, < 0 ignores outliers", inf=True
    )
    levels: tuple[tuple[str, float], ...] = setting(
        (), 'more levels in place of tau, (groups, tilt) from inner to outer: "class" is the labels, other names are '
        "columns of groups", allowed='a list of pairs, such as [["class", 5], ["ward", 2]]', convert=_levels,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels and self.tau:
            raise InputError(
                f"tau = {self.tau:g} has no effect beside levels; leave it out, or give its tilt to "
                f"{self.levels[0][0]!r}"
            )

    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        """R of one level of groups; those of `levels` are in the local job."""
        return nested_tilt(losses, [groups], [self.lam, self.tau], weights)


@dataclass(frozen=True)
class PropFair(Objective):
    """−log(utility − the mean loss), which weights clients with large losses: proportional fairness.

    Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023, arXiv 2202.01666.
    """

    rule: ClassVar[str] = "propfair"
    utility: float = setting(3.0, "more than the loss of any batch", gt=0)
