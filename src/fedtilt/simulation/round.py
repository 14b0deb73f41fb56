"""What a simulation yields after a round."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedtilt.data.naming import client_number
from fedtilt.data.targets import Target
from fedtilt.engine.client import build_client_model
from fedtilt.engine.client_states import FederationState
from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts, Metrics, compute_metrics
from fedtilt.models import in_target_unit
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import PrivacyLoss
from fedtilt.state import ClientState
from fedtilt.training import BackendChoice


@dataclass(frozen=True, kw_only=True)
class Round:
    """One finished round; `state` is not a copy: the next round changes it."""

    number: int
    selected: list[int]
    state: FederationState
    counts: Mapping[str, Counts] | None  # method → correct predictions; None: the round was not evaluated
    total: Tensor  # (N, K) test samples
    validation: Mapping[str, Counts] | None  # the same on validation data, if the federation has any
    validation_total: Tensor | None  # (N, K) validation samples
    seconds: float
    backend: BackendChoice  # what trained the models, and why nothing faster did
    screened: Mapping[str, Mapping[int, str]]  # method → client → why its update was rejected or bounded
    attack_success: Mapping[str, float]  # method → success of a backdoor in percent; empty: none, or not evaluated
    privacy: PrivacyLoss | None  # of the shared model of each method, so far; None: no privacy, or not evaluated
    _net: nn.Module
    _parts: Mapping[str, Parts]  # by method
    client_names: tuple[str, ...]
    _target: Target | None = None  # what the targets are; None: classes

    def metrics(self, method: str, *, validation: bool = False) -> Metrics:
        """Metrics of the method's evaluated models, on test or on validation data."""
        self._check(method)
        if self.counts is None:
            raise InputError(f"round {self.number} was not evaluated; use eval_every = 1 to evaluate every round")
        if not validation:
            return _evaluated(self.counts[method], self.total)
        if self.validation is None or self.validation_total is None:
            raise InputError("the federation has no validation data; build it with, for example, validation = 0.1")
        return _evaluated(self.validation[method], self.validation_total)

    def model(self, method: str, client: int | str | None = None) -> nn.Module:
        """A copy of the method's shared model or, with `client`, of the model that this client uses."""
        self._check(method)
        kept = ClientState()
        if client is not None:
            kept = self.state.client_states.get((method, client_number(client, self.client_names)))
        parts = self._parts[method]
        model = build_client_model(self._net, parts, self.state.server[method], kept, personal=client is not None)
        return in_target_unit(model, self._target)

    def _check(self, method: str) -> None:
        if method not in self.state.server:
            raise InputError(f"there is no method {method!r} in this run; it has {', '.join(self.state.server)}")


def _evaluated(counts: Counts, total: Tensor) -> Metrics:
    return compute_metrics(counts.evaluated, total, counts.chance and counts.chance[1])
