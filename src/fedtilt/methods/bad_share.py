"""How many bad clients the aggregation rule of a method is set to tolerate, and how many models it needs for that."""

from collections.abc import Iterable

from fedtilt.errors import InputError
from fedtilt.math.aggregate import AGGREGATORS, bad_count, used_settings
from fedtilt.methods.method import Method


def uses_bad_share(method: Method) -> bool:
    """Whether the rule of a method, or a step before it, takes a share of bad clients."""
    return "bad_share" in used_settings(method.aggregator, method.pre_aggregators)


def needed_models(method: Method, bad: int) -> int:
    """How many models the rule needs if so many of them may be bad; every bucket counts as one model.

    >>> needed_models(Method(name="a", aggregator="bulyan", pre_aggregators=["bucketing"], bucket_size=2), 1)
    13
    """
    rule = AGGREGATORS.get(method.aggregator)
    needed = 2 * bad + 1 if rule is None else rule.needs(bad)
    return (needed - 1) * method.bucket_size + 1 if "bucketing" in method.pre_aggregators else needed


def tolerated_clients(method: Method, models: int, selected: int) -> int:
    """How many of these models may be bad: as many as of all selected clients, for the bad ones do reply."""
    if not uses_bad_share(method):
        return 0
    bad = bad_count(method.bad_share, selected)
    if bad and models < (needed := needed_models(method, bad)):
        raise InputError(
            f"{models} of {selected} models can be aggregated, and {method.aggregator} with bad_share = "
            f"{method.bad_share:g} needs {needed}, because {bad} may be bad; lower bad_share of method "
            f"{method.name!r}, or wait for more clients"
        )
    return bad


def check_bad_share(methods: Iterable[Method], clients: int) -> None:
    """Refuse a share of bad clients that is none of a round's clients, or more than the rule tolerates.

    Args:
        methods: the methods of the run
        clients: how many clients take part in a round
    """
    for m in methods:
        if not uses_bad_share(m):
            continue
        bad = bad_count(m.bad_share, clients)
        if bad == 0 and (m.aggregator in ("trimmed_mean", "multi_krum") or "nnm" in m.pre_aggregators):
            remedy = f"bad_share ≥ {1 / clients:.2g}" if clients > 2 else "another aggregator"
            step, same = ("nnm", "plain means") if "nnm" in m.pre_aggregators else (m.aggregator, "the plain mean")
            raise InputError(
                f"bad_share = {m.bad_share:g} of method {m.name!r} is no client of the {clients} in a round, so "
                f"{step} would be {same}; use {remedy}"
            )
        if bad and clients < (needed := needed_models(m, bad)):
            raise InputError(
                f"bad_share = {m.bad_share:g} of method {m.name!r} is {bad} of the {clients} clients in a round, for "
                f"which {m.aggregator} needs {needed}; lower bad_share, or let more clients take part"
            )
