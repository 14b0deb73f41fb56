"""A Flower ClientApp around a site."""

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtilt.flower.messages import (
    decode_instruction,
    encode_evaluation_reply,
    encode_failure,
    encode_join_reply,
    encode_train_reply,
)
from fedtilt.flower.site import Site
from fedtilt.flower.task import Task

_log = logging.getLogger("flwr")


def client_app(task: Task) -> ClientApp:
    """The app that a SuperNode runs: joins, trains, evaluates.

    The SuperNode's `--node-config` identifies the site: `partition-id=0 state-dir="/var/lib/fedtilt"`. Add
    `declare-classes=false` if counts by class must not leave the site.
    """
    app = ClientApp()

    @app.query()
    def join(message: Message, context: Context) -> Message:
        return _reply(_join, task, message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _reply(_train, task, message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _reply(_evaluate, task, message, context)

    return app


def _join(site: Site, message: Message) -> RecordDict:
    return encode_join_reply(site.number, site.federation.classes, site.parts)


def _train(site: Site, message: Message) -> RecordDict:
    instruction = decode_instruction(message, site.parts)
    reply = site.train(
        instruction.received,
        round=instruction.round,
        base_round=instruction.base_round,
        history_id=instruction.history_id,
    )
    return encode_train_reply(site.parts, reply, instruction.round)


def _evaluate(site: Site, message: Message) -> RecordDict:
    instruction = decode_instruction(message, site.parts)
    reply = site.evaluate(instruction.received, round=instruction.round, history_id=instruction.history_id)
    return encode_evaluation_reply(reply, instruction.round, site.declare_classes)


def _reply(step: Callable[[Site, Message], RecordDict], task: Task, message: Message, context: Context) -> Message:
    """The reply to a message; an exception goes to the site's log only, because it may quote the data."""
    try:
        site = Site.open(task, context.run_config, context.node_config)
        return Message(step(site, message), reply_to=message)
    except Exception:
        _log.exception("this site could not reply")
        return Message(encode_failure(context.node_config.get("partition-id")), reply_to=message)
