"""All messages, and the checks of what arrives: a reply is decoded into plain values or rejected with a reason.

server → site   join       nothing
                train      w, and its buffers if they are averaged; what its components declare; round, base
                           round (that w came from), training history, rounds that the server can go back to
                evaluate   w, and its buffers if they are averaged; round, training history
site → server   join       site number, number of classes, number of parameters, digests of what no message carries
                train      w_n, and its buffers if they are averaged; what its components declare; round,
                           training samples, declared numbers
                evaluate   round; correct predictions of the shared and, if there is one, the personal model, and test
                           samples: by class or, if the site withholds those, in total and the spread over its classes;
                           of numbers as targets, sums of absolute and squared errors by range of the target; and
                           what the site declares (`fedtilt.flower.declared`)
                a failure  Flower's error code, and the site number
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Error, Message, MetricRecord, RecordDict
from torch import Tensor

from fedtilt.engine.client import ClientUpdate
from fedtilt.evaluation.metrics import scores_of, spread_in_clients
from fedtilt.flower.declared import Declared, declared_record, decode_declared
from fedtilt.flower.model_arrays import (
    RejectedReply,
    from_array,
    from_arrays,
    shorten,
    to_array,
    to_arrays,
)
from fedtilt.flower.reply_fields import (
    CLIENT_APP_RAISED,
    METRICS_RECORD,
    check_round,
    counts_in,
    errors_in,
    int_in,
    reply_metrics,
    size_in,
    spreads_in,
)
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.parts import Parts, Tensors

_DECLARED, _TENSOR = "declared-", "tensor-"
Shapes = Mapping[str, tuple[int, ...]]
ARRAYS_RECORD, CONFIG_RECORD, CONSTANTS_RECORD = "arrays", "config", "constants"


# -- server → site ---------------------------------------------------------------------------------------------------


class Instruction(NamedTuple):
    """What the server sends to a site."""

    received: dict[str, Tensor]  # what the server sends: "parameters" and maybe "buffers"
    round: int
    base_round: int  # the round w came from: the round before to train, the round itself to evaluate
    history: TrainingHistory
    keep: tuple[int, ...]  # the rounds that the server can go back to


def history_config(history: TrainingHistory) -> dict[str, ConfigRecordValues]:
    """What a request to a site has of the training history."""
    config: dict[str, ConfigRecordValues] = {"history": history.id}
    if history.earlier:
        ids, rounds = zip(*history.earlier, strict=True)
        config |= {"earlier-histories": list(ids), "earlier-rounds": list(rounds)}
    return config


def encode_instruction(
    parts: Parts, server: Tensors, config: Mapping[str, ConfigRecordValues], tensors: Shapes = MappingProxyType({})
) -> RecordDict:
    """The content of a message to a site, with these tensors of the server's state."""
    arrays = to_arrays(parts, server["parameters"], server.get("buffers"))
    sent = _tensor_records({name: server[name] for name in tensors})
    return RecordDict({ARRAYS_RECORD: arrays, CONFIG_RECORD: ConfigRecord(dict(config)), **sent})


def _tensor_records(tensors: Tensors) -> dict[str, ArrayRecord]:
    """What components send beside the model, as records of Flower arrays."""
    return {f"{_TENSOR}{name}": to_array(tensor) for name, tensor in tensors.items()}


def _decode_tensors(content: RecordDict, shapes: Shapes) -> dict[str, Tensor]:
    """The tensors that components declare; others are rejected."""
    tensors = {}
    for name, shape in shapes.items():
        record = content.get(f"{_TENSOR}{name}")
        if not isinstance(record, ArrayRecord):
            raise RejectedReply(f"has no tensor {name!r}")
        tensors[name] = from_array(record, shape)
    if unknown := [key for key in content if key.startswith(_TENSOR) and key.removeprefix(_TENSOR) not in shapes]:
        raise RejectedReply(f"has {len(unknown)} tensors that the method does not declare")
    return tensors


def decode_instruction(message: Message, parts: Parts, tensors: Shapes = MappingProxyType({})) -> Instruction:
    """Decode a message to `train` or `evaluate`, with these tensors of the server's state."""
    config, arrays = message.content.config_records[CONFIG_RECORD], message.content.array_records[ARRAYS_RECORD]
    round = _check_int(config["round"])
    base_round = _check_int(config.get("base-round", round))
    ids, rounds = _list(config.get("earlier-histories")), map(_check_int, _list(config.get("earlier-rounds")))
    history = TrainingHistory(str(config["history"]), tuple(zip(map(str, ids), rounds, strict=True)))
    keep = tuple(map(_check_int, _list(config.get("keep"))))
    received = from_arrays(arrays, parts) | _decode_tensors(message.content, tensors)
    return Instruction(received, round, base_round, history, keep)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _check_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RejectedReply(f"has a round that is not a whole number: {value!r}")
    return value


# -- site → server: encode -------------------------------------------------------------------------------------------


class EvaluationReply(NamedTuple):
    """Correct predictions, or errors of numbers, and samples on a site's test data, by class or as one total."""

    shared: Tensor  # (K,) or (1,); errors have one more dimension of 2
    personal: Tensor | None  # None: the method has no personal model, or the site was never selected
    total: Tensor  # (K,) or (1,)
    class_spreads: Tensor  # (2, scores): std over the site's classes, of the shared and of the personal model
    declared: Declared = Declared()  # beside the counts, if the site agrees


def encode_join_reply(site: int, classes: int, parts: Parts, personal_start: str = "last") -> RecordDict:
    """A site's reply to `join`."""
    metrics = MetricRecord({"site": site, "classes": classes, "parameters": parts.shared_size})
    digests = parts.initial_digests(shared=personal_start == "initial")
    return RecordDict({METRICS_RECORD: metrics, CONSTANTS_RECORD: ConfigRecord(dict(digests))})


def encode_train_reply(parts: Parts, update: ClientUpdate, round: int) -> RecordDict:
    """A site's reply to `train`."""
    declared = {f"{_DECLARED}{name}": float(value) for name, value in update.declared.items()}
    metrics = MetricRecord({"round": round, "num-examples": update.samples, **declared})
    arrays, sent = to_arrays(parts, update.parameters, update.buffers), _tensor_records(update.tensors)
    return RecordDict({ARRAYS_RECORD: arrays, METRICS_RECORD: metrics, **sent})


def encode_evaluation_reply(reply: EvaluationReply, round: int, by_class: bool) -> RecordDict:
    """A site's reply to `evaluate`; without `by_class`, only totals and spreads."""

    def counts(values: Tensor) -> list[int] | list[float]:
        found: list[int] | list[float] = (values if by_class else values.sum(0, keepdim=True)).flatten().tolist()
        return found

    values: dict[str, int | float | list[int] | list[float]] = {"round": round, "by-class": int(by_class)}
    values |= {"shared": counts(reply.shared), "total": counts(reply.total)}
    values |= {"personal": counts(reply.personal)} if reply.personal is not None else {}
    if not by_class:
        shared_spread, personal_spread = reply.class_spreads.tolist()
        values |= {"shared-spread": shared_spread, "personal-spread": personal_spread}
    return RecordDict({METRICS_RECORD: MetricRecord(values), **declared_record(reply.declared)})


def encode_failure(site: object) -> Error:
    """A site's reply when it fails; without the exception, which may quote the data."""
    is_number = isinstance(site, int) and not isinstance(site, bool)
    return Error(code=CLIENT_APP_RAISED, reason=f"site {site}" if is_number else "a site without a number")


def class_spreads(shared: Tensor, personal: Tensor | None, total: Tensor) -> Tensor:
    """The std of each score over a site's classes, of the shared and of the personal model, (2, scores)."""
    models = shared, shared if personal is None else personal
    spreads = torch.zeros(2, len(scores_of(shared)), dtype=torch.float64)
    for i, sums in enumerate(models):
        for k, score in enumerate(scores_of(sums)):
            if total.any():
                spreads[i, k] = spread_in_clients(sums[None], total[None], score)[0]
    return spreads


# -- site → server: decode -------------------------------------------------------------------------------------------


def claimed_site(reply: Message, sites: int) -> int | None:
    """The site number in a reply, valid or not; for messages only, not to be trusted."""
    if reply.has_error():
        match = re.fullmatch(r"site (\d{1,9})", reply.error.reason or "")
        site: object = int(match[1]) if match else None
    else:
        metrics = reply.content.get(METRICS_RECORD)
        site = metrics.get("site") if isinstance(metrics, MetricRecord) else None
    return site if type(site) is int and 0 <= site < sites else None


def decode_join_reply(
    reply: Message, *, sites: int, classes: int, parts: Parts, personal_start: str = "last"
) -> int:  # fmt: skip
    """Decode a reply to `join` into the site number."""
    metrics = reply_metrics(reply)
    site = int_in(metrics, "site", 0, sites - 1)
    for key, expected in (("classes", classes), ("parameters", parts.shared_size)):
        if (value := int_in(metrics, key, 0, 2**62)) != expected:
            raise RejectedReply(f"has {value} {key} instead of {expected}")
    digests = parts.initial_digests(shared=personal_start == "initial")
    _check_initial_values(reply.content.get(CONSTANTS_RECORD), digests, parts)
    return site


def _check_initial_values(received: object, digests: Mapping[str, str], parts: Parts) -> None:
    """Reject a site that starts with other values than the server where no message would correct them."""
    constants = received if isinstance(received, ConfigRecord) else {}
    for name, digest in digests.items():
        if constants.get(name) != digest:
            kinds = {"frozen": parts.frozen_names, "initial local": parts.local_names, "initial": parts.trained}
            what = next((f"{kind} parameter" for kind, names in kinds.items() if name in names), "initial buffer")
            raise RejectedReply(f"has another {what} {name!r}; give every site the same model and init")
    if unknown := len(constants) - len(digests):
        raise RejectedReply(f"has {unknown} frozen parameters or buffers too many; give every site the same model")


def decode_train_reply(
    reply: Message, round: int, parts: Parts, max_samples: int, tensors: Shapes = MappingProxyType({})
) -> ClientUpdate:  # fmt: skip
    """Decode a reply to `train`, with these tensors; `invalid_updates` checks afterwards that all of it is finite."""
    metrics = reply_metrics(reply)
    check_round(metrics, round)
    samples = size_in(metrics, "num-examples", max_samples)
    arrays = reply.content.get(ARRAYS_RECORD)
    if not isinstance(arrays, ArrayRecord):
        raise RejectedReply("has no model")
    received = from_arrays(arrays, parts)
    sent = _decode_tensors(reply.content, tensors)
    return ClientUpdate(received["parameters"], samples, received.get("buffers"), _declared(metrics), sent)


def _declared(metrics: MetricRecord) -> dict[str, float]:
    """The numbers that a site declares, by name; they must be finite."""
    declared = {}
    for key, value in metrics.items():
        if key.startswith(_DECLARED):
            if not isinstance(value, float) or not math.isfinite(value):
                raise RejectedReply(f"declares {shorten(key)} that is not a finite number")
            declared[key.removeprefix(_DECLARED)] = value
    return declared


def decode_evaluation_reply(
    reply: Message, round: int, classes: int, max_samples: int, *, of_numbers: bool = False
) -> EvaluationReply:
    """Decode a reply to `evaluate`.

    Args:
        reply: the reply
        round: the round that was evaluated
        classes: the number of classes, or of ranges of the target
        max_samples: a reply that claims more is rejected
        of_numbers: whether the sums are errors of numbers
    """
    metrics = reply_metrics(reply)
    check_round(metrics, round)
    by_class = int_in(metrics, "by-class", 0, 1) == 1
    size = classes if by_class else 1
    total = counts_in(metrics, "total", torch.full((size,), max_samples))
    read = errors_in if of_numbers else counts_in
    shared = read(metrics, "shared", total)
    personal = read(metrics, "personal", total) if "personal" in metrics else None
    if by_class:
        spreads = class_spreads(shared, personal, total)
    else:
        scores, most = len(scores_of(shared)), math.inf if of_numbers else 50.0  # the std of numbers in [0, 100]
        found = [spreads_in(metrics, f"{model}-spread", scores, most) for model in ("shared", "personal")]
        spreads = torch.tensor(found, dtype=torch.float64)
    declared = decode_declared(reply, int(total.sum()), 2 if of_numbers else 1)
    return EvaluationReply(shared, personal, total, spreads, declared)
