"""What fedtilt uses of Flower beside its public API, and when that can go."""

import hashlib
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import flwr
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from torch import nn

from fedtilt.files import read_json
from fedtilt.flower import flwr_internals
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.flwr_internals import FLWR_VERSION, NetworkGrid, limit_reply_size, max_reply_size
from tests.helpers.network import write_app

MIB = 2**20


@pytest.mark.parametrize(
    ("code", "digest"),
    [
        (HttpGrid.send_and_receive, "699c9f048f3cff74"),  # waits three seconds, without a setting
        (HttpGrid.pull_messages, "67a5266a5a2ed515"),  # reads all parts of a reply, without a limit
        (HttpGrid._runtime_client.fget, "b564cf9ee6d77632"),
        (inflatable_utils.pull_objects, "31bb2de46b450e6a"),
        (iterate_object_tree, "34c0fe845619356a"),
        (TaskIdentity, "49ac1df12b140345"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_flower_is_the_version_that_the_internals_are_for(code: Any, digest: str) -> None:
    """If this fails: read what changed in Flower, correct or delete `flwr_internals`, then note version and digests.

    The polling can go when Flower's grid has a setting for how often it asks, the limit on replies when Flower has one.
    """
    assert flwr.__version__.startswith(FLWR_VERSION + ".")
    assert hashlib.sha256(inspect.getsource(code).encode()).hexdigest()[:16] == digest


# -- the size of replies ---------------------------------------------------------------------------------------------


class Client:
    """What a SuperLink answers: one reply of each node, of this many random bytes."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.pulled = 0
        self.confirmed: list[str] = []
        self.contents: dict[str, bytes] = {}
        self.messages = []
        for node, size in sizes.items():
            data = np.random.default_rng(node).integers(0, 256, size, np.uint8)
            request = Message(RecordDict(), dst_node_id=node, message_type="train")
            reply = Message(RecordDict({"arrays": ArrayRecord({"w": Array(data)})}), reply_to=request)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.contents |= {key: part.deflate() for key, part in get_all_nested_objects(reply).items()}
            self.messages.append((message_to_proto(remove_content_from_message(reply)), get_object_tree(reply)))

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        messages, trees = zip(*self.messages, strict=True)
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        content = self.contents[request.object_id]
        self.pulled += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> None:
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def flower_grid() -> Iterator[HttpGrid]:
    grid = HttpGrid(token="x")
    grid.set_run(Run.create_empty(1))
    yield grid
    grid._client = None


@pytest.fixture
def grid(flower_grid: HttpGrid) -> Any:
    return NetworkGrid(flower_grid)


def test_a_reply_beyond_the_limit_is_not_read_to_its_end(grid: Any, flower_grid: HttpGrid) -> None:
    client = flower_grid._client = Client({101: 40 * MIB, 102: MIB, 103: MIB})
    excess: list[int] = []
    limit_reply_size(grid, 12 * MIB, excess.append)
    replies = grid.pull_messages(["a", "b", "c"])
    assert [reply.metadata.src_node_id for reply in replies if not reply.has_error()] == [102, 103]
    assert excess == [101]
    assert client.pulled < (12 + 2 * 5 + 2 + 1) * MIB  # the limit, two parts on their way, two valid replies
    assert len(set(client.confirmed)) == 3  # the SuperLink deletes the large one too


def test_equal_parts_of_different_replies_are_counted_once_for_each(grid: Any, flower_grid: HttpGrid) -> None:
    client = Client({101: 3 * MIB})
    client.messages = client.messages * 4
    flower_grid._client = client
    excess: list[int] = []
    limit_reply_size(grid, 4 * MIB, excess.append)
    assert not any(reply.has_error() for reply in grid.pull_messages(["a"]))
    assert excess == []


def test_a_new_limit_replaces_the_last_one(grid: Any, flower_grid: HttpGrid) -> None:
    flower_grid._client = Client({101: 3 * MIB})
    before, after = [], []
    limit_reply_size(grid, MIB, before.append)
    limit_reply_size(grid, 4 * MIB, after.append)
    assert not any(reply.has_error() for reply in grid.pull_messages(["a"]))
    assert before == after == []


def test_the_limit_follows_the_models_size() -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.BatchNorm1d(1000))
    parameters, buffers = 4 * (1000 * 1000 + 1000 + 2000), 4 * 2000 + 8
    assert max_reply_size(model) == 4 * (parameters + buffers) + MIB


# -- polling ---------------------------------------------------------------------------------------------------------


class Replies:
    """A network on which each request is answered when the server has asked this number of times; None: never."""

    def __init__(self, grid: HttpGrid, monkeypatch: pytest.MonkeyPatch, answered_after: dict[str, int | None]) -> None:
        self._answered_after = answered_after
        self.asked: list[set[str]] = []
        self.waits: list[float] = []
        self._now = 0.0
        grid.push_messages = lambda messages: list(answered_after)  # type: ignore[method-assign]
        grid.pull_messages = self._pull  # type: ignore[method-assign]
        monkeypatch.setattr(flwr_internals.time, "monotonic", lambda: self._now)
        monkeypatch.setattr(flwr_internals.time, "sleep", self._sleep)

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


def answered(replies: Iterable[Message]) -> list[str]:
    return [reply.metadata.reply_to_message_id for reply in replies]


def test_every_reply_is_received_once_and_the_wait_grows(grid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(grid._grid, monkeypatch, {"a": 2, "b": 1, "c": 100})
    assert answered(grid.send_and_receive([], timeout=3600)) == ["b", "a", "c"]
    assert replies.asked[:3] == [{"a", "b", "c"}, {"a", "c"}, {"c"}]
    assert len(replies.asked) == 100
    assert replies.waits == sorted(replies.waits)
    assert (replies.waits[0], max(replies.waits)) == (0.2, 3.0)


def test_after_the_time_the_replies_that_arrived_count(grid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(grid._grid, monkeypatch, {"a": 1, "b": None, "c": None})
    assert answered(grid.send_and_receive([], timeout=10)) == ["a"]
    assert sum(replies.waits) == pytest.approx(10)


def test_a_message_that_could_not_be_sent_is_not_waited_for(grid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(grid._grid, monkeypatch, {"a": 1, "": None})
    assert answered(grid.send_and_receive([])) == ["a"]
    assert not replies.waits


# -- a real network --------------------------------------------------------------------------------------------------

LARGE_REPLY = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from federation.task import TASK
from fedtilt.flower import client_app

site = client_app(TASK)
app = ClientApp()

@app.query()
def query(message, context):
    return site(message, context)

@app.evaluate()
def evaluate(message, context):
    return site(message, context)

@app.train()
def train(message, context):
    reply = site(message, context)
    if context.node_config["partition-id"] == 1:
        data = np.random.default_rng().integers(0, 256, 300 * 2**20, np.uint8)
        reply.content["large"] = ArrayRecord({"x": Array(data)})
    return reply
"""

MEASURE = """
import resource
from pathlib import Path
from typing import Any
from flwr.serverapp import ServerApp
from federation.task import TASK
from fedtilt.flower.server import serve

app = ServerApp()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

@app.main()
def main(grid, context):
    before = peak()
    serve(TASK, grid, context.run_config)
    Path(context.run_config["out"], "grown.txt").write_text(str(peak() - before))
"""


@pytest.mark.slow
def test_a_large_reply_of_a_real_site_costs_little_memory(tmp_path: Path) -> None:
    app, run = write_app(tmp_path / "app"), tmp_path / "run"
    (app / "federation/client.py").write_text(LARGE_REPLY)
    (app / "federation/server.py").write_text(MEASURE)
    cluster = LocalCluster(home=tmp_path / "cluster")
    cluster.up()
    try:
        number = cluster.submit(app, {"out": str(run)})
        assert cluster.wait_for_run(number, 400, is_done=(run / "grown.txt").exists) == "finished:completed"
    finally:
        cluster.down()
    rounds = read_json(run / "seed-0/participation.json")["rounds"]
    assert [entry["missing"] for entry in rounds.values()] == [{"1": "sent a reply that is too large"}] * 2
    assert float((run / "grown.txt").read_text()) < 150  # MiB, of which torch takes most; the reply has 300
