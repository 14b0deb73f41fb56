"""What fedtilt uses of Flower 1.41 beside its public API; `tests/flower/test_flwr_internals.py` says when it can go.

reply polling  Flower's grid asks the SuperLink for replies every three seconds, and has no setting for that. A grid
               around it asks more often, with public methods alone.
reply size     Flower stores a reply in parts on the SuperLink's disk, and reads all parts into memory before a strategy
               sees any of them, without a limit. A client around that of Flower's grid counts the bytes, and stops
               reading a reply that is larger than any valid one.
identity       a message carries the identity of the task that makes it, which Flower sets in its own processes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from torch import nn

FLWR_VERSION = "1.41"


def network_grid(grid: Grid) -> Grid:
    """The grid with short waits and a limit on replies; one without a network as it is."""
    return cast(Grid, NetworkGrid(grid)) if isinstance(grid, HttpGrid) else grid


def poll_interval(seconds: float) -> float:
    """How long to wait before the server asks for replies again, after this time without all of them.

    >>> poll_interval(0), poll_interval(10), poll_interval(600)
    (0.2, 0.5, 3.0)
    """
    return min(max(seconds / 20, 0.2), 3.0)


class NetworkGrid:
    """Flower's grid over HTTP, which asks for replies at `poll_interval`."""

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies to messages; after `timeout` seconds, those that have arrived."""
        expected = {message for message in self._grid.push_messages(messages) if message}  # no id: it was not sent
        replies: list[Message] = []
        start = time.monotonic()
        while expected:
            arrived = list(self._grid.pull_messages(expected))
            replies += arrived
            expected -= {reply.metadata.reply_to_message_id for reply in arrived}
            waited = time.monotonic() - start
            if not expected or (timeout is not None and waited >= timeout):
                break
            time.sleep(poll_interval(waited) if timeout is None else min(poll_interval(waited), timeout - waited))
        return replies

    def limit_reply_size(self, limit: int, on_excess: Callable[[int], None]) -> None:
        """Drop replies of more than `limit` bytes from now on; `on_excess` is called with the node that sent one."""
        client: Any = self._grid._runtime_client
        client = client._client if isinstance(client, _LimitedClient) else client  # a new limit replaces the last one
        self._grid._client = _LimitedClient(client, self._grid.node, limit, on_excess)  # type: ignore[assignment]


def limit_reply_size(grid: Grid, limit: int, on_excess: Callable[[int], None]) -> None:
    """`NetworkGrid.limit_reply_size`; a grid without a network has no parts to count."""
    if isinstance(grid, NetworkGrid):
        grid.limit_reply_size(limit, on_excess)


def max_reply_size(model: nn.Module) -> int:
    """The bytes that a reply may have: four times the model, and 1 MiB for names and counts."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])
    return 4 * size + 2**20


class _LimitedClient:
    """A client of Flower's Runtime API that counts the bytes of each reply while its parts are pulled."""

    def __init__(self, client: Any, node: Node, limit: int, on_excess: Callable[[int], None]) -> None:
        self._client, self._node, self._limit, self._on_excess = client, node, limit, on_excess
        self._replies: dict[str, list[str]] = {}  # part → the messages that it is a part of
        self._senders: dict[str, int] = {}  # message → node
        self._sizes: dict[str, dict[str, int]] = {}  # message → part → bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        """The replies that have arrived, without their parts."""
        response: PullAppMessagesResponse = self._client.PullMessages(request)
        self._replies, self._senders, self._sizes = {}, {}, {}
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            number = message.metadata.message_id
            self._senders[number], self._sizes[number] = message.metadata.src_node_id, {}
            for part in iterate_object_tree(tree):
                self._replies.setdefault(part.object_id, []).append(number)
        return response

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """One part; a part beyond the limit is not found, so that Flower drops the reply."""
        response: PullObjectResponse = self._client.PullObject(request)
        for number in self._replies.get(request.object_id, ()):
            sizes = self._sizes[number]
            sizes[request.object_id] = len(response.object_content)
            if sum(sizes.values()) > self._limit:
                if number in self._senders:
                    self._on_excess(self._senders.pop(number))
                    received = ConfirmMessageReceivedRequest(
                        node=self._node, run_id=request.run_id, message_object_id=number
                    )
                    self._client.ConfirmMessageReceived(received)  # the SuperLink deletes it
                return PullObjectResponse(object_found=False)
        return response


@contextmanager
def task_identity() -> Iterator[None]:
    """Give messages of this process an identity, for a federation without Flower's processes."""
    names = ("_run_id", "_node_id", "_task_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, 1)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)
