"""A Flower Strategy for the clients of any Flower app: our rules and screening in place of Flower's average."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import initial_server
from fedtilt.engine.updates import invalid_updates
from fedtilt.errors import InputError
from fedtilt.flower.membership import decode_replies
from fedtilt.flower.message_fields import RejectedReply, check_success, read_arrays, read_size
from fedtilt.flower.messages import read_declared
from fedtilt.flower.task import SCREEN
from fedtilt.methods import Method, check_bad_share
from fedtilt.methods.aggregators import QFfl, Rooted
from fedtilt.methods.component import is_built_in
from fedtilt.parts import Parts, named_pieces
from fedtilt.state import ServerState, Slot
from fedtilt.toml_text import format_toml

_log = logging.getLogger("flwr")
BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")  # of BatchNorm in a state_dict
_MOST_SAMPLES = 2**53  # that a client may claim; screening bounds claims by those of the others


class FedTiltStrategy(FedAvg):
    """Flower's FedAvg with the aggregation of fedtilt: any rule, steps before it, screening, a server optimiser.

    It works with every ClientApp that replies with one ArrayRecord and one MetricRecord, as Flower's own strategies
    expect it. An invalid reply is rejected with a reason, logged and counted as `rejected-replies`; the round continues
    without it. A rule that needs the loss of the received model, such as q_ffl, reads it from the metric
    `declared-loss`.

    Args:
        aggregator: the rule: an aggregator, its name, or a table with `rule` and settings; default: the mean
        before: steps before the rule, such as ["nnm"]
        weighting: how clients count; default: by their samples as in FedAvg, or equally if the rule takes no weights
        optimizer: takes aggregated − received as a step (FedOpt); default: the aggregated model is the next one
        screen: see `TrainSettings.screen`; 0: no screening
        buffers: patterns of arrays that are averaged and are no part of what the rule compares; arrays of whole numbers
            are averaged too, and rounded
        lr: the clients' learning rate, which q_ffl needs
        seed: of random steps, such as the buckets of bucketing
        **fedavg: the arguments of Flower's FedAvg: fraction_train, min_train_nodes, weighted_by_key, …
    """

    def __init__(
        self, *, aggregator: Any = "tilted", before: Any = (), weighting: Any = None, optimizer: Any = None,
        screen: float = SCREEN, buffers: Sequence[str] = BUFFERS, lr: float | None = None, seed: int = 0, **fedavg: Any,
    ) -> None:  # fmt: skip
        super().__init__(**fedavg)
        method = Method(name="flower", aggregator=aggregator, before=before, optimizer=optimizer, lr=lr)
        rule = method.aggregator
        takes_weights = all(part.takes_weights for part in (rule, *method.before))
        self.method = replace(method, weighting=weighting or ("samples" if takes_weights else "equal"))
        self.settings = TrainSettings(screen=screen, seed=seed)
        if isinstance(rule, Rooted):
            raise InputError(f"aggregator {rule.label!r} needs training data on the server; use another aggregator")
        if self.method.weighting.init(2):
            raise InputError(
                f"weighting {self.method.weighting.label!r} needs to know all clients before the first round; use a "
                "deployment of fedtilt (fedtilt deploy new)"
            )
        if isinstance(rule, QFfl) and lr is None:
            raise InputError("aggregator 'q_ffl' needs the clients' learning rate; give lr, such as lr=0.01")
        if lr is not None and is_built_in(rule) and not isinstance(rule, QFfl):
            raise InputError(f"lr = {lr:g} has no effect on aggregator {rule.label!r}; leave it out")
        self._buffers = tuple(buffers)
        self._layout = _Layout({}, frozenset())
        self._received = ServerState(torch.zeros(0))
        self._requested: list[int] = []  # nodes that train in this round
        self._numbers: dict[int, int] = {}  # node → its client number
        self._slots: Mapping[str, Slot] | None = None  # None: before the first round

    def summary(self) -> None:
        """Log the settings."""
        _log.info("\t├──> fedtilt: %s, screen = %g", format_toml(self.method.to_table()), self.settings.screen)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nodes to train, as FedAvg does."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._layout = _Layout.of(arrays, self._buffers)
        self._received = self._layout.vectors({name: array.numpy() for name, array in arrays.items()})
        self._requested = sorted(message.metadata.dst_node_id for message in messages)
        for node in self._requested:
            self._numbers.setdefault(node, len(self._numbers))
        if messages:
            check_bad_share([self.method], len(messages))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the valid models; without any, the model stays as it is."""
        if self._slots is None:
            parts = Parts.plain(self._received.parameters)
            self._slots = initial_server(self.method, parts, len(self._numbers)).slots
        server = self._received.with_slots(self._slots)
        if not self._requested:
            return None, None
        updates, contents, rejected = self._decode(replies)
        nodes = {number: node for node, number in self._numbers.items()}
        for number, reason in invalid_updates(self.method, updates, server).items():
            rejected[nodes[number]] = reason
            del updates[number]
        if updates:
            updated = server_update(
                self.method, server, updates, self.settings, selected=len(self._requested), round=server_round,
                clients=len(self._numbers),
            )  # fmt: skip
            server = updated.state
            self._slots = server.slots
            for number, text in sorted(updated.bounded.items()):
                _log.warning("round %d: node %d %s", server_round, nodes[number], text)
            rejected |= {nodes[number]: text for number, text in updated.rejected.items()}
        for node, reason in sorted(rejected.items()):
            _log.warning("round %d: the reply of node %d is not used: it %s", server_round, node, reason)
        used = [content for node, content in contents.items() if node not in rejected]
        if not used:
            _log.warning("round %d: no reply can be used, and the model stays as it is", server_round)
            return None, MetricRecord({"rejected-replies": len(rejected)})
        metrics = self.train_metrics_aggr_fn(used, self.weighted_by_key)
        metrics["rejected-replies"] = len(rejected)
        return self._layout.arrays(server), metrics

    def _decode(self, replies: Iterable[Message]) -> tuple[dict[int, ClientUpdate], dict[int, Any], dict[int, str]]:
        """By client number, the updates; by node, the content of their replies, and why others are rejected."""
        by_node: dict[int, list[Message]] = {}
        for reply in replies:
            by_node.setdefault(reply.metadata.src_node_id, []).append(reply)
        names = Counter(map(_metric_names, itertools.chain.from_iterable(by_node.values())))
        names.pop(None, None)
        usual = names.most_common(1)

        def decode(reply: Message) -> ClientUpdate:
            check_success(reply)
            if reply.metadata.src_node_id not in self._requested:
                raise RejectedReply("was not asked")
            arrays, metrics = reply.content.array_records, reply.content.metric_records
            if (len(arrays), len(metrics)) != (1, 1):
                raise RejectedReply(f"has {len(arrays)} ArrayRecords and {len(metrics)} MetricRecords, not 1 each")
            if _metric_names(reply) != usual[0][0]:
                raise RejectedReply("has other metrics than the others")
            (record,), (numbers,) = arrays.values(), metrics.values()
            samples = read_size(numbers, self.weighted_by_key, _MOST_SAMPLES)
            model = self._layout.vectors(read_arrays(record, self._layout.types))
            return ClientUpdate(model.parameters, samples, model.buffers, read_declared(numbers))

        accepted, rejected = decode_replies(by_node, decode)
        updates = {self._numbers[node]: update for node, update in accepted.items()}
        return updates, {node: by_node[node][0].content for node in accepted}, rejected


@dataclass(frozen=True)
class _Layout:
    """The arrays of a model in messages, and as the server's vectors (P,) and (B,)."""

    types: dict[str, tuple[tuple[int, ...], str]]  # name → shape, type
    buffers: frozenset[str]

    @classmethod
    def of(cls, arrays: ArrayRecord, patterns: Sequence[str]) -> Self:
        """The layout of the model that the server sends."""
        types = {name: (tuple(array.shape), array.dtype) for name, array in arrays.items()}
        matched = {pattern: {name for name in types if fnmatch(name, pattern)} for pattern in patterns}
        for pattern, names in matched.items():
            if not names and pattern not in BUFFERS:
                raise InputError(f"buffers has {pattern!r}, but the model has no such array: {', '.join(types)}")
        whole = {name for name, (_, dtype) in types.items() if _is_whole(dtype)}
        if len(buffers := frozenset(whole.union(*matched.values()))) == len(types):
            raise InputError(
                f"the model has no array that the rule could aggregate: {', '.join(types) or 'it is empty'}"
            )
        return cls(types, buffers)

    def vectors(self, arrays: Mapping[str, np.ndarray]) -> ServerState:
        """Arrays as vectors: parameters in float32 unless one has more digits, buffers in float64."""
        model = [array.ravel() for name, array in arrays.items() if name not in self.buffers]
        parameters = torch.from_numpy(np.concatenate([*model, np.zeros(0, np.float32)]))
        averaged = [array.ravel() for name, array in arrays.items() if name in self.buffers]
        return ServerState(
            parameters, torch.from_numpy(np.concatenate(averaged, dtype=np.float64)) if averaged else None
        )

    def arrays(self, server: ServerState) -> ArrayRecord:
        """The inverse of `vectors`, in the types of the arrays."""
        pieces: dict[str, Tensor] = {}
        for vector, is_buffer in ((server.parameters, False), (server.buffers, True)):
            if vector is not None:
                shapes = {n: shape for n, (shape, _) in self.types.items() if (n in self.buffers) == is_buffer}
                pieces |= named_pieces(vector, shapes)
        arrays = ArrayRecord()
        for name, (_, dtype) in self.types.items():
            values = pieces[name].round() if _is_whole(dtype) else pieces[name]
            arrays[name] = Array(values.numpy().astype(dtype))
        return arrays


def _is_whole(dtype: str) -> bool:
    return not np.issubdtype(np.dtype(dtype), np.floating)


def _metric_names(reply: Message) -> frozenset[tuple[str, int]] | None:
    """The names of a reply's metrics, with the lengths of lists; None: it has none."""
    records = [] if reply.has_error() else list(reply.content.metric_records.values())
    if len(records) != 1:
        return None
    return frozenset((key, len(value) if isinstance(value, list) else -1) for key, value in records[0].items())
