"""The Gaussian mechanism of a round: clip the updates, aggregate them, add noise."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.errors import InputError
from fedtilt.math.aggregate import tilted
from fedtilt.methods import Method
from fedtilt.parts import Parts
from fedtilt.privacy.accounting import epsilon, ratio_for

if TYPE_CHECKING:
    from fedtilt.engine.settings import TrainSettings


_SOLVER_ERROR = 1e-3  # of the sensitivity, at most: it is part of `sensitivity`, and checked in every round


class PrivacyLoss(NamedTuple):
    """What is known about any one client from all models that the server has sent: (epsilon, delta)."""

    epsilon: float
    delta: float
    noise: float  # the noise multiplier


def sensitivity(q: float, clip: float, clients: int) -> float:
    """How far the aggregate of some clients moves at most, in L2 norm, if one of them is replaced by another.

        Δ = 2 · clip · p,    p = 1 / (1 + (C − 1) · exp(−4 q clip²)),    q ≥ 0, squared L2

    At q = 0 the aggregate is the mean and Δ = 2 · clip / C. The proof for q > 0: let u_1 … u_C be the updates, each at
    most `clip` long, and G(x) = 1/q · log( 1/C · Σ_n exp(q ‖x − u_n‖²) ). As ‖x‖² plus the logarithm of a sum of
    exponentials of linear functions, G is 2-strongly convex, so its minimum a is unique, and the minimum a' of another
    such function G' has ‖a' − a‖ ≤ ‖∇G'(a)‖ / 2. Let G' have u'_m in place of u_m.

    The gradient is ∇G(x) = 2 (x − Σ_n p_n u_n) with p_n proportional to exp(q ‖x − u_n‖²). At a it is 0, so a is a
    convex combination of the updates and at most `clip` long; its squared distances to updates are in [0, 4 clip²], and
    no client has a weight above p, in G or in G'. At a, both give the other clients the same proportions. Let r be
    their average in these proportions, ‖r‖ ≤ clip. Then

        ∇G'(a) / 2 = Σ_n p_n u_n − Σ_n p'_n u'_n = p_m u_m − p'_m u'_m − (p_m − p'_m) r,

    whose norm is at most clip · (p_m + p'_m + |p_m − p'_m|) = 2 · clip · max(p_m, p'_m) ≤ 2 · clip · p.

    For q > 0 the result includes the error of the solver.
    """
    weight = 1 / (1 + (clients - 1) * math.exp(-4 * q * clip**2))
    return 2 * clip * weight * (1 + 2 * _SOLVER_ERROR if q else 1)


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """What hides a client in the shared model: for the rounds of one run, with `for_round` for one of them."""

    clip: float
    noise: float  # the noise multiplier: the standard deviation is noise · sensitivity / 2
    delta: float
    budget: float | None  # epsilon
    selected: int  # clients of a round, of which some may send nothing
    population: int  # how many clients they are drawn from, as another client sees it
    seed: int | None  # of the noise; None: secret random numbers
    round: int = 0

    @classmethod
    def of(cls, settings: TrainSettings, clients: int, parts: Parts) -> Self | None:
        """The mechanism of a run with this many clients; None: the run has no privacy."""
        privacy = settings.privacy
        if privacy is None:
            return None
        if privacy.delta * clients >= 1:
            raise InputError(
                f"privacy: delta = {privacy.delta:g} with {clients} clients would allow to publish one of them; choose "
                f"less than {1 / clients:.2g}"
            )
        selected = settings.clients_per_round(clients)
        # A client knows whether it takes part, so for it the others are drawn from one client less. Where clients keep
        # a part of the shared model, their updates depend on when they took part: the sampling amplifies nothing.
        keeps_state = bool(parts.local_names) or parts.keeps_buffers
        population = selected if keeps_state else max(selected, clients - 1)
        noise = privacy.noise
        if noise is None:
            assert privacy.epsilon is not None
            noise = 2 * ratio_for(
                privacy.epsilon, settings.rounds, privacy.delta, population=population, selected=selected
            )
        return cls(
            clip=privacy.clip, noise=noise, delta=privacy.delta, budget=privacy.epsilon, selected=selected,
            population=population, seed=None if privacy.randomness == "secret" else settings.seed,
        )  # fmt: skip

    def with_noise(self, settings: TrainSettings) -> TrainSettings:
        """The settings with this noise, which `epsilon` may have decided."""
        assert settings.privacy is not None
        return replace(settings, privacy=replace(settings.privacy, noise=self.noise))

    def for_round(self, round: int) -> Self:
        """The mechanism of this round."""
        return replace(self, round=round)

    def loss(self, releases: int) -> PrivacyLoss:
        """The privacy loss after this many models."""
        spent = epsilon(self.noise / 2, releases, self.delta, population=self.population, selected=self.selected)
        return PrivacyLoss(spent, self.delta, self.noise)

    def last_round(self, rounds: int, *, done: int = 0, releases: int = 0) -> int:
        """The round at which the budget ends, at most `rounds`; `done` rounds made these releases, or repeated more."""
        if self.budget is None:
            return rounds
        low, high = 0, max(0, rounds - done)  # further rounds
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.loss(releases + middle).epsilon <= self.budget else (low, middle - 1)
        if done + low == 0:
            raise InputError(
                f"privacy: one round with noise = {self.noise:g} has epsilon = {self.loss(1).epsilon:.3g}, more than "
                f"the budget {self.budget:g}; raise noise or epsilon"
            )
        return done + low

    def within_budget(
        self, settings: TrainSettings, *, done: int = 0, releases: int = 0
    ) -> tuple[TrainSettings, tuple[str, ...]]:
        """The settings with this noise and the rounds that the budget allows, and what to tell the user about it."""
        last = self.last_round(settings.rounds, done=done, releases=releases)
        limited = replace(self.with_noise(settings), rounds=last)
        if last == settings.rounds:
            return limited, ()
        return limited, (f"privacy: the budget epsilon = {self.budget:g} lasts for {last} of {settings.rounds} rounds",)

    def aggregate(self, method: Method, received: Tensor, models: Mapping[int, Tensor]) -> Tensor:
        """The aggregated model: received + aggregate of the clipped updates + noise.

        A selected client without a valid model counts as one that sends the received model back, so that the
        sensitivity does not depend on who replies.
        """
        start, q = received.double(), getattr(method.aggregator, "q", 0.0)
        updates = (self._clipped(models[client].double() - start) for client in sorted(models))
        if q == 0:
            aggregate = torch.zeros_like(start)
            for update in updates:
                aggregate += update
            aggregate /= self.selected
        else:
            points = torch.zeros(self.selected, len(start), dtype=start.dtype, device=start.device)
            for row, update in zip(points, updates, strict=False):
                row.copy_(update)
            aggregate = tilted(points, q)
            self._check_solver(points, aggregate, q)
        deviation = self.noise / 2 * sensitivity(q, self.clip, self.selected)
        return (start + aggregate + deviation * self._normal(len(start)).to(start)).to(received.dtype)

    def _clipped(self, update: Tensor) -> Tensor:
        length = float(update.norm())
        return update * (self.clip / length) if length > self.clip else update

    def _check_solver(self, points: Tensor, aggregate: Tensor, q: float) -> None:
        """Raise if an aggregate is further from the optimum than `sensitivity` allows: at most ‖∇G‖ / 2, see there."""
        weights = torch.softmax(q * (points - aggregate).square().sum(1), 0)
        error, limit = float((aggregate - weights @ points).norm()), sensitivity(q, self.clip, self.selected)
        if error > _SOLVER_ERROR * limit / (1 + 2 * _SOLVER_ERROR):
            raise ArithmeticError(
                f"the solver of q = {q:g} is {error:g} from the optimum, which privacy does not cover"
            )

    def _normal(self, size: int) -> Tensor:
        """Standard normal numbers, on the CPU: bit-identical on every device."""
        if self.seed is not None:
            return seeds.normal(seeds.key(self.seed, "privacy noise", round=self.round), (size,))
        return seeds.normal_of(torch.frombuffer(bytearray(secrets.token_bytes(8 * size)), dtype=torch.int64))
