"""All that travels, and the checks of what arrives: a reply is read into plain values or refused with a reason.

server → site   join       nothing
                train      w; round, base (the round w came from), history
                evaluate   w; round, history
site → server   join       its number, the number of classes and parameters
                train      w_n; round, training samples
                evaluate   round, whether it has a personal model, right answers and test samples of the shared and the
                           personal model: by class or, where the site withholds those, in total and the spread over
                           its classes
                where it fails, a number for what kind of failure it was, and which site it is
"""

import io
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Error, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from fedtilt.evaluation.metrics import class_spread
from fedtilt.models import unflat

Shapes = Mapping[str, tuple[int, ...]]
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"

_FAILED = 2  # Flower's code for a ClientApp that raised an exception
_FAILURES = {  # Flower's codes in words; 3 to 5 are the SuperLink's own
    1: "could not load the project, and its own log says why",
    _FAILED: "failed, and its own log says why",
    3: "did not answer in time",
    4: "did not answer in time",
    5: "is no longer connected",
    7: "could not load the project, and its own log says why",
    8: "crashed, and its own log says why",
}


class Refused(Exception):
    """A reply that must not be used; the text says why."""


# -- models ----------------------------------------------------------------------------------------------------------


def shapes_of(model: nn.Module) -> Shapes:
    """The parameters' names and shapes, in their order."""
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def to_arrays(model: nn.Module, vector: Tensor) -> ArrayRecord:
    """A vector (P,) as Flower arrays by parameter name."""
    return ArrayRecord({name: piece.detach().cpu().contiguous() for name, piece in unflat(model, vector).items()})


def from_arrays(record: ArrayRecord, shapes: Shapes) -> Tensor:
    """Flower arrays as one vector (P,); refuses other names, shapes and types before a byte of them is used.

    A header from outside is never parsed, only compared with the one that the expected array has.
    """
    missing, surplus = shapes.keys() - record.keys(), record.keys() - shapes.keys()
    if missing or surplus:
        raise Refused(f"has other parameters: {len(missing)} are missing and {len(surplus)} are unknown")
    pieces = []
    for name, shape in shapes.items():
        array, header = record[name], _header(shape)
        if array.shape != shape:
            raise Refused(f"has shape {_short(array.shape)} instead of {shape} in {name!r}")
        if array.dtype != "float32":
            raise Refused(f"has type {_short(array.dtype)} instead of float32 in {name!r}")
        sound = array.stype == "numpy.ndarray" and len(array.data) == len(header) + 4 * math.prod(shape)
        if not sound or not array.data.startswith(header):
            raise Refused("has a parameter that cannot be read")
        pieces.append(np.frombuffer(array.data, "<f4", offset=len(header)))
    return torch.from_numpy(np.concatenate(pieces))


def _header(shape: tuple[int, ...]) -> bytes:
    """How `np.save`, which Flower sends arrays with, begins a float32 array of this shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def _short(said: object) -> str:
    """What a site said of an array, fit for a sentence."""
    text = ascii(said).strip("'")
    return text if len(text) <= 40 else text[:39] + "…"


# -- what the server says --------------------------------------------------------------------------------------------


def instruct(model: nn.Module, w: Tensor, config: Mapping[str, ConfigRecordValues]) -> RecordDict:
    """The content of a message to a site."""
    return RecordDict({ARRAYS: to_arrays(model, w), CONFIG: ConfigRecord(dict(config))})


class Instruction(NamedTuple):
    """What a site is told."""

    w: Tensor
    round: int
    base: int
    history: str


def instruction(message: Message, shapes: Shapes) -> Instruction:
    """Read what the server said; to train, w came from the round before, to judge, from the round itself."""
    config, arrays = message.content.config_records[CONFIG], message.content.array_records[ARRAYS]
    number = _told(config["round"])
    return Instruction(from_arrays(arrays, shapes), number, _told(config.get("base", number)), str(config["history"]))


def _told(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"has a round that is not a whole number: {value!r}")
    return value


# -- what a site says ------------------------------------------------------------------------------------------------


class Update(NamedTuple):
    """What a site has trained."""

    w: Tensor
    samples: int


class Verdict(NamedTuple):
    """How a site judged the models on its own test data: right answers and samples, by class or as one total."""

    shared: Tensor  # (K,) or (1,)
    personal: Tensor | None  # None: the method has none, or the site never took part
    total: Tensor  # like shared
    spread: tuple[float, float]  # over the site's classes, of the shared and the personal model


def say_joined(number: int, classes: int, parameters: int) -> RecordDict:
    """A site's answer to `join`."""
    return RecordDict({METRICS: MetricRecord({"site": number, "classes": classes, "parameters": parameters})})


def say_update(model: nn.Module, update: Update, round: int) -> RecordDict:
    """A site's answer to `train`."""
    metrics = MetricRecord({"round": round, "num-examples": update.samples})
    return RecordDict({ARRAYS: to_arrays(model, update.w), METRICS: metrics})


def say_verdict(verdict: Verdict, round: int, by_class: bool) -> RecordDict:
    """A site's answer to `evaluate`; without `by_class`, only totals and the spread."""

    def counts(values: Tensor) -> list[int]:
        return [int(v) for v in (values if by_class else values.sum()[None])]

    values: dict[str, int | float | list[int] | list[float]] = {"round": round, "by-class": int(by_class)}
    values |= {"shared": counts(verdict.shared), "total": counts(verdict.total)}
    values |= {"personal": counts(verdict.personal)} if verdict.personal is not None else {}
    if not by_class:
        values |= {"shared-spread": verdict.spread[0], "personal-spread": verdict.spread[1]}
    return RecordDict({METRICS: MetricRecord(values)})


def say_failed(number: object) -> Error:
    """A site's answer where it cannot do what it was asked; what went wrong, which may quote the data, is not in it."""
    known = isinstance(number, int) and not isinstance(number, bool)
    return Error(code=_FAILED, reason=f"site {number}" if known else "a site without a number")


def claimed(reply: Message, sites: int) -> int | None:
    """The site that a reply says it comes from, for a sentence about it; not to be relied upon."""
    if reply.has_error():
        said = re.fullmatch(r"site (\d{1,9})", reply.error.reason or "")
        number: object = int(said[1]) if said else None
    else:
        metrics = reply.content.get(METRICS)
        number = metrics.get("site") if isinstance(metrics, MetricRecord) else None
    return number if type(number) is int and 0 <= number < sites else None


def hear_joined(reply: Message, *, sites: int, classes: int, parameters: int) -> int:
    """Read an answer to `join`: the site's number."""
    metrics = _metrics(reply)
    number = _whole(metrics, "site", 0, sites - 1)
    for key, ours in (("classes", classes), ("parameters", parameters)):
        if (theirs := _whole(metrics, key, 0, 2**62)) != ours:
            raise Refused(f"has {theirs} {key} instead of {ours}")
    return number


def hear_update(reply: Message, round: int, shapes: Shapes, max_samples: int) -> Update:
    """Read an answer to `train`; whether the numbers are finite is for `settle` to see."""
    metrics = _metrics(reply)
    _check_round(metrics, round)
    samples = _whole(metrics, "num-examples", 1, max_samples)
    arrays = reply.content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        raise Refused("has no model")
    return Update(from_arrays(arrays, shapes), samples)


def hear_verdict(reply: Message, round: int, classes: int, max_samples: int) -> Verdict:
    """Read an answer to `evaluate`."""
    metrics = _metrics(reply)
    _check_round(metrics, round)
    by_class = _whole(metrics, "by-class", 0, 1) == 1
    size = classes if by_class else 1
    total = _counts(metrics, "total", torch.full((size,), max_samples))
    shared = _counts(metrics, "shared", total)
    personal = _counts(metrics, "personal", total) if "personal" in metrics else None
    if by_class:
        spread = spreads(shared, personal, total)
    else:
        spread = (_points(metrics, "shared-spread"), _points(metrics, "personal-spread"))
    return Verdict(shared, personal, total, spread)


def spreads(shared: Tensor, personal: Tensor | None, total: Tensor) -> tuple[float, float]:
    """How uneven each model is over the site's classes, in points."""
    return _spread(shared, total), _spread(shared if personal is None else personal, total)


def _spread(correct: Tensor, total: Tensor) -> float:
    found = class_spread(correct[None], total[None])  # empty where there is no test data
    return float(found[0]) if len(found) else 0.0


def _metrics(reply: Message) -> MetricRecord:
    if reply.has_error():
        code = reply.error.code
        raise Refused(_FAILURES.get(code, f"failed with Flower's error {code}, and its own log may say why"))
    metrics = reply.content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        raise Refused("has no metrics")
    return metrics


def _whole(metrics: MetricRecord, key: str, low: int, high: int) -> int:
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"says {key} is not a whole number")
    if not low <= value <= high:
        raise Refused(f"says {key} = {value}, outside {low} to {high}")
    return value


def _points(metrics: MetricRecord, key: str) -> float:
    value = metrics.get(key)
    if not isinstance(value, float) or not 0 <= value <= 50:  # the largest population std of numbers in [0, 100]
        raise Refused(f"says {key} is not a number of points in 0 to 50")
    return value


def _check_round(metrics: MetricRecord, round: int) -> None:
    if (theirs := _whole(metrics, "round", 0, 2**62)) != round:
        raise Refused(f"is of round {theirs} instead of {round}")


def _counts(metrics: MetricRecord, key: str, limit: Tensor) -> Tensor:
    values = metrics.get(key)
    if not isinstance(values, list) or len(values) != len(limit) or not all(type(v) is int for v in values):
        raise Refused(f"has no {len(limit)} whole numbers in {key!r}")
    if any(not 0 <= v <= most for v, most in zip(values, limit.tolist(), strict=True)):
        raise Refused(f"has impossible counts in {key!r}")
    return torch.tensor(values, dtype=torch.int64)
