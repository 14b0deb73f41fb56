"""A Flower ClientApp around a site."""

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtilt.flower.messages import instruction, say_failed, say_joined, say_update, say_verdict, shapes_of
from fedtilt.flower.site import Site
from fedtilt.flower.task import Task

_log = logging.getLogger("flwr")


def client_app(task: Task) -> ClientApp:
    """The app that a SuperNode runs: joins, trains, judges.

    The SuperNode's `--node-config` says who it is: `partition-id=0 state-dir="/var/lib/fedtilt"`, and
    `declare-classes=false` where right answers by class must not leave the site.
    """
    app = ClientApp()

    @app.query()
    def join(message: Message, context: Context) -> Message:
        return _answer(_join, task, message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answer(_train, task, message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _answer(_judge, task, message, context)

    return app


def _join(site: Site, message: Message) -> RecordDict:
    parameters = sum(p.numel() for p in site.model.parameters())
    return say_joined(site.number, site.federation.classes, parameters)


def _train(site: Site, message: Message) -> RecordDict:
    told = instruction(message, shapes_of(site.model))
    update = site.train(told.w, round=told.round, base=told.base, history=told.history)
    return say_update(site.model, update, told.round)


def _judge(site: Site, message: Message) -> RecordDict:
    told = instruction(message, shapes_of(site.model))
    verdict = site.judge(told.w, round=told.round, history=told.history)
    return say_verdict(verdict, told.round, site.by_class)


def _answer(step: Callable[[Site, Message], RecordDict], task: Task, message: Message, context: Context) -> Message:
    """The reply to a message; what went wrong is told to the site's log alone, for it may quote the data."""
    try:
        site = Site.open(task, context.run_config, context.node_config)
        return Message(step(site, message), reply_to=message)
    except Exception:
        _log.exception("this site could not answer")
        return Message(say_failed(context.node_config.get("partition-id")), reply_to=message)
