"""One site's reply cannot cost the server more than a few times the model's size."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid
from torch import nn

from fedtilt.files import read_json
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.reply_size import limit_reply_size, max_reply_size
from tests.helpers.network import write_app

MIB = 2**20


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
def grid() -> Iterator[HttpGrid]:
    grid = HttpGrid(token="x")
    grid.set_run(Run.create_empty(1))
    yield grid
    grid._client = None


def test_a_reply_beyond_the_limit_is_not_read_to_its_end(grid: HttpGrid) -> None:
    client = grid._client = Client({101: 40 * MIB, 102: MIB, 103: MIB})
    excess: list[int] = []
    limit_reply_size(grid, 12 * MIB, excess.append)
    replies = grid.pull_messages(["a", "b", "c"])
    assert [reply.metadata.src_node_id for reply in replies if not reply.has_error()] == [102, 103]
    assert excess == [101]
    assert client.pulled < (12 + 2 * 5 + 2 + 1) * MIB  # the limit, two parts on their way, two valid replies
    assert len(set(client.confirmed)) == 3  # the SuperLink deletes the large one too


def test_equal_parts_of_different_replies_are_counted_once_for_each(grid: HttpGrid) -> None:
    client = Client({101: 3 * MIB})
    client.messages = client.messages * 4
    grid._client = client
    excess: list[int] = []
    limit_reply_size(grid, 4 * MIB, excess.append)
    assert not any(reply.has_error() for reply in grid.pull_messages(["a"]))
    assert excess == []


def test_a_new_limit_replaces_the_last_one(grid: HttpGrid) -> None:
    grid._client = Client({101: 3 * MIB})
    before, after = [], []
    limit_reply_size(grid, MIB, before.append)
    limit_reply_size(grid, 4 * MIB, after.append)
    assert not any(reply.has_error() for reply in grid.pull_messages(["a"]))
    assert before == after == []


def test_the_limit_follows_the_models_size() -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.BatchNorm1d(1000))
    parameters, buffers = 4 * (1000 * 1000 + 1000 + 2000), 4 * 2000 + 8
    assert max_reply_size(model) == 4 * (parameters + buffers) + MIB


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
