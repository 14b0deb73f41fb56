"""The server waits for replies as Flower does, in shorter steps."""

from collections.abc import Iterable

import pytest
from flwr.app import Message, RecordDict
from flwr.superlink.grid.http_grid import HttpGrid

from fedtilt.flower import reply_polling
from fedtilt.flower.reply_polling import poll_often


class Replies:
    """A network on which each request is answered when the server has asked so many times; None: never."""

    def __init__(self, grid: HttpGrid, monkeypatch: pytest.MonkeyPatch, answered_after: dict[str, int | None]) -> None:
        self._answered_after = answered_after
        self.asked: list[set[str]] = []
        self.waits: list[float] = []
        self._now = 0.0
        grid.push_messages = lambda messages: list(answered_after)  # type: ignore[method-assign]
        grid.pull_messages = self._pull  # type: ignore[method-assign]
        monkeypatch.setattr(reply_polling.time, "monotonic", lambda: self._now)
        monkeypatch.setattr(reply_polling.time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._now += seconds

    def _pull(self, ids: Iterable[str]) -> list[Message]:
        self.asked.append(set(ids))
        arrived = [name for name in sorted(ids) if self._answered_after[name] == len(self.asked)]
        request = Message(RecordDict(), dst_node_id=101, message_type="train")
        replies = [Message(RecordDict(), reply_to=request) for _ in arrived]
        for name, reply in zip(arrived, replies, strict=True):
            reply.metadata.__dict__["_reply_to_message_id"] = name
        return replies


@pytest.fixture
def grid() -> HttpGrid:
    grid = HttpGrid(token="x")
    poll_often(grid)
    return grid


def answered(replies: Iterable[Message]) -> list[str]:
    return [reply.metadata.reply_to_message_id for reply in replies]


def test_every_reply_is_received_once_and_the_wait_grows(grid: HttpGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(grid, monkeypatch, {"a": 2, "b": 1, "c": 100})
    assert answered(grid.send_and_receive([], timeout=3600)) == ["b", "a", "c"]
    assert replies.asked[:3] == [{"a", "b", "c"}, {"a", "c"}, {"c"}]
    assert len(replies.asked) == 100
    assert replies.waits == sorted(replies.waits)
    assert (replies.waits[0], max(replies.waits)) == (0.2, 3.0)


def test_after_the_time_the_replies_that_arrived_count(grid: HttpGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(grid, monkeypatch, {"a": 1, "b": None, "c": None})
    assert answered(grid.send_and_receive([], timeout=10)) == ["a"]
    assert sum(replies.waits) == pytest.approx(10)


def test_a_message_that_could_not_be_sent_is_not_waited_for(grid: HttpGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(grid, monkeypatch, {"a": 1, "": None})
    assert answered(grid.send_and_receive([])) == ["a"]
    assert not replies.waits
