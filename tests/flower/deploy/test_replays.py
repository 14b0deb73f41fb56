"""Requests that somebody records and sends again, with a site's own signature or a borrowed one: refused."""

import base64
import datetime
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedtilt.flower.deploy import guarded
from fedtilt.flower.deploy.credentials import make_site_key
from fedtilt.flower.deploy.local_cluster import LocalCluster


@pytest.fixture
def cluster(superlink: LocalCluster) -> LocalCluster:
    return superlink


class Signed:
    """Signs requests with a site's key, as at another time, or with the public key of another site; has the last."""

    last: httpx.Request

    def __init__(self, key: Path, seconds: float = 0.0, claimed: Path | None = None) -> None:
        self._private = load_ssh_private_key(key.read_bytes(), None)
        claimed_key = load_ssh_private_key((claimed or key).read_bytes(), None)
        self.public = public_key_to_bytes(claimed_key.public_key())
        self._seconds = seconds

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        timestamp = (now() + datetime.timedelta(seconds=self._seconds)).isoformat()
        signature = sign_message(self._private, timestamp.encode())
        context.request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = base64.b64encode(self.public).decode()
        context.request.headers[TIMESTAMP_HEADER] = timestamp
        context.request.headers[FLEET_HTTP_SIGNATURE_HEADER] = base64.b64encode(signature).decode()
        self.last = context.request
        return call_next(context)


def test_replayed_and_borrowed_signatures_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    """A request is signed with the key of its site and the time: an old one is refused, and so is another site's."""
    own, other, unknown = (tmp_path / name for name in ("own", "other", "unknown"))
    for key in (own, other, unknown):
        make_site_key(key)
    for key in (own, other):
        cluster.register_key(key)

    def connect(signed: Signed, node: int = 0) -> int:
        address, ca = f"127.0.0.1:{cluster.port}", (cluster.home / "certificates/ca.crt").read_bytes()
        with FleetHttpClient.from_server_address(address, False, ca, [signed]) as http:
            if not node:
                node = http.ActivateNode(ActivateNodeRequest(public_key=signed.public, heartbeat_interval=30)).node_id
            http.PullMessages(PullMessagesRequest(node=Node(node_id=node)))
            return node

    node = connect(Signed(own))
    assert node > 0
    refused = {
        "replayed ten minutes later": (Signed(own, seconds=-600), node),
        "a signature of the future": (Signed(own, seconds=600), node),
        "the messages of another site": (Signed(other), node),
        "another site's public key": (Signed(other, claimed=own), node),
        "a key that is not registered": (Signed(unknown), 0),
        "a key that is not registered, for a site": (Signed(unknown), node),
    }
    for name, (signed, of_node) in refused.items():
        with pytest.raises(httpx.HTTPStatusError) as error:
            connect(signed, of_node)
        assert error.value.response.status_code == (401 if of_node else 412), name
    assert connect(Signed(own), node) == node


class Site:
    """A site with a registered key, and what the owner of the server sees of it."""

    def __init__(self, cluster: LocalCluster, key: Path, port: int | None = None) -> None:
        make_site_key(key)
        cluster.register_key(key)
        self.cluster, self.signed, self.port = cluster, Signed(key), port or cluster.port
        self.context = ssl.create_default_context(cafile=cluster.home / "certificates/ca.crt")

    def ask(self, request: Callable[[FleetHttpClient], Any]) -> Any:
        ca = (self.cluster.home / "certificates/ca.crt").read_bytes()
        with FleetHttpClient.from_server_address(f"127.0.0.1:{self.port}", False, ca, [self.signed]) as http:
            return request(http)

    def activate(self) -> int:
        request = ActivateNodeRequest(public_key=self.signed.public, heartbeat_interval=30)
        return int(self.ask(lambda http: http.ActivateNode(request)).node_id)

    def leave(self, node: int) -> httpx.Request:
        """Leave the server, with the request that did it."""
        self.ask(lambda http: http.DeactivateNode(DeactivateNodeRequest(node_id=node)))
        return self.signed.last

    def is_online(self, node: int) -> bool:
        token = (self.cluster.home / "link/control.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/protobuf"}
        url = f"https://127.0.0.1:{self.cluster.port}/v1/control/list-nodes"
        content = ListNodesRequest().SerializeToString()
        found = httpx.post(url, content=content, headers=headers, verify=self.context)
        (status,) = {n.status for n in ListNodesResponse.FromString(found.content).nodes_info if n.node_id == node}
        return bool(status == "online")


def test_a_request_that_is_sent_again_is_refused_within_flowers_five_minutes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """As somebody sends it who reads what the proxy of the server reads: the signature is valid, and was used."""
    site = Site(cluster, tmp_path / "key")
    node = site.activate()
    recorded = site.leave(node)
    assert not site.is_online(node)
    assert site.activate() == node
    with httpx.Client(verify=site.context) as http:
        assert http.send(recorded).status_code == 401
        other = http.build_request(
            "POST", str(recorded.url).replace("deactivate-node", "pull-messages"), headers=recorded.headers,
            content=PullMessagesRequest(node=Node(node_id=node)).SerializeToString(),
        )  # fmt: skip
        other.headers["content-length"] = str(len(other.content))
        assert http.send(other).status_code == 401  # a signature is not of its request: it would do for any other
    assert site.is_online(node)
    site.leave(node)


@contextmanager
def recording_proxy(port: int) -> Iterator[tuple[int, bytearray]]:
    """The port of a proxy in front of another port on loopback, and the bytes that clients send through it."""
    sent = bytearray()
    listener = socket.create_server(("127.0.0.1", 0))

    def forward() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:  # the test is over
                return
            with near, socket.create_connection(("127.0.0.1", port)) as far:
                while True:
                    source = select.select([near, far], [], [])[0][0]
                    data = source.recv(65536)
                    if not data:
                        break
                    if source is near:
                        sent.extend(data)
                    (far if source is near else near).sendall(data)

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield listener.getsockname()[1], sent
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_bytes_recorded_on_the_network_do_nothing_when_they_are_sent_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """TLS: the bytes of a connection are of no use in another one."""
    site = Site(cluster, tmp_path / "key")
    node = site.activate()
    with recording_proxy(cluster.port) as (port, sent):
        site.port = port
        site.leave(node)
    assert not site.is_online(node)
    site.port = cluster.port
    assert site.activate() == node
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=60) as replayed:
        replayed.sendall(sent)
        while replayed.recv(65536):  # until the server closes the connection, because nothing fits
            pass
    assert site.is_online(node)
    site.leave(node)


def test_signatures_are_remembered_as_long_as_flower_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(guarded, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    flower = SimpleNamespace(authenticate_node=lambda request: None, HTTPException=PermissionError)
    guarded.guard_fleet(flower)

    def request(key: bytes, timestamp: str) -> SimpleNamespace:
        encoded = base64.b64encode(key).decode()
        return SimpleNamespace(headers={FLEET_HTTP_PUBLIC_KEY_HEADER: encoded, TIMESTAMP_HEADER: timestamp})

    flower.authenticate_node(request(b"one", "12:00"))
    flower.authenticate_node(request(b"two", "12:00"))
    clock[0] = 310.0
    flower.authenticate_node(request(b"one", "12:05"))
    with pytest.raises(PermissionError):
        flower.authenticate_node(request(b"one", "12:00"))
    clock[0] = 310.1  # Flower itself refuses it since 305 s
    flower.authenticate_node(request(b"one", "12:00"))
