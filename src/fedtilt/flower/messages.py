"""All messages but the replies to `evaluate`: a reply is decoded into plain values or rejected with a reason.

server → site   summary    nothing
                join       the schema of the sites' tables, if they have tables; also in the next two
                train      w, and its buffers if they are averaged; what its components declare; round, base
                           round (that w came from), the last round whose update reached the server, training
                           history, rounds that the server can go back to
                evaluate   w, and its buffers if they are averaged; round, that last round, training history
site → server   summary    site number; the summary of its training rows (`fedtilt.data.tables.summary`)
                join       site number, number of classes, number of parameters, digests of what no message carries
                a problem  in place of the two: site number; what differs between its table and the schema
                train      w_n, and its buffers if they are averaged; what its components declare; round,
                           training samples, declared numbers
                evaluate   see `fedtilt.flower.evaluation`
                a failure  Flower's error code, and the site number
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from flwr.app import ConfigRecord, ConfigRecordValues, Error, Message, MetricRecord, RecordDict

from fedtilt.data import Schema
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.state import Shapes
from fedtilt.errors import InputError
from fedtilt.flower.message_fields import (
    CLIENT_APP_RAISED,
    METRICS_RECORD,
    RejectedReply,
    decode_json,
    decode_model,
    decode_slots,
    encode_json,
    encode_model,
    encode_slots,
    read_int,
    read_size,
    reply_metrics,
    shorten,
)
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.parts import Parts
from fedtilt.state import ServerState

SUMMARY_REQUEST = "query.summary"
_ARRAYS_RECORD, _TENSORS_RECORD, _CONFIG_RECORD, _CONSTANTS_RECORD = "arrays", "tensors", "config", "constants"
_DECLARED = "declared-"
_MAX_PROBLEM = 300  # characters
_NOTHING: Shapes = MappingProxyType({})


# -- server → site ---------------------------------------------------------------------------------------------------


class Instruction(NamedTuple):
    """What the server sends to a site."""

    received: ServerState  # what the server sends of it
    round: int
    base_round: int  # the round w came from: the round before to train, the round itself to evaluate
    used_round: int  # the last round until then with an update of this site that reached the server
    history: TrainingHistory
    keep: tuple[int, ...]  # the rounds that the server can go back to


def encode_join(schema: Schema | None) -> RecordDict:
    """The content of a request to join."""
    return RecordDict() if schema is None else RecordDict({_CONFIG_RECORD: ConfigRecord(_schema_config(schema))})


def encode_instruction(
    parts: Parts, server: ServerState, config: Mapping[str, ConfigRecordValues], history: TrainingHistory,
    schema: Schema | None, sent: Shapes = _NOTHING,
) -> RecordDict:  # fmt: skip
    """The content of a request to train or to evaluate, with these tensors of the server's slots."""
    values = {**config, "history": encode_json(history.to_json()), **_schema_config(schema)}
    model = encode_model(parts, server.parameters, server.buffers)
    content = RecordDict({_ARRAYS_RECORD: model, _CONFIG_RECORD: ConfigRecord(values)})
    if any(sent.values()):
        slots = {slot: {name: server.slot(slot)[name] for name in names} for slot, names in sent.items()}
        content[_TENSORS_RECORD] = encode_slots(slots)
    return content


def for_site(content: RecordDict, used_round: int) -> RecordDict:
    """The content for one site, whose last update that reached the server is that of this round; 0: none."""
    config = ConfigRecord({**content.config_records[_CONFIG_RECORD], "used-round": used_round})
    return RecordDict({**content, _CONFIG_RECORD: config})


def decode_instruction(message: Message, parts: Parts, sent: Shapes = _NOTHING) -> Instruction:
    """Decode a request to `train` or `evaluate`, with these tensors of the server's slots."""
    content, config = message.content, message.content.config_records[_CONFIG_RECORD]
    round = _check_int(config["round"])
    base_round = _check_int(config.get("base-round", round))
    used_round = _check_int(config.get("used-round", base_round))
    history = TrainingHistory.from_json(decode_json(config["history"]))
    kept = config.get("keep", [])
    keep = tuple(map(_check_int, kept if isinstance(kept, list) else [kept]))
    model = decode_model(content.get(_ARRAYS_RECORD), parts)
    received = model.with_slots(decode_slots(content.get(_TENSORS_RECORD), sent))
    return Instruction(received, round, base_round, used_round, history, keep)


def _check_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RejectedReply(f"has a round that is not a whole number: {value!r}")
    return value


def _schema_config(schema: Schema | None) -> dict[str, ConfigRecordValues]:
    return {} if schema is None else {"schema": encode_json(schema.to_json())}


def decode_schema(message: Message) -> Schema | None:
    """The schema in a request to a site."""
    text = _text(message, "schema")
    try:
        return None if text is None else Schema.from_json(decode_json(text))
    except (InputError, TypeError, ValueError) as error:
        raise InputError(f"the server sent a schema that cannot be used: {error}") from error


def _text(message: Message, key: str) -> object:
    """A text in the configuration of a message, or None."""
    config = None if message.has_error() else message.content.get(_CONFIG_RECORD)
    return config.get(key) if isinstance(config, ConfigRecord) else None


# -- site → server: encode -------------------------------------------------------------------------------------------


def encode_summary_reply(site: int, summary: SiteSummary) -> RecordDict:
    """A site's reply to `summary`."""
    config = ConfigRecord({"summary": encode_json(summary.to_json())})
    return RecordDict({METRICS_RECORD: MetricRecord({"site": site}), _CONFIG_RECORD: config})


def encode_problem(site: int, problem: str) -> RecordDict:
    """A site's reply if its table does not fit the schema."""
    config = ConfigRecord({"problem": problem[:_MAX_PROBLEM]})
    return RecordDict({METRICS_RECORD: MetricRecord({"site": site}), _CONFIG_RECORD: config})


def encode_join_reply(site: int, classes: int, parts: Parts, personal_start: str = "last") -> RecordDict:
    """A site's reply to `join`."""
    metrics = MetricRecord({"site": site, "classes": classes, "parameters": parts.shared_size})
    digests = parts.initial_digests(shared=personal_start == "initial")
    return RecordDict({METRICS_RECORD: metrics, _CONSTANTS_RECORD: ConfigRecord(dict(digests))})


def encode_train_reply(parts: Parts, update: ClientUpdate, round: int) -> RecordDict:
    """A site's reply to `train`."""
    declared = {f"{_DECLARED}{name}": float(value) for name, value in update.declared.items()}
    metrics = MetricRecord({"round": round, "num-examples": update.samples, **declared})
    model = encode_model(parts, update.parameters, update.buffers)
    content = RecordDict({_ARRAYS_RECORD: model, METRICS_RECORD: metrics})
    if any(update.sent.values()):
        content[_TENSORS_RECORD] = encode_slots(update.sent)
    return content


def encode_failure(site: object) -> Error:
    """A site's reply when it fails; without the exception, which may quote the data."""
    is_number = isinstance(site, int) and not isinstance(site, bool)
    return Error(code=CLIENT_APP_RAISED, reason=f"site {site}" if is_number else "a site without a number")


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


def _check_problem(reply: Message) -> None:
    """Reject a reply that names a problem, with that as the reason."""
    problem = _text(reply, "problem")
    if isinstance(problem, str):
        raise RejectedReply(re.sub(r"[^ -~À-ſ]", "?", problem[:_MAX_PROBLEM]))


def decode_summary_reply(reply: Message, *, sites: int, max_samples: int) -> tuple[int, SiteSummary]:
    """Decode a reply to `summary` into the site number and the summary."""
    site = read_int(reply_metrics(reply), "site", 0, sites - 1)
    _check_problem(reply)
    try:
        values = decode_json(_text(reply, "summary"))
        values = {**values, "site": str(site)} if isinstance(values, dict) and "site" in values else values
        return site, SiteSummary.from_json(values, max_samples)
    except (InputError, TypeError, ValueError) as error:
        raise RejectedReply(f"sent a summary that cannot be used: {error}") from None


def decode_join_reply(
    reply: Message, *, sites: int, classes: int, parts: Parts, personal_start: str = "last"
) -> int:  # fmt: skip
    """Decode a reply to `join` into the site number."""
    _check_problem(reply)
    metrics = reply_metrics(reply)
    site = read_int(metrics, "site", 0, sites - 1)
    for key, expected in (("classes", classes), ("parameters", parts.shared_size)):
        if (value := read_int(metrics, key, 0, 2**62)) != expected:
            raise RejectedReply(f"has {value} {key} instead of {expected}")
    _check_initial_values(reply.content.get(_CONSTANTS_RECORD), parts, personal_start)
    return site


def _check_initial_values(received: object, parts: Parts, personal_start: str) -> None:
    """Reject a site that starts with other values than the server where no message would correct them."""
    constants = received if isinstance(received, ConfigRecord) else {}
    digests = parts.initial_digests(shared=personal_start == "initial")
    for name, digest in digests.items():
        if constants.get(name) != digest:
            kinds = {"frozen": parts.frozen_names, "initial local": parts.local_names, "initial": parts.trained}
            what = next((f"{kind} parameter" for kind, names in kinds.items() if name in names), "initial buffer")
            raise RejectedReply(f"has another {what} {name!r}; give every site the same model and init")
    if unknown := len(constants) - len(digests):
        raise RejectedReply(f"has {unknown} frozen parameters or buffers too many; give every site the same model")


def decode_train_reply(
    reply: Message, round: int, parts: Parts, max_samples: int, sent: Shapes = _NOTHING
) -> ClientUpdate:
    """Decode a reply to `train`, with these tensors; `invalid_updates` checks afterwards that all of it is finite."""
    metrics = reply_metrics(reply, round)
    samples = read_size(metrics, "num-examples", max_samples)
    model = decode_model(reply.content.get(_ARRAYS_RECORD), parts)
    slots = decode_slots(reply.content.get(_TENSORS_RECORD), sent)
    return ClientUpdate(model.parameters, samples, model.buffers, read_declared(metrics), slots)


def read_declared(metrics: MetricRecord) -> dict[str, float]:
    """The numbers that a component asks for, such as the loss of the received model."""
    declared = {}
    for key, value in metrics.items():
        if key.startswith(_DECLARED):
            if not isinstance(value, float) or not math.isfinite(value):
                raise RejectedReply(f"declares {shorten(key)} that is not a finite number")
            declared[key.removeprefix(_DECLARED)] = value
    return declared
