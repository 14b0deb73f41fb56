"""The metrics of methods after one round, and whether a run ends with it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from fedtilt.evaluation.metrics import Counts, GroupMetrics, Metrics, compute_group_metrics, compute_metrics
from fedtilt.evaluation.scores import SCORES
from fedtilt.privacy.gaussian_mechanism import PrivacyLoss
from fedtilt.stopping import Patience


class RoundMetrics(NamedTuple):
    """Metrics of one method after one round, of its shared and its personal models."""

    shared: Metrics
    personal: Metrics | None  # None: the method has no personal models
    ever_selected: Metrics | None  # personal, without clients never selected; None: all were selected
    clean: Metrics | None  # evaluated, over clients without outliers; None unless only some have outliers
    never_selected: int  # how many clients with test data
    privacy: PrivacyLoss | None = None  # of the shared model; None: the run has no privacy
    groups: Mapping[str, GroupMetrics] = MappingProxyType({})  # evaluated, by grouping; empty: there is only one
    attack_success: float | None = None  # of a backdoor: % of triggered samples, mean over clients; None: there is none

    @property
    def evaluated(self) -> Metrics:
        """The metrics of the personal models if the method has them, otherwise of the shared model."""
        return self.personal or self.shared

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found = {name: (part := getattr(self, name)) and part.to_json() for name in _PARTS}
        found["never_selected"] = self.never_selected
        if self.privacy is not None:
            found["privacy"] = self.privacy._asdict()
        if self.groups:
            found["groups"] = {name: metrics.to_json() for name, metrics in self.groups.items()}
        if self.attack_success is not None:
            found["attack_success"] = self.attack_success
        return found

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RoundMetrics":
        """From JSON values."""
        parts: dict[str, Any] = {name: values[name] and Metrics.from_json(values[name]) for name in _PARTS}
        return cls(
            **parts,
            never_selected=values["never_selected"],
            privacy=PrivacyLoss(**values["privacy"]) if "privacy" in values else None,
            groups={name: GroupMetrics.from_json(found) for name, found in values.get("groups", {}).items()},
            attack_success=values.get("attack_success"),
        )


_PARTS = RoundMetrics._fields[:4]


def round_metrics(
    counts: Counts, total: Tensor, has_outliers: Tensor, groups: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    *, privacy: PrivacyLoss | None = None, attack_success: float | None = None,
) -> RoundMetrics:  # fmt: skip
    """All metrics of one method from its sums; `groups` are the names that `group_names` gives."""

    def of_clients(sums: Tensor, chosen: Tensor) -> Metrics | None:
        """None unless only some clients are chosen, and they have test data."""
        if chosen.all() or not total[chosen].any():
            return None
        return compute_metrics(sums[chosen], total[chosen], evaluated and evaluated.of_clients(chosen))

    shared, evaluated = counts.chance or (None, None)
    by_grouping = counts.by_grouping(total, groups) if len(groups) > 1 else {}
    return RoundMetrics(
        shared=compute_metrics(counts.shared, total, shared),
        personal=None if counts.personal is None else compute_metrics(counts.personal, total, evaluated),
        ever_selected=None if counts.personal is None else of_clients(counts.personal, ~counts.never_selected),
        clean=of_clients(counts.evaluated, ~has_outliers),
        never_selected=int((counts.never_selected & (total.sum(1) > 0)).sum()),
        privacy=privacy,
        groups={name: compute_group_metrics(found, groups[name]) for name, found in by_grouping.items()},
        attack_success=attack_success,
    )


def metrics_by_method(
    counts: Mapping[str, Counts] | None, total: Tensor | None, has_outliers: Tensor,
    privacy: PrivacyLoss | None = None, groups: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    attack_success: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, RoundMetrics]:  # fmt: skip
    """`round_metrics` of every method; empty if the round was not evaluated."""
    if counts is None or total is None:
        return {}
    success = {name: attack_success.get(name) for name in counts}
    return {
        name: round_metrics(found, total, has_outliers, groups, privacy=privacy, attack_success=success[name])
        for name, found in counts.items()
    }


class Ending(NamedTuple):
    """With which round a run ends."""

    round: int
    reason: str
    rounds: int | None  # if the run gets more rounds than these, it continues; None: it has ended early


class StopCheck:
    """Follows the evaluated rounds of a run, and says when it ends by this rule; None: never early."""

    def __init__(self, patience: Patience | None) -> None:
        self._patience = patience
        self._best: float | None = None
        self.best_round = 0
        self.is_over = False

    def update(self, round: int, validation: Mapping[str, Metrics], best: Mapping[str, Metrics] | None = None) -> None:
        """Take the metrics of all methods on validation data after a round.

        `best` are those of the best round so far over the clients of this round; default: all clients are in both.
        """
        if self._patience is None:
            return
        score = _score(validation, self._patience.by)
        to_beat = self._best if best is None else _score(best, self._patience.by)
        if to_beat is None or score > to_beat:
            self._best, self.best_round = score, round
        self.is_over = round - self.best_round >= self._patience.rounds

    @property
    def kept_round(self) -> int | None:
        """The best round so far, if the run ends with its models."""
        return self.best_round if self._patience is not None and self._patience.restore_best else None

    def ending(self, round: int, rounds: int) -> Ending | None:
        """How a run of these rounds ends that has done this one; None: with its last round, or not yet.

        After a kill before it is recorded, a resumed run ends in the same way.
        """
        best, is_early = self.kept_round, self.is_over and round < rounds
        goes_back = best is not None and best < round and (is_early or round == rounds)
        if not is_early and not goes_back:
            return None
        assert self._patience is not None
        what = "the worst tenth of the clients" if self._patience.by == "worst" else "the mean over clients"
        start = f"stopped early after round {round}: " if is_early else ""
        text = f"{start}on validation data, {what} is best after round {self.best_round}"
        reason = f"{text}, whose models are the result" if self._patience.restore_best else text
        return Ending(self.best_round if goes_back else round, reason, None if is_early else rounds)


def _score(validation: Mapping[str, Metrics], by: str) -> float:
    """The mean over the methods of what improves; higher is better."""
    values = [metrics.worst if by == "worst" else metrics.mean for metrics in validation.values()]
    higher_is_better = SCORES[next(iter(validation.values())).score].higher_is_better
    return (1 if higher_is_better else -1) * sum(values) / len(values)
