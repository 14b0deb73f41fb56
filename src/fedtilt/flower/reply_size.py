"""A limit on what one site's reply can cost the server: it stops reading a reply that is larger than any valid one.

Flower stores a reply in parts on the SuperLink's disk, and reads all parts into memory before a strategy sees any of
them. The parts are counted while they are read.
"""

from collections.abc import Callable
from typing import Any

from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.superlink.grid.http_grid import HttpGrid
from torch import nn


def max_reply_size(model: nn.Module) -> int:
    """The bytes that a reply may have: four times the model, and 1 MiB for names and counts."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])
    return 4 * size + 2**20


def limit_reply_size(grid: Grid, limit: int, on_excess: Callable[[int], None]) -> None:
    """Make a grid drop replies of more than `limit` bytes; `on_excess` is called with the node that sent one."""
    if isinstance(grid, HttpGrid):  # a grid without a network has no parts to count
        client: Any = grid._runtime_client
        client = client._client if isinstance(client, _LimitedClient) else client  # a new limit replaces the last one
        grid._client = _LimitedClient(client, grid.node, limit, on_excess)  # type: ignore[assignment]


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
