"""The fields of a message: tensors, numbers and JSON, checked on arrival; whatever is wrong raises `RejectedReply`."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from torch import Tensor

from fedtilt.engine.state import Shapes
from fedtilt.parts import Parts, named_pieces
from fedtilt.state import ServerState, Slot, flatten, unflatten

METRICS_RECORD = "metrics"
_ORDERS: tuple[Literal["C", "F"], ...] = ("C", "F")  # of an array's numbers in a file
MAX_TEXT = 2**24  # characters of JSON
_ROUNDING = 1e-9  # of a sum of shares

CLIENT_APP_RAISED = 2  # Flower's code for a ClientApp that raised an exception
_FAILURES = {  # by Flower's error code; 3 to 5 come from the SuperLink
    1: "could not load the project; see its log",
    CLIENT_APP_RAISED: "failed; see its log",
    3: "did not reply in time",
    4: "did not reply in time",
    5: "is no longer connected",
    7: "does not run this project: its operator has not allowed it; see its log",
    8: "crashed; see its log",
}


class RejectedReply(Exception):
    """A reply that must not be used; the text is the reason."""


def shorten(value: object) -> str:
    """A value from a reply as at most 40 printable characters."""
    text = ascii(value).strip("'")
    return text if len(text) <= 40 else text[:39] + "…"


# -- tensors ---------------------------------------------------------------------------------------------------------


def encode_slots(slots: Mapping[str, Slot]) -> ArrayRecord:
    """What components send, as Flower arrays."""
    return _encode(flatten(slots))


def decode_slots(record: object, shapes: Shapes) -> dict[str, dict[str, Tensor]]:
    """The inverse of `encode_slots`, of these shapes."""
    flat = flatten(shapes)
    return {} if record is None and not flat else unflatten(named_pieces(_vector(record, flat, "tensors"), flat))


def encode_model(parts: Parts, parameters: Tensor, buffers: Tensor | None = None) -> ArrayRecord:
    """The shared parameters (S,) and, if they are averaged, buffers (B,) by the names of the model's tensors."""
    pieces = named_pieces(parameters, parts.shared_shapes)
    return _encode(pieces if buffers is None else pieces | named_pieces(buffers, parts.buffers))


def _encode(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: tensor.detach().cpu().float().contiguous() for name, tensor in tensors.items()})


def decode_model(record: object, parts: Parts) -> ServerState:
    """The inverse of `encode_model`."""
    buffers = parts.buffers if parts.averages_buffers else {}
    values = _vector(record, {**parts.shared_shapes, **buffers}, "parameters")
    return ServerState(values[: parts.shared_size], values[parts.shared_size :] if buffers else None)


def _vector(record: object, shapes: Mapping[str, tuple[int, ...]], what: str) -> Tensor:
    """Flower arrays of float32 as one vector (P,); see `read_arrays`."""
    arrays = read_arrays(record, {name: (shape, "float32") for name, shape in shapes.items()}, what)
    return torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *(array.ravel() for array in arrays.values())]))


def read_arrays(
    record: object, types: Mapping[str, tuple[tuple[int, ...], str]], what: str = "parameters"
) -> dict[str, np.ndarray]:
    """Flower arrays of these shapes and types; all others are rejected before any of their bytes is used.

    A received array header is never parsed, only compared with the expected ones.
    """
    if not isinstance(record, ArrayRecord):
        raise RejectedReply(f"has no {'model' if what == 'parameters' else what}")
    missing, unknown = types.keys() - record.keys(), record.keys() - types.keys()
    if missing or unknown:
        raise RejectedReply(f"has other {what}: {len(missing)} are missing and {len(unknown)} are unknown")
    arrays = {}
    for name, (shape, dtype) in types.items():
        array = record[name]
        if array.shape != shape:
            raise RejectedReply(f"has shape {shorten(array.shape)} instead of {shape} in {name!r}")
        if array.dtype != dtype:
            raise RejectedReply(f"has type {shorten(array.dtype)} instead of {dtype} in {name!r}")
        size = np.dtype(dtype).itemsize * math.prod(shape)
        headers = {order: _header(shape, dtype, order) for order in _ORDERS}
        found = [o for o, h in headers.items() if array.data.startswith(h) and len(array.data) == len(h) + size]
        if array.stype != "numpy.ndarray" or not found:
            raise RejectedReply("has a parameter that cannot be read")
        values = np.frombuffer(array.data, dtype, offset=len(headers[found[0]]))
        arrays[name] = values.reshape(shape, order=found[0])
    return arrays


def _header(shape: tuple[int, ...], dtype: str, order: str) -> bytes:
    """The first bytes that `np.save`, which Flower uses, writes for an array of this shape, type and order."""
    buffer, descr = io.BytesIO(), np.dtype(dtype).newbyteorder("<").str
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": order == "F", "shape": shape})
    return buffer.getvalue()


# -- numbers ---------------------------------------------------------------------------------------------------------


def check_success(reply: Message) -> None:
    """Reject a reply that reports a failure."""
    if reply.has_error():
        code = reply.error.code
        raise RejectedReply(_FAILURES.get(code, f"failed with Flower's error {code}; see its log"))


def reply_metrics(reply: Message, round: int | None = None) -> MetricRecord:
    """The numbers in a reply; a failure, and a reply of another round than this, are rejected."""
    check_success(reply)
    metrics = reply.content.get(METRICS_RECORD)
    if not isinstance(metrics, MetricRecord):
        raise RejectedReply("has no metrics")
    if round is not None and (value := read_int(metrics, "round", 0, 2**62)) != round:
        raise RejectedReply(f"is of round {value} instead of {round}")
    return metrics


def read_int(metrics: MetricRecord, key: str, low: int, high: int) -> int:
    """A whole number between two limits."""
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RejectedReply(f"has a value of {key} that is not a whole number")
    if not low <= value <= high:
        raise RejectedReply(f"has {key} = {value}, outside {low} to {high}")
    return value


def read_size(metrics: MetricRecord, key: str, most: float) -> int | float:
    """A number of samples, or the sum of their weights: more than 0, and at most this."""
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RejectedReply(f"has a value of {key} that is not a number")
    if not 0 < value <= most:
        raise RejectedReply(f"has {key} = {value}, which is not between 0 and {most}")
    return value


def read_counts(metrics: MetricRecord, key: str, limit: Tensor) -> Tensor:
    """Counts of at most these limits, (K,)."""
    values = _list(metrics, key, len(limit), int)
    if any(not 0 <= v <= most for v, most in zip(values, limit.tolist(), strict=True)):
        raise RejectedReply(f"has impossible counts in {key!r}")
    return torch.tensor(values, dtype=torch.int64)


def read_sums(metrics: MetricRecord, key: str, total: Tensor, count: int, shares: Sequence[int]) -> Tensor:
    """Sums that are no counts, (K, count), of which some are of shares in [0, 1]; a group without samples has none."""
    sums = torch.tensor(_list(metrics, key, count * len(total), float), dtype=torch.float64).reshape(-1, count)
    most = total[:, None] * (1 + _ROUNDING)
    if not sums.isfinite().all() or (sums < 0).any() or (sums[total == 0] != 0).any() or (sums[:, shares] > most).any():
        raise RejectedReply(f"has impossible sums in {key!r}")
    return sums


def read_spreads(metrics: MetricRecord, key: str, most: Sequence[float]) -> list[float]:
    """Standard deviations between 0 and a limit for each."""
    values: list[float] = _list(metrics, key, len(most), float)
    for value, limit in zip(values, most, strict=True):
        if not (0 <= value <= limit and value < math.inf):
            raise RejectedReply(f"has a value of {key} that is not a number in 0 to {limit:g}")
    return values


def _list(metrics: MetricRecord, key: str, count: int, kind: type) -> list[Any]:
    values = metrics.get(key)
    if not isinstance(values, list) or len(values) != count or not all(type(value) is kind for value in values):
        raise RejectedReply(f"does not have {count} {'whole ' if kind is int else ''}numbers in {key!r}")
    return values


# -- JSON ------------------------------------------------------------------------------------------------------------


def encode_json(values: Any) -> str:
    """JSON without NaN and infinities."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def decode_json(text: object, limit: int = MAX_TEXT) -> Any:
    """The inverse of `encode_json`; a text that is too long or too deep, NaN and infinities are a ValueError."""
    if not isinstance(text, str) or len(text) > limit:
        raise ValueError(f"it is no text of at most {limit} characters")

    def reject(constant: str) -> None:
        raise ValueError(f"it has {constant}")

    try:
        return json.loads(text, parse_constant=reject)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
