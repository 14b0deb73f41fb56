"""A Flower ClientApp around a site."""

import logging
import tomllib
from collections.abc import Callable, Mapping
from functools import partial

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtilt.config.setting_fields import settings_of
from fedtilt.data.tables.cells import SchemaMismatch
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
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
from fedtilt.flower.site import Site
from fedtilt.flower.site_data import is_on, site_number, site_summary
from fedtilt.flower.task import NodeConfig, Task
from fedtilt.spec import load

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
    summary = site_summary(task, task.resolve(_run_config(task, context)).spec, context.node_config)
    return encode_summary_reply(site_number(context.node_config), summary)


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
    return Site(task, _run_config(task, context), context.node_config, decode_schema(message))


def _run_config(task: Task, context: Context) -> NodeConfig:
    """The server's run configuration, unless it changes what the site's operator has allowed."""
    if not is_on(context.node_config, ACCEPT_ALL, default=False):
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


# -- what a server may change -----------------------------------------------------------------------------------------


def check_server_settings(spec: str, config: Mapping[str, object]) -> None:
    """Raise InputError for a run configuration that changes more of a spec than a server may.

    It comes from the server and can override any key of the spec: functions to import, files to read, the smallest
    group of rows that a summary tells. A site accepts how long and how fast it trains: numbers, true and false for
    [train], the methods and the seed, and the words that a key of [train] lists. Everything else is part of the
    project: its digest is what the operator has allowed.
    """
    name = str(config.get("method") or "")
    if name and name not in (known := [method.name for method in load(spec).methods]):
        raise InputError(f"the server asks for the method {name!r}, and the allowed project has {', '.join(known)}")
    for line in filter(str.strip, str(config.get("set") or "").splitlines()):
        key, _, value = line.partition("=")
        if not _is_accepted(key.strip(), value.strip()):
            raise InputError(
                f"the server changes {key.strip()[:60]!r} of the allowed project to {value.strip()[:60]!r}, and may "
                f"change only numbers of [train] and of the methods; write it into spec.toml and allow that project, "
                f"or accept all settings of this server with {ACCEPT_ALL}=true in --node-config"
            )


def _is_accepted(key: str, value: str) -> bool:
    """Whether a server may give this key this value.

    >>> _is_accepted("train.lr", "0.1"), _is_accepted("train.schedule", "cosine"), _is_accepted("seed", "3")
    (True, True, True)
    >>> _is_accepted("train.loss", "module:function"), _is_accepted("data.min_count", "1")
    (False, False)
    """
    table, _, name = key.partition(".")
    if table not in ("train", "methods", "seed"):
        return False
    try:
        (parsed,) = tomllib.loads(f"value = {value}").values()
    except (tomllib.TOMLDecodeError, ValueError):
        parsed = value  # a word, which `--set` takes without quotes
    if isinstance(parsed, bool | int | float):
        return True
    field = settings_of(TrainSettings).get(name) if table == "train" else None
    return field is not None and parsed in [*(field.metadata["choices"] or ()), *(field.metadata["named"] or ())]
