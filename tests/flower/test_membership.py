"""Which node is which site: reconnects, silent sites, and keys that belong to one site each."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

import fedtilt as ft
from fedtilt.files import read_json
from fedtilt.flower.deploy.credentials import KEYS_VARIABLE, make_site_key, read_site_keys, site_keys
from fedtilt.flower.membership import Membership
from fedtilt.flower.messages import encode_join_reply
from fedtilt.flower.policy import RoundPolicy
from fedtilt.parts import Parts
from tests.helpers.loopback import Deployment, LoopbackGrid

PARTS = Parts.plain(torch.zeros(7))
JOINED = {0: 100, 1: 101}


class Nodes:
    """A grid of two nodes that claim to be sites 0 and 1; `hung` ones do not reply until they are well again."""

    def __init__(self) -> None:
        self.claims = {100: 0, 101: 1}
        self.connected = {100: "at 1", 101: "at 1"}  # node → when it connected
        self.keys = {100: b"key 0", 101: b"key 1"}
        self.hung: set[int] = set()
        self.waited: list[tuple[list[int], float]] = []  # (nodes, seconds), of each request that was waited for
        self._pending: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.connected)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=n, last_activated_at=at, public_key=self.keys[n]) for n, at in self.connected.items()]

    def send_and_receive(self, messages: Iterable[Message], timeout: float) -> list[Message]:
        messages = list(messages)
        self.waited.append(([message.metadata.dst_node_id for message in messages], timeout))
        return [self._reply(message) for message in messages if message.metadata.dst_node_id not in self.hung]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self._pending)}"
            self._pending[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self._reply(m) for m in map(self._pending.__getitem__, ids) if m.metadata.dst_node_id not in self.hung]

    def _reply(self, message: Message) -> Message:
        return Message(encode_join_reply(self.claims[message.metadata.dst_node_id], 3, PARTS), reply_to=message)


def new_membership(**settings: object) -> Membership:
    policy = RoundPolicy(deadline=600, wait=5, max_silent_rounds=2)
    return Membership(sites=2, classes=3, parts=PARTS, policy=policy, **settings)


def test_a_site_that_reconnects_ten_times_joins_every_time() -> None:
    grid, membership = Nodes(), new_membership()
    membership.wait_and_join(grid)
    for reconnect in range(10):
        grid.connected = {100: "at 1"}
        membership.refresh(grid)
        assert membership.nodes() == {0: 100}
        grid.connected = {100: "at 1", 101: f"at {reconnect}"}
        membership.refresh(grid)
        assert membership.nodes() == JOINED
    assert membership.rejections() == {}


def test_a_refused_node_is_asked_three_times_and_again_when_it_reconnects() -> None:
    grid, membership = Nodes(), new_membership()
    grid.claims[101] = 9
    for _ in range(5):
        membership.refresh(grid)
    assert membership.rejections() == {"node 101": {"cannot join: has site = 9, outside 0 to 1": 3}}
    grid.claims[101], grid.connected[101] = 1, "at 2"  # restarted between two rounds with the right number
    membership.refresh(grid)
    assert membership.nodes() == JOINED


def test_a_silent_site_is_left_out_and_costs_no_more_time_until_it_replies() -> None:
    grid, membership = Nodes(), new_membership()
    membership.wait_and_join(grid)
    assert grid.waited == [([100, 101], 600)]
    grid.hung = {101}
    for _ in range(2):
        assert membership.nodes() == JOINED
        membership.record_replies("train", [0, 1], [0])
    for _ in range(3):
        membership.refresh(grid)
        assert membership.nodes() == {0: 100}
        assert membership.absence_reason(1) == "is skipped until it replies: it was silent in 2 rounds"
    assert len(grid.waited) == 1  # asked again, and not waited for
    grid.hung = set()
    membership.refresh(grid)
    assert membership.nodes() == JOINED
    membership.record_replies("train", [0, 1], [0])  # silent once more: skipped at once
    assert membership.nodes() == {0: 100}
    membership.refresh(grid)
    membership.refresh(grid)
    membership.record_replies("train", [0, 1], [0, 1])  # it replied: it may be silent once
    membership.record_replies("train", [0, 1], [0])
    assert membership.nodes() == JOINED


def test_a_site_that_trains_and_never_evaluates_is_silent() -> None:
    grid, membership = Nodes(), new_membership()
    membership.wait_and_join(grid)
    for _ in range(2):
        membership.record_replies("train", [0, 1], [0, 1])
        membership.record_replies("evaluate", [0, 1], [0])
    assert membership.nodes() == {0: 100}


def test_a_node_that_does_not_reply_to_the_join_request_is_waited_for_once() -> None:
    grid, membership = Nodes(), new_membership()
    grid.hung = {101}
    membership.wait_and_join(grid)
    for _ in range(4):
        membership.refresh(grid)
        assert membership.nodes() == {0: 100}
    assert grid.waited == [([100, 101], 600)]
    grid.hung = set()
    membership.refresh(grid)
    assert membership.nodes() == JOINED


def test_a_restarted_site_is_waited_for_again() -> None:
    grid, membership = Nodes(), new_membership()
    grid.hung = {101}
    membership.wait_and_join(grid)
    grid.hung, grid.connected[101] = set(), "at 2"
    membership.refresh(grid)
    assert membership.nodes() == JOINED
    assert grid.waited[1:] == [([101], 5)]


# -- keys ------------------------------------------------------------------------------------------------------------

KEYS = {b"key 0": 0, b"key 1": 1}


def test_a_registered_site_cannot_take_the_place_of_another() -> None:
    grid, membership = Nodes(), new_membership(site_keys=KEYS)
    grid.claims = {100: 1, 101: 1}  # site 0 wants to be site 1, and would be first
    membership.refresh(grid)
    assert membership.nodes() == {1: 101}
    reason = "cannot join: it claims to be site 1, and its key is that of site 0"
    assert membership.rejections() == {"node 100": {reason: 1}}


def test_a_key_of_no_site_cannot_join() -> None:
    grid, membership = Nodes(), new_membership(site_keys=KEYS)
    grid.keys[101] = b"registered with Flower only"
    membership.refresh(grid)
    assert membership.nodes() == {0: 100}
    assert membership.absence_reason(1).startswith("cannot join: its key belongs to no site")


def test_the_keys_of_the_sites_are_read_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    assert site_keys() is None
    monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path))
    with pytest.raises(ft.InputError, match="has no site-N.pub; register the sites' keys"):
        site_keys()
    for site in (0, 11):
        make_site_key(tmp_path / f"site-{site}")
    keys = site_keys()
    assert sorted(keys.values()) == [0, 11]
    assert all(key.startswith(b"-----BEGIN PUBLIC KEY-----") for key in keys)  # as Flower reports them
    (tmp_path / "site-1.pub").write_bytes((tmp_path / "site-0.pub").read_bytes())
    with pytest.raises(ft.InputError, match=r"is also the key of site 0; give every site its own"):
        read_site_keys(tmp_path)
    (tmp_path / "site-1.pub").write_text("not a key")
    with pytest.raises(ft.InputError, match=r"site-1.pub is not a public key"):
        read_site_keys(tmp_path)


def test_a_run_leaves_a_silent_site_out_and_takes_it_back(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site 1 does not train in rounds 1 and 2, is skipped in round 3, replies during it, and trains again."""
    pushed: list[Message] = []
    monkeypatch.setattr(LoopbackGrid, "push_messages", lambda self, ms: pushed.extend(ms) or ["late"])

    def pull_messages(grid: LoopbackGrid, ids: list[str]) -> list[Message]:
        assert ids == ["late"]
        (reply,) = grid.send_and_receive(pushed)
        reply.metadata.__dict__["_reply_to_message_id"] = "late"
        return [reply]

    monkeypatch.setattr(LoopbackGrid, "pull_messages", pull_messages)

    def hang(reply: Message, site: int, round: int) -> list[Message]:
        return [] if site == 1 and round <= 2 and reply.metadata.message_type == "train" else [reply]

    deployment.run(hang, set="train.rounds=4")
    rounds = read_json(tmp_path / "run/seed-0/participation.json")["rounds"]
    assert [entry["accepted"] for entry in rounds.values()] == [[0], [0], [0], [0, 1]]
    assert [entry["missing"] for entry in rounds.values()] == [
        {"1": "did not reply in time"},
        {"1": "did not reply in time"},
        {"1": "is skipped until it replies: it was silent in 2 rounds"},
        {},
    ]
