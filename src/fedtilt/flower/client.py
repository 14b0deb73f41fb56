"""A Flower ClientApp around a site."""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtilt.flower.deploy.allowed_apps import ACCEPT_ALL
from fedtilt.flower.evaluation import encode_evaluation_reply
from fedtilt.flower.messages import (
    decode_instruction,
    decode_schema,
    encode_failure,
    encode_join_reply,
    encode_problem,
    encode_summary_reply,
    encode_train_reply,
)
from fedtilt.flower.server_settings import check_server_settings
from fedtilt.flower.site import Site
from fedtilt.flower.site_table import SchemaMismatch
from fedtilt.flower.task import Task, site_number, yes_or_no

_log = logging.getLogger("flwr")


def client_app(task: Task) -> ClientApp:
    """The app that a SuperNode runs: joins, trains, evaluates.

    The SuperNode's `--node-config` identifies the site: `partition-id=0 state-dir="/var/lib/fedtilt"`. Add
    `declare-classes=false` if counts by class must not leave the site, and `share-summary=false` if the summary of its
    table must not. With `train.audit = true`, the site writes its suspects to suspects.csv in its state-dir; add
    `declare-suspects=true` if the server may know how many there are.
    """
    app = ClientApp()

    app.query("summary")(partial(_reply, _summary, task))
    app.query()(partial(_reply, _join, task))
    app.train()(partial(_reply, _train, task))
    app.evaluate()(partial(_reply, _evaluate, task))
    return app


def _summary(task: Task, message: Message, context: Context) -> RecordDict:
    number, resolved = site_number(context.node_config), task.resolve(_run_config(task, context))
    return encode_summary_reply(number, task.site_summary(resolved, number, context.node_config))


def _join(task: Task, message: Message, context: Context) -> RecordDict:
    site = _site(task, message, context)
    own = site.task.method.personal
    start = "last" if own is None else own.start
    return encode_join_reply(site.number, site.federation.classes, site.parts, start)


def _train(task: Task, message: Message, context: Context) -> RecordDict:
    site = _site(task, message, context)
    instruction = decode_instruction(message, site.parts, site.messages.to_clients)
    return encode_train_reply(site.parts, site.train(instruction), instruction.round)


def _evaluate(task: Task, message: Message, context: Context) -> RecordDict:
    site = _site(task, message, context)
    instruction = decode_instruction(message, site.parts)
    return encode_evaluation_reply(site.evaluate(instruction), instruction.round, site.declares["classes"])


def _site(task: Task, message: Message, context: Context) -> Site:
    return Site.open(task, _run_config(task, context), context.node_config, decode_schema(message))


def _run_config(task: Task, context: Context) -> Mapping[str, bool | float | int | str]:
    """The server's run configuration, unless it changes what the site's operator has allowed."""
    if not yes_or_no(context.node_config, ACCEPT_ALL, default=False):
        check_server_settings(str(task.spec), context.run_config)
    return context.run_config


def _reply(
    step: Callable[[Task, Message, Context], RecordDict], task: Task, message: Message, context: Context
) -> Message:
    """The reply to a message; an exception goes to the site's log only, because it may quote the data.

    Before the site has joined, the reply says what differs between its table and the schema.
    """
    try:
        return Message(step(task, message, context), reply_to=message)
    except Exception as error:
        _log.exception("this site could not reply")
        if isinstance(error, SchemaMismatch) and step in (_summary, _join):
            return Message(encode_problem(site_number(context.node_config), error.difference), reply_to=message)
        return Message(encode_failure(context.node_config.get("partition-id")), reply_to=message)
