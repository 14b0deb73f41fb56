"""Who may run code on the server and on a site: nobody without the owner's token, and no app that was not allowed."""

import hashlib
import importlib
import inspect
import os
import secrets
import ssl
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flwr
import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.cli import constant as cli_constant
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.constant import ErrorCode
from flwr.proto.control_pb2 import GetAuthTokensRequest, GetLoginDetailsRequest, RefreshAuthTokensRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.plugin import AutoExecPlugin
from flwr.supernode.nodestate import NodeStateFactory

import fedtilt as ft
from fedtilt.flower.deploy import guarded, programs
from fedtilt.flower.deploy.allowed_apps import ALLOWED_VARIABLE, allow, app_digest, bundle, check_allowed
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.flwr_internals import FLWR_VERSION
from tests.helpers.intruder import submit_as_another_user, write_intruder
from tests.helpers.network import wait_until

client = importlib.import_module("flwr.supernode.start_client_internal")
node_auth = importlib.import_module("flwr.superlink.routers.fleet.node_auth")
runtime = importlib.import_module("flwr.supernode.runtime.run_clientapp")
superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
serverapp = importlib.import_module("flwr.superlink.runtime.run_serverapp")


@pytest.mark.parametrize(
    ("code", "digest"),
    [
        (superlink.load_control_authn_plugin, "df92c676072e868a"),  # no authentication without Flower's own service
        (superlink._parse_superlink_lifespan_config, "ef9b8a405905038e"),
        (node_auth.authenticate_node, "f8e66372d61b3653"),  # signatures of the time alone, taken for five minutes
        (client._pull_and_store_message, "eaf5d0e36dc34e4c"),  # verifies a bundle if it has signatures of Flower's hub
        (SubprocessExecutor.launch, "83abf3dbe02281fd"),  # puts the token among the arguments
        (AutoExecPlugin, "557f1a1c31898ee3"),  # takes tasks of every kind
        (runtime.run_clientapp, "6ce09559f3a2f5dc"),
        (serverapp.run_serverapp, "2cf00cc3bc7ef87c"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_flower_is_the_version_that_the_guards_are_for(code: Any, digest: str) -> None:
    """If this fails: read what changed in Flower, correct or delete that part of `guarded`, then note the digest.

    The token can go when Flower's Control API has an authentication of its own, the digests of apps when a SuperNode
    can be given those that it runs, the launcher when a task's token is not among the arguments of its process.
    """
    assert flwr.__version__.startswith(FLWR_VERSION + ".")
    assert hashlib.sha256(inspect.getsource(code).encode()).hexdigest()[:16] == digest


def test_the_token_is_where_flowers_command_looks_for_it() -> None:
    keys = {"authn-type", "oidc-access-token", "oidc-refresh-token"}
    names = (
        cli_constant.AUTHN_TYPE_STORE_KEY,
        cli_constant.ACCESS_TOKEN_STORE_KEY,
        cli_constant.REFRESH_TOKEN_STORE_KEY,
    )
    assert {name % "HOST" for name in names} == {f"flower.account-auth.HOST.{key}" for key in keys}


# -- the Control API of a real SuperLink -------------------------------------------------------------------------------


@pytest.fixture
def cluster(superlink: LocalCluster) -> LocalCluster:
    return superlink


@pytest.fixture
def context(cluster: LocalCluster) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cluster.home / "certificates/ca.crt")


def test_another_user_cannot_submit_an_app(cluster: LocalCluster, tmp_path: Path) -> None:
    done = submit_as_another_user(f"https://127.0.0.1:{cluster.port}", tmp_path / "marks")
    assert "401 Unauthorized" in done.stderr
    assert done.stdout == ""
    assert cluster.runs() == []  # the owner's own command has the token


def test_every_request_without_a_credential_is_refused(cluster: LocalCluster, context: ssl.SSLContext) -> None:
    url, headers = f"https://127.0.0.1:{cluster.port}", {"Content-Type": "application/protobuf"}
    with httpx.Client(verify=context, base_url=url) as http:
        paths = http.get("/openapi.json").json()["paths"]
        statuses = {path: http.post(path, content=b"", headers=headers).status_code for path in paths}
        wrong = {"Authorization": f"Bearer {'0' * 64}", **headers}
        assert http.post("/v1/control/list-runs", content=b"", headers=wrong).status_code == 401
    open_paths = {path for path, status in statuses.items() if status < 400}
    assert open_paths == {"/v1/control/get-login-details", "/v1/control/get-auth-tokens"}  # which give nothing:
    control = {path: status for path, status in statuses.items() if path.startswith("/v1/control/")}
    assert len(control) > 30
    assert set(control.values()) == {200, 401}


def test_no_login_gives_a_token(cluster: LocalCluster, context: ssl.SSLContext) -> None:
    with ControlHttpClient(f"https://127.0.0.1:{cluster.port}", verify=context) as http:
        assert not http.GetLoginDetails(GetLoginDetailsRequest()).device_code
        assert not http.GetAuthTokens(GetAuthTokensRequest(device_code="1")).access_token
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            http.RefreshAuthTokens(RefreshAuthTokensRequest(refresh_token="none"))


def test_only_the_owner_can_read_the_token(cluster: LocalCluster) -> None:
    token = (cluster.home / "link/control.token").read_text()
    files = [path for path in cluster.home.rglob("*") if path.is_file() and path.suffix != ".db"]
    assert len(token) == 64
    assert {path.name: path.stat().st_mode & 0o077 for path in files if token.encode() in path.read_bytes()} == {
        "control.token": 0
    }
    assert (cluster.home / "flwr/credentials.yaml").stat().st_mode & 0o077 == 0
    assert cluster.home.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("program", "variable"), [("superlink", programs.TOKEN_VARIABLE), ("supernode", ALLOWED_VARIABLE)]
)
def test_no_program_starts_without_its_check(program: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ft.InputError, match=f"{variable} is not set"):
        guarded.PROGRAMS[program]()


def test_a_superlink_with_an_empty_token_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "control.token").touch()
    monkeypatch.setenv(programs.TOKEN_VARIABLE, str(tmp_path / "control.token"))
    with pytest.raises(ft.InputError, match="has no token"):
        guarded.PROGRAMS["superlink"]()


# -- apps that a site's operator has not allowed -----------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_intruder(tmp_path / "intruder", tmp_path / "marks")


def test_the_digest_is_that_of_the_bundle_and_of_every_file(app: Path) -> None:
    digest = app_digest(app)
    assert digest == "sha256:" + hashlib.sha256(bundle(app)).hexdigest() == app_digest(app)
    (app / "intruder/client.py").write_text("# changed\n")
    assert app_digest(app) != digest


def test_a_site_allows_digests_and_projects(app: Path, tmp_path: Path) -> None:
    home, file, content = tmp_path / "site", tmp_path / "site/allowed_apps", bundle(app)
    other = "sha256:" + 64 * "a"
    with pytest.raises(ft.InputError) as error:
        check_allowed(content, file)
    assert app_digest(app) in str(error.value)
    assert f"fedtilt deploy allow {home} sha256:" in str(error.value)
    assert allow(home, other.upper()) == other
    assert allow(home, str(app)) == allow(home, app_digest(app)) == app_digest(app)
    check_allowed(content, file)
    assert sorted(file.read_text().split()) == sorted([other, app_digest(app)])
    with pytest.raises(ft.InputError, match="does not run the app"):
        check_allowed(content + b"x", file)
    for wrong in ("sha256:12", "sha256:" + 64 * "g"):
        with pytest.raises(ft.InputError, match="is not a digest"):
            allow(home, wrong)
    file.chmod(0o666)
    with pytest.raises(ft.InputError, match="others can write"):
        check_allowed(content, file)


def receive(content: bytes, allowed: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """What Flower's SuperNode stores when the server sends a message for an app: the reply, and the bundle."""
    for name in ("_pull_and_store_message", "_verify_fab", "FAB_VERIFICATION_ERROR"):
        monkeypatch.setattr(client, name, getattr(client, name))
    guarded.guard_supernode(client, allowed)
    objects = ObjectStoreFactory()
    state = NodeStateFactory(objectstore_factory=objects).state()
    state.set_node_id(7)
    message = Message(RecordDict(), dst_node_id=7, message_type="query")
    message.metadata.__dict__["_run_id"], message.metadata.__dict__["_message_id"] = 1, message.object_id
    digest = hashlib.sha256(content).hexdigest()
    run = Run.create_empty(1)
    run.fab_id, run.fab_version, run.fab_hash = "nobody/intruder", "1.0.0", digest
    parts = {message.object_id: message.deflate()}
    client._pull_and_store_message(
        state=state, object_store=objects.store(), node_config={"partition-id": 3},
        receive=lambda: (message, get_object_tree(message)), get_run=lambda number: run,
        get_fab=lambda name, number: Fab(digest, content, {}), pull_object=lambda number, name: parts.get(name, b""),
        confirm_message_received=lambda number, name: None, trusted_entities=None,
    )  # fmt: skip
    replies = state.get_messages_legacy(is_reply=True)
    return (replies[0] if replies else None), state.get_fab(digest)


def test_a_site_refuses_an_app_before_it_opens_the_bundle(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flower_identity: None
) -> None:
    content, home = bundle(app), tmp_path / "site"
    for refused in (content, b"this is no zip file"):
        reply, stored = receive(refused, home / "allowed_apps", monkeypatch)
        assert (reply.error.code, reply.error.reason) == (ErrorCode.INVALID_FAB, "site 3")
        assert stored is None
    allow(home, app_digest(app))
    reply, stored = receive(content, home / "allowed_apps", monkeypatch)
    assert reply is None
    assert stored.content == content


@pytest.fixture
def installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a site whose processes unpack bundles."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv(ALLOWED_VARIABLE, str(tmp_path / "site/allowed_apps"))
    return tmp_path / "site"


def test_a_process_checks_the_digest_before_it_unpacks(app: Path, installing: Path, tmp_path: Path) -> None:
    content = bundle(app)
    with pytest.raises(ft.InputError, match=app_digest(app)):
        guarded.install(content)
    assert not (tmp_path / "flwr").exists()
    allow(installing, app_digest(app))
    path = guarded.install(content)
    assert (path / "intruder/client.py").read_text() == (app / "intruder/client.py").read_text()


def test_a_damaged_or_partial_installation_is_replaced(app: Path, installing: Path) -> None:
    allow(installing, app_digest(app))
    content = bundle(app)
    file = guarded.install(content) / "intruder/client.py"
    original = file.read_bytes()
    for bit in range(0, 8 * len(original), 97):
        flipped = bytearray(original)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        assert guarded.install(content) == file.parent.parent
        assert file.read_bytes() == original
    file.unlink()  # killed while it was copied
    guarded.install(content)
    assert file.read_bytes() == original


def test_the_server_does_not_choose_the_folder_that_an_app_is_loaded_from(
    app: Path, installing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle is allowed, and the version that the server tells leads to a folder of somebody else."""
    allow(installing, app_digest(app))
    content = bundle(app)
    digest = hashlib.sha256(content).hexdigest()
    elsewhere = write_intruder(tmp_path / f"elsewhere.{digest[:8]}", tmp_path / "marks")
    version = "1.0.0/../../../elsewhere"
    (tmp_path / "flwr/apps/nobody.intruder.1.0.0").mkdir(parents=True)
    assert (tmp_path / f"flwr/apps/nobody.intruder.{version}.{digest[:8]}").resolve() == elsewhere
    for name in ("install_from_fab", "get_load_client_app_fn"):
        monkeypatch.setattr(runtime, name, getattr(runtime, name))
    guarded.guard_clientapp(runtime)
    runtime.install_from_fab(content, skip_prompt=True)
    load = runtime.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    with pytest.raises(LoadClientAppError, match="mismatch"):
        load("nobody/intruder", version, digest)
    assert list((tmp_path / "marks").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_no_argument_of_a_process_shows_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user can read the arguments of a process; only its owner reads its environment."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen
    monkeypatch.setattr(guarded.subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])
    token = secrets.token_hex(32)
    spec = SimpleNamespace(
        runtime_api_address="127.0.0.1:9", insecure=True, parent_pid=os.getpid(), suppress_output=True, token=token
    )
    guarded.launch("clientapp", spec)
    (process,) = started
    try:
        folder = Path(f"/proc/{process.pid}")
        wait_until(lambda: b"clientapp" in (folder / "cmdline").read_bytes())
        assert token.encode() not in (folder / "cmdline").read_bytes()
        assert token.encode() in (folder / "environ").read_bytes()
        assert (folder / "environ").stat().st_mode & 0o077 == 0
    finally:
        process.kill()
        process.wait()


# -- a whole cluster ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_of_an_intruder_runs_on_the_server_or_on_a_site(app: Path, tmp_path: Path) -> None:
    cluster, marks = LocalCluster(home=tmp_path / "cluster", sites=2), tmp_path / "marks"
    arguments: set[bytes] = set()

    def log_of_site(site: int) -> str:
        arguments.update(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in cluster.running())
        return cluster.log_file(site).read_text()

    cluster.up()
    try:
        url, token = f"https://127.0.0.1:{cluster.port}", (cluster.home / "link/control.token").read_text()
        assert "401 Unauthorized" in submit_as_another_user(url, marks).stderr
        assert cluster.runs() == []
        number = int(submit_as_another_user(url, marks, token).stdout)
        assert cluster.wait_for_run(number, 120) == "finished:failed"
        assert "has not allowed it" in cluster.run_log(number)
        assert list(marks.iterdir()) == []
        allow(cluster.home / "link", app_digest(app))  # the server runs it, no site does
        number = int(submit_as_another_user(url, marks, token).stdout)
        wait_until(lambda: all("fedtilt deploy allow" in log_of_site(site) for site in (0, 1)))
        assert cluster.wait_for_run(number, 120) == "finished:completed"
        assert [path.name for path in marks.iterdir()] == [f"link-uid-{os.getuid()}"]
        for site in (0, 1):
            assert f"fedtilt deploy allow {cluster.home / f'site-{site}'} {app_digest(app)}" in log_of_site(site)
    finally:
        cluster.down()
    assert cluster.running() == []
    assert any(b"serverapp" in line for line in arguments)
    assert not any(b"--token\0" in line for line in arguments)


def test_an_executor_waits_while_its_processes_run() -> None:
    """On a machine too busy to start a process in time, Flower's own executor starts another every 30 seconds."""
    waiting = [subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(2)]
    processes = [*waiting, subprocess.Popen(["true"])]
    processes[2].wait()
    guarded.wait_for_capacity(processes, 3)
    assert processes == waiting
    waits = threading.Thread(target=guarded.wait_for_capacity, args=(processes, 2))
    waits.start()
    waits.join(0.1)
    assert waits.is_alive()
    waiting[0].communicate()
    waits.join(30)
    assert processes == waiting[1:]
    waiting[1].communicate()
