"""The numbers in a reply of a site, each checked; whatever is wrong raises `RejectedReply`."""

import math

import torch
from flwr.app import Message, MetricRecord
from torch import Tensor

from fedtilt.flower.model_arrays import RejectedReply

METRICS_RECORD = "metrics"

CLIENT_APP_RAISED = 2  # Flower's code for a ClientApp that raised an exception
_FAILURES = {  # by Flower's error code; 3 to 5 come from the SuperLink
    1: "could not load the project; see its log",
    CLIENT_APP_RAISED: "failed; see its log",
    3: "did not reply in time",
    4: "did not reply in time",
    5: "is no longer connected",
    7: "could not load the project; see its log",
    8: "crashed; see its log",
}


def reply_metrics(reply: Message) -> MetricRecord:
    """The numbers in a reply; a failure is rejected with what is known of it."""
    if reply.has_error():
        code = reply.error.code
        raise RejectedReply(_FAILURES.get(code, f"failed with Flower's error {code}; see its log"))
    metrics = reply.content.get(METRICS_RECORD)
    if not isinstance(metrics, MetricRecord):
        raise RejectedReply("has no metrics")
    return metrics


def int_in(metrics: MetricRecord, key: str, low: int, high: int) -> int:
    """A whole number between two limits."""
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RejectedReply(f"has a value of {key} that is not a whole number")
    if not low <= value <= high:
        raise RejectedReply(f"has {key} = {value}, outside {low} to {high}")
    return value


def size_in(metrics: MetricRecord, key: str, most: float) -> int | float:
    """A number of samples, or the sum of their weights: more than 0, and at most this."""
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RejectedReply(f"has a value of {key} that is not a number")
    if not 0 < value <= most:
        raise RejectedReply(f"has {key} = {value}, which is not between 0 and {most}")
    return value


def spreads_in(metrics: MetricRecord, key: str, count: int, most: float) -> list[float]:
    """Standard deviations between 0 and a limit."""
    values = metrics.get(key)
    if not isinstance(values, list) or len(values) != count:
        raise RejectedReply(f"does not have {count} numbers in {key!r}")
    if any(not isinstance(v, float) or not (0 <= v <= most and v < math.inf) for v in values):
        raise RejectedReply(f"has a value of {key} that is not a number in 0 to {most:g}")
    return [float(v) for v in values]


def errors_in(metrics: MetricRecord, key: str, total: Tensor) -> Tensor:
    """Sums of absolute and squared errors, (K, 2); a class without samples has none."""
    values = metrics.get(key)
    count = 2 * len(total)
    if not isinstance(values, list) or len(values) != count or not all(isinstance(v, float) for v in values):
        raise RejectedReply(f"does not have {count} numbers in {key!r}")
    sums = torch.tensor(values, dtype=torch.float64).reshape(-1, 2)
    if not sums.isfinite().all() or (sums < 0).any() or (sums[total == 0] != 0).any():
        raise RejectedReply(f"has impossible errors in {key!r}")
    return sums


def check_round(metrics: MetricRecord, round: int) -> None:
    """Reject a reply of another round."""
    if (value := int_in(metrics, "round", 0, 2**62)) != round:
        raise RejectedReply(f"is of round {value} instead of {round}")


def counts_in(metrics: MetricRecord, key: str, limit: Tensor) -> Tensor:
    """Counts of at most these limits, (K,)."""
    values = metrics.get(key)
    if not isinstance(values, list) or len(values) != len(limit) or not all(type(v) is int for v in values):
        raise RejectedReply(f"does not have {len(limit)} whole numbers in {key!r}")
    if any(not 0 <= v <= most for v, most in zip(values, limit.tolist(), strict=True)):
        raise RejectedReply(f"has impossible counts in {key!r}")
    return torch.tensor(values, dtype=torch.int64)
