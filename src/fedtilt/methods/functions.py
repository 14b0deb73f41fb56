"""Plain functions as components, where one suffices: no settings and no state."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.methods.aggregators import Aggregator
from fedtilt.methods.before import Before, Prepared
from fedtilt.methods.component import Component, ServerRound, Slot
from fedtilt.methods.objectives import Objective
from fedtilt.methods.server_optimizers import ServerOptimizer
from fedtilt.methods.training import ClientBatches, ClientResult, Training
from fedtilt.methods.weightings import Weighting


@dataclass(frozen=True)
class _Function(Component):
    function: Callable[..., Any] = field(metadata={"in_table": False})

    @property
    def source(self) -> Any:
        return self.function

    def settings(self, *, all: bool = False) -> dict[str, Any]:
        return {}

    @property
    def takes_round(self) -> bool:
        """Whether the function has a second parameter, the `ServerRound`."""
        return len(_parameters(self.function)) == 2


class _Objective(_Function, Objective):
    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        return self.function(losses, groups, weights)


class _Training(_Function, Training):
    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        return ClientResult(self.function(model, batches))


class _Weighting(_Function, Weighting):
    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        return self.function(round), slot


class _Before(_Function, Before):
    @property
    def takes_weights(self) -> bool:  # type: ignore[override]
        return True  # row n is still client n

    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        found = self.function(models, round) if self.takes_round else self.function(models)
        if isinstance(found, Tensor) and len(found) != len(models):
            raise InputError(
                f"before {self.label!r} returned {len(found)} models for {len(models)}; a function gives one for each, "
                "others are a subclass of Before"
            )
        return Prepared(found, None, slot)


class _Aggregator(_Function, Aggregator):
    @property
    def takes_weights(self) -> bool:  # type: ignore[override]
        return self.takes_round

    def aggregate(self, models: Any, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        return self.function(models, round) if self.takes_round else self.function(models), slot


class _Optimizer(_Function, ServerOptimizer):
    def step(self, received: Tensor, aggregated: Tensor, slot: Slot) -> tuple[Tensor, Slot]:
        return self.function(received, aggregated), slot


# component → its class, and the parameters that the function may have
FUNCTIONS: dict[str, tuple[type[_Function], list[tuple[str, ...]]]] = {
    "objective": (_Objective, [("losses", "groups", "weights")]),
    "training": (_Training, [("model", "batches")]),
    "weighting": (_Weighting, [("round",)]),
    "before": (_Before, [("models",), ("models", "round")]),
    "aggregator": (_Aggregator, [("models",), ("models", "round")]),
    "optimizer": (_Optimizer, [("received", "aggregated")]),
}


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters without a default."""
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def function_component(kind: str, function: Any, what: str) -> Component | None:
    """The component of a plain function; None: this is no function, or the component needs a class.

    >>> def first(models):
    ...     return models[0]
    >>> function_component("aggregator", first, "aggregator").label.endswith(":first")
    True
    """
    if kind not in FUNCTIONS or not inspect.isroutine(function) or inspect.isbuiltin(function):
        return None
    cls, signatures = FUNCTIONS[kind]
    if len(_parameters(function)) not in map(len, signatures):
        expected = " or ".join(f"({', '.join(names)})" for names in signatures)
        raise InputError(
            f"{what} is the function {function.__name__}{inspect.signature(function)} ({inspect.getfile(function)}), "
            f"which must take {expected}"
        )
    return cls(function)
