"""How often the server asks the SuperLink for replies: short rounds need not wait for Flower's three seconds."""

import time
from collections.abc import Iterable
from functools import partial

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid


def poll_interval(seconds: float) -> float:
    """How long to wait before the server asks again, after so many seconds without all replies.

    >>> poll_interval(0), poll_interval(10), poll_interval(600)
    (0.2, 0.5, 3.0)
    """
    return min(max(seconds / 20, 0.2), 3.0)


def poll_often(grid: Grid) -> None:
    """Make a grid ask for replies at `poll_interval`, instead of every three seconds."""
    if isinstance(grid, HttpGrid):  # other grids do not wait for a network
        grid.send_and_receive = partial(_send_and_receive, grid)  # type: ignore[method-assign]


def _send_and_receive(grid: Grid, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
    """The replies to messages; after `timeout` seconds, those that have arrived."""
    expected = {message for message in grid.push_messages(messages) if message}  # no id: it could not be sent
    replies: list[Message] = []
    start = time.monotonic()
    while expected:
        arrived = list(grid.pull_messages(expected))
        replies += arrived
        expected -= {reply.metadata.reply_to_message_id for reply in arrived}
        waited = time.monotonic() - start
        if not expected or (timeout is not None and waited >= timeout):
            break
        time.sleep(poll_interval(waited) if timeout is None else min(poll_interval(waited), timeout - waited))
    return replies
