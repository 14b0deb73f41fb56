"""The port that sites see: every request that is not a site's own is refused, and a site still trains through it."""

import http.client
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

import fedtilt as ft
from fedtilt.files import read_json
from fedtilt.flower.deploy.credentials import make_site_key
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.deploy.machines import CONNECTION
from fedtilt.flower.deploy.services import FLEET_PATHS, nginx_configuration
from tests.helpers.network import running_superlink, write_app
from tests.helpers.nginx import needs_nginx, nginx

pytestmark = needs_nginx


class Port(NamedTuple):
    """A SuperLink, and the port of the proxy in front of it."""

    cluster: LocalCluster
    proxy: int

    @property
    def authority(self) -> Path:
        return self.cluster.home / "certificates/ca.crt"

    def post(self, path: str, port: int, body: bytes = b"", method: str = "POST") -> int:
        """The status of a request with exactly this path; a library would clean it up first."""
        context = ssl.create_default_context(cafile=self.authority)
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
        connection.putrequest(method, path, skip_accept_encoding=True)
        connection.putheader("Content-Type", "application/protobuf")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before it was read
            connection.send(body)
        status = connection.getresponse().status
        connection.close()
        return status


@contextmanager
def proxy(cluster: LocalCluster) -> Iterator[Port]:
    """Nginx in front of a SuperLink with which the keys of its sites are registered."""
    configuration = nginx_configuration("localhost", cluster.site_port, cluster.port, cluster.home / "certificates")
    for site in range(cluster.sites):
        cluster.register_key(cluster.key_file(site))
    with nginx(cluster.home / "nginx", configuration):
        yield Port(cluster, cluster.site_port)


@pytest.fixture(scope="module")
def port(superlink: LocalCluster) -> Iterator[Port]:
    with proxy(superlink) as port:
        yield port


def test_every_path_of_the_superlink_but_the_sites_is_refused(port: Port) -> None:
    url = f"https://127.0.0.1:{port.cluster.port}/openapi.json"
    paths = httpx.get(url, verify=ssl.create_default_context(cafile=port.authority)).json()["paths"]
    assert len(paths) > 70
    statuses = {path: port.post(path, port.proxy) for path in [*paths, "/", "/docs", "/openapi.json"]}
    passed = {path for path, status in statuses.items() if status != 403}
    assert passed == {f"/v1/fleet/{name}" for name in FLEET_PATHS}
    assert {statuses[path] for path in passed} <= {400, 401, 415, 422}  # the SuperLink itself asks for the key
    assert {port.post(f"/v1/fleet/{name}", port.proxy, method="GET") for name in FLEET_PATHS} == {403}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/activate-node/../../control/list-nodes",
        "/v1/fleet/activate-node%2f..%2f..%2fcontrol/list-nodes",
        "//v1/control/list-nodes",
        "/V1/control/list-nodes",
        "/v1/control/list-nodes?/v1/fleet/activate-node",
        "/v1/fleet/activate-node/",
        "/v1/fleet/activate-node%00",
        "https://127.0.0.1/v1/control/list-nodes",
    ],
)
def test_no_way_of_writing_a_path_gets_past_the_proxy(port: Port, path: str) -> None:
    assert port.post(path, port.proxy) in (400, 403)


Ask = Callable[[str, bytes], object]


def _control(method: str, request: object) -> Ask:
    def ask(address: str, ca: bytes) -> object:
        with ControlHttpClient.from_server_address(address, False, ca, []) as client:
            return getattr(client, method)(request)

    return ask


def _acquire_task(address: str, ca: bytes) -> object:
    with RuntimeHttpClient.from_server_address(address, False, ca, []) as client:
        return client.AcquireTask(AcquireTaskRequest())


def _register_itself(address: str, ca: bytes) -> object:
    with FleetHttpClient.from_server_address(address, False, ca, []) as client:
        return client.RegisterNode(RegisterNodeFleetRequest(public_key=b"a key"))


REQUESTS = {
    "list nodes": _control("ListNodes", ListNodesRequest()),
    "list runs": _control("ListRuns", ListRunsRequest()),
    "register a key": _control("RegisterNode", RegisterNodeRequest(public_key=b"a key")),
    "submit a run": _control("StartRun", StartRunRequest()),
    "acquire the server's task": _acquire_task,
    "register itself": _register_itself,
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_what_a_site_may_not_ask_is_refused(port: Port, request_: str) -> None:
    with pytest.raises(httpx.HTTPStatusError) as error:
        REQUESTS[request_](f"127.0.0.1:{port.proxy}", port.authority.read_bytes())
    assert error.value.response.status_code == 403


@pytest.mark.parametrize("request_", REQUESTS)
def test_the_same_requests_reach_the_superlink_without_the_proxy(port: Port, request_: str) -> None:
    """The test above would see an open port; and even there, nobody without a credential is answered."""
    with pytest.raises(httpx.HTTPStatusError) as error:
        REQUESTS[request_](f"127.0.0.1:{port.cluster.port}", port.authority.read_bytes())
    assert error.value.response.status_code == 401


def test_flowers_own_command_cannot_use_the_port(port: Port) -> None:
    cluster = port.cluster
    config = cluster.home / "flwr/config.toml"
    text = config.read_text()
    config.write_text(text.replace(f":{cluster.port}", f":{port.proxy}"))
    try:
        with pytest.raises(ft.InputError, match="flwr .* failed: .*403"):
            cluster.flwr("supernode", "register", f"{cluster.key_file(0)}.pub", CONNECTION)
    finally:
        config.write_text(text)


def test_a_request_is_bounded(port: Port) -> None:
    assert port.post("/v1/fleet/push-object", port.proxy, bytes(9 * 2**20)) == 413
    assert port.post("/v1/fleet/push-object", port.proxy, bytes(6 * 2**20)) != 413  # a part of a model is 5 MiB


def test_only_a_registered_key_connects_through_the_proxy(port: Port, tmp_path: Path) -> None:
    def connect(key: Path) -> int:
        private = load_ssh_private_key(key.read_bytes(), None)
        interceptors = [NodeAuthHttpInterceptor(private, private.public_key())]
        address, ca = f"127.0.0.1:{port.proxy}", port.authority.read_bytes()
        request = ActivateNodeRequest(public_key=public_key_to_bytes(private.public_key()), heartbeat_interval=30)
        with FleetHttpClient.from_server_address(address, False, ca, interceptors) as client:
            node = client.ActivateNode(request).node_id
            assert not client.PullMessages(PullMessagesRequest(node=Node(node_id=node))).messages_list
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
            return node

    assert connect(port.cluster.key_file(0)) > 0
    make_site_key(tmp_path / "unknown")
    with pytest.raises(httpx.HTTPStatusError):
        connect(tmp_path / "unknown")


@pytest.mark.slow
def test_sites_train_through_the_proxy_and_none_takes_the_place_of_another(tmp_path: Path) -> None:
    app, run = write_app(tmp_path / "app"), tmp_path / "run"
    with running_superlink(tmp_path / "c", sites=3) as cluster, proxy(cluster):
        cluster.node_config[2] = {"partition-id": 0}  # its key is registered, and it claims to be site 0
        cluster.start_supernode(2)
        cluster.wait_for_sites(1)
        for site in (0, 1):
            cluster.start_supernode(site)
        cluster.wait_for_sites(3)
        number = cluster.submit(app, {"out": str(run)})
        assert cluster.wait_for_run(number, 300, is_done=(run / "results.json").exists) == "finished:completed"
    participation = read_json(run / "seed-0/participation.json")
    assert [entry["accepted"] for entry in participation["rounds"].values()] == [[0, 1], [0, 1]]
    (reasons,) = participation["rejected"].values()
    assert reasons.keys() == {"cannot join: it claims to be site 0, and its key is that of site 2"}
