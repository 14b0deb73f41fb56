"""The messages by which sites with tables agree on one schema, and the checks of what arrives.

site → server   summary    site number; the summary of its training rows (`fedtilt.data.tables.summary`)
                a problem  site number; what differs between its table and the schema, in place of a summary or of the
                           reply to `join`
server → site   summary    nothing
                schema     the agreed schema, with the requests to join, to train and to evaluate
"""

import json
import re
from typing import Any

from flwr.app import ConfigRecord, ConfigRecordValues, Message, MetricRecord, RecordDict

from fedtilt.data import Schema
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.errors import InputError
from fedtilt.flower.messages import CONFIG_RECORD
from fedtilt.flower.model_arrays import RejectedReply
from fedtilt.flower.reply_fields import METRICS_RECORD, int_in, reply_metrics

SUMMARY_REQUEST = "query.summary"
MAX_SIZE = 2**24  # characters of a summary or a schema
_MAX_PROBLEM = 300


def schema_config(schema: Schema | None) -> dict[str, ConfigRecordValues]:
    """What a request to a site has of the schema; nothing without tables."""
    return {} if schema is None else {"schema": _dump(schema.to_json())}


def decode_schema(message: Message) -> Schema | None:
    """The schema in a request to a site."""
    config = message.content.get(CONFIG_RECORD)
    text = config.get("schema") if isinstance(config, ConfigRecord) else None
    if text is None:
        return None
    try:
        return Schema.from_json(_load(text))
    except (InputError, TypeError, ValueError) as error:
        raise InputError(f"the server sent a schema that cannot be used: {error}") from error


def encode_summary_reply(site: int, summary: SiteSummary) -> RecordDict:
    """A site's reply to `summary`."""
    config = ConfigRecord({"summary": _dump(summary.to_json())})
    return RecordDict({METRICS_RECORD: MetricRecord({"site": site}), CONFIG_RECORD: config})


def encode_problem(site: int, problem: str) -> RecordDict:
    """A site's reply if its table does not fit the schema."""
    config = ConfigRecord({"problem": problem[:_MAX_PROBLEM]})
    return RecordDict({METRICS_RECORD: MetricRecord({"site": site}), CONFIG_RECORD: config})


def reject_problem(reply: Message) -> None:
    """Reject a reply that tells a problem, with that as the reason."""
    config = None if reply.has_error() else reply.content.get(CONFIG_RECORD)
    problem = config.get("problem") if isinstance(config, ConfigRecord) else None
    if isinstance(problem, str):
        raise RejectedReply(re.sub(r"[^ -~À-ſ]", "?", problem[:_MAX_PROBLEM]))


def decode_summary_reply(reply: Message, *, sites: int, max_samples: int) -> tuple[int, SiteSummary]:
    """Decode a reply to `summary` into the site number and the summary."""
    site = int_in(reply_metrics(reply), "site", 0, sites - 1)
    reject_problem(reply)
    config = reply.content.get(CONFIG_RECORD)
    text = config.get("summary") if isinstance(config, ConfigRecord) else None
    try:
        values = _load(text)
        values = {**values, "site": str(site)} if isinstance(values, dict) and "site" in values else values
        return site, SiteSummary.from_json(values, max_samples)
    except (InputError, TypeError, ValueError) as error:
        raise RejectedReply(f"sent a summary that cannot be used: {error}") from None


def _dump(values: Any) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def _load(text: object) -> Any:
    """JSON values; texts that are too long or too deep, NaN and infinities are a ValueError."""
    if not isinstance(text, str) or len(text) > MAX_SIZE:
        raise ValueError(f"it is no text of at most {MAX_SIZE} characters")

    def refuse(constant: str) -> None:
        raise ValueError(f"it has {constant}")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
