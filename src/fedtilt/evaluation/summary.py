"""The metrics of a method after one round, of its shared and its personal models."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from fedtilt.evaluation.groups import GroupMetrics, measure_groups
from fedtilt.evaluation.metrics import Counts, GroupCounts, Metrics, measure
from fedtilt.privacy.gaussian_mechanism import PrivacyLoss


class Summary(NamedTuple):
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
        names = ("shared", "personal", "ever_selected", "clean")
        parts = {name: value and value.to_json() for name in names for value in [getattr(self, name)]}
        privacy = {} if self.privacy is None else {"privacy": self.privacy._asdict()}
        groups = {name: found.to_json() for name, found in self.groups.items()}
        attack = {} if self.attack_success is None else {"attack_success": self.attack_success}
        return (
            parts | {"never_selected": self.never_selected} | privacy | ({"groups": groups} if groups else {}) | attack
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Summary":
        """From JSON values."""

        def metrics(part: dict[str, Any] | None) -> Metrics | None:
            return None if part is None else Metrics.from_json(part)

        shared = metrics(values["shared"])
        assert shared is not None
        return cls(
            shared,
            metrics(values["personal"]),
            metrics(values["ever_selected"]),
            metrics(values["clean"]),
            values["never_selected"],
            PrivacyLoss(**values["privacy"]) if "privacy" in values else None,
            {name: GroupMetrics.from_json(found) for name, found in values.get("groups", {}).items()},
            values.get("attack_success"),
        )


def evaluated_counts(counts: Counts) -> Tensor:
    """The sums of the personal models if the method has them, otherwise of the shared model."""
    return counts.shared if counts.personal is None else counts.personal


def group_counts(counts: Counts, total: Tensor, names: Iterable[str]) -> dict[str, GroupCounts]:
    """The sums of the evaluated models by grouping, in the order of `group_names`."""
    return dict(zip(names, [GroupCounts(evaluated_counts(counts), total), *counts.groups], strict=True))


def summarise(
    counts: Counts, total: Tensor, has_outliers: Tensor, groups: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Summary:
    """All metrics of one method from its sums; `groups` are the names that `group_names` gives."""
    evaluated = evaluated_counts(counts)
    ever_selected = None
    if counts.personal is not None and counts.never_selected.any() and total[~counts.never_selected].any():
        ever_selected = measure(counts.personal[~counts.never_selected], total[~counts.never_selected])
    only_some = has_outliers.any() and not has_outliers.all() and total[~has_outliers].any()
    return Summary(
        shared=measure(counts.shared, total),
        personal=None if counts.personal is None else measure(counts.personal, total),
        ever_selected=ever_selected,
        clean=measure(evaluated[~has_outliers], total[~has_outliers]) if only_some else None,
        never_selected=int((counts.never_selected & (total.sum(1) > 0)).sum()),
        groups={
            name: measure_groups(found, groups[name]) for name, found in group_counts(counts, total, groups).items()
        }
        if len(groups) > 1
        else {},
    )


def summarise_all(
    counts: Mapping[str, Counts] | None,
    total: Tensor | None,
    has_outliers: Tensor,
    privacy: PrivacyLoss | None = None,
    groups: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    attack_success: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Summary]:
    """`summarise` for every method; empty if the round was not evaluated."""
    if counts is None or total is None:
        return {}
    summaries = {name: summarise(found, total, has_outliers, groups) for name, found in counts.items()}
    return {
        name: summary._replace(privacy=privacy, attack_success=attack_success.get(name))
        for name, summary in summaries.items()
    }
