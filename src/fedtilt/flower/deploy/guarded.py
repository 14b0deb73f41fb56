"""Flower's programs, with the checks that Flower 1.41 lacks on a machine with other users or for a server of others.

    python -P -m fedtilt.flower.deploy.guarded PROGRAM ARGUMENT...

superlink        whoever submits a run, registers a key or lists the sites shows the token of the owner. A site signs
                 the time of a request and nothing else of it, and Flower takes a signature for five minutes, as often
                 as it comes: here it is taken once
supernode        a bundle whose digest the site's operator has not allowed is refused before it is opened
server-executor  takes the tasks of ServerApps only, site-executor those of ClientApps. Both pass a task's token in the
site-executor    environment of its process: its arguments would show it to every user of the machine. Neither has more
                 than a few processes: Flower gives a task out again if its process has not answered after 30 seconds,
                 and a machine that is too busy to start one in time would start more and more
serverapp        checks the digest of the bundle again, before it is unpacked, and loads that bundle and nothing else.
clientapp        The server checks digests only where FEDTILT_ALLOWED_APPS is set

`tests/flower/deploy/test_guarded.py` says when each part can go.
"""

import hmac
import importlib
import io
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from logging import ERROR
from pathlib import Path
from typing import Any

from flwr.app import Error
from flwr.cli.install import install_from_fab
from flwr.common.constant import (
    ACCESS_TOKEN_KEY,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ErrorCode,
)
from flwr.supercore import log
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TaskType
from flwr.supercore.fab import Fab
from flwr.superlink.auth_plugin import ControlAuthnPlugin

from fedtilt.errors import InputError
from fedtilt.files import read_bytes
from fedtilt.flower.deploy import programs
from fedtilt.flower.deploy.allowed_apps import ALLOWED_VARIABLE, check_allowed

_TASK_TOKEN = "FEDTILT_TASK_TOKEN"
_SIGNATURE_SECONDS = TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE  # how long Flower takes one, at most
_MAX_PROCESSES = 3  # of the tasks of an executor, at the same time
Metadata = Sequence[tuple[str, str | bytes]]


def _module(name: str) -> Any:
    """A module of Flower; several have the name of a function that hides them."""
    return importlib.import_module(f"flwr.{name}")


# -- the server --------------------------------------------------------------------------------------------------------


class OwnerToken(ControlAuthnPlugin):
    """Flower's account authentication with one account: whoever knows the token."""

    def __init__(self, token: bytes) -> None:
        self._token = token

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Whether a request has the token, and whose it is."""
        given = dict(metadata).get(ACCESS_TOKEN_KEY, b"")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._token):
            return False, None
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    def get_login_details(self) -> None:
        """Nobody logs in: the token is in a file."""

    def get_auth_tokens(self, device_code: str) -> None:
        """No token is given out."""

    def refresh_tokens(self, metadata: Metadata) -> tuple[None, None]:
        """No token is renewed."""
        return None, None


def guard_fleet(node_auth: Any) -> None:
    """Let Flower's SuperLink, the module `node_auth`, refuse a site's signature that it has taken before."""
    authenticate, lock = node_auth.authenticate_node, threading.Lock()
    taken: dict[tuple[bytes, str], float] = {}  # the key and the time that it signed → when it came; oldest first

    def authenticate_once(request: Any) -> None:
        authenticate(request)
        signed = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER]), request.headers[TIMESTAMP_HEADER]
        with lock:
            while taken and next(iter(taken.values())) < time.monotonic() - _SIGNATURE_SECONDS:
                del taken[next(iter(taken))]
            if signed in taken:
                raise node_auth.HTTPException(401, "This signature was used before")
            taken[signed] = time.monotonic()

    node_auth.authenticate_node = authenticate_once


def _superlink() -> None:
    program = _module("superlink.cli.flower_superlink")
    token = read_bytes(_file_of(programs.TOKEN_VARIABLE)).strip()
    if len(token) < 32:
        raise InputError(f"{os.environ[programs.TOKEN_VARIABLE]} has no token; delete it, and start again")
    program.load_control_authn_plugin = partial(OwnerToken, token)
    guard_fleet(_module("superlink.routers.fleet.node_auth"))
    program.flower_superlink()


# -- a site ------------------------------------------------------------------------------------------------------------


def guard_supernode(client: Any, allowed: Path) -> None:
    """Let Flower's SuperNode, the module `client`, refuse bundles that a file of digests does not allow."""
    pull = client._pull_and_store_message

    def pull_and_store_message(**arguments: Any) -> int | None:
        """Flower's own, which verifies a bundle before it opens it if there are trusted entities."""
        get_fab, site = arguments["get_fab"], arguments["node_config"].get("partition-id")
        client.FAB_VERIFICATION_ERROR = Error(ErrorCode.INVALID_FAB, f"site {site}")
        has_signatures = {"valid_license": "the digest stands for them"}
        arguments["get_fab"] = lambda *which: replace(get_fab(*which), verifications=has_signatures)
        arguments["trusted_entities"] = {"the site's operator": str(allowed)}
        result: int | None = pull(**arguments)
        return result

    def verify_fab(fab: Fab, _: object) -> bool:
        try:
            check_allowed(fab.content, allowed)
        except InputError as error:
            log(ERROR, "%s", error)
            return False
        return True

    client._pull_and_store_message, client._verify_fab = pull_and_store_message, verify_fab


def _supernode() -> None:
    guard_supernode(_module("supernode.start_client_internal"), _file_of(ALLOWED_VARIABLE))
    _module("supernode.cli.flower_supernode").flower_supernode()


# -- executors ---------------------------------------------------------------------------------------------------------


def launch(app: str, spec: Any) -> "subprocess.Popen[bytes]":
    """Start the process of a task."""
    command = [*programs.guarded(app), "--runtime-api-address", spec.runtime_api_address]
    command += ["--insecure"] if spec.insecure else ["--root-certificates", spec.root_certificates_path]
    output = subprocess.DEVNULL if spec.suppress_output else None
    env = os.environ | {_TASK_TOKEN: spec.token}
    return subprocess.Popen([*command, "--parent-pid", str(spec.parent_pid)], env=env, stdout=output, stderr=output)


def wait_for_capacity(processes: "list[subprocess.Popen[bytes]]", limit: int = _MAX_PROCESSES) -> None:
    """Remove the processes that have ended; wait until fewer than `limit` run."""
    while True:
        processes[:] = [process for process in processes if process.poll() is None]
        if len(processes) < limit:
            return
        time.sleep(0.5)


def _superexec(task: TaskType, app: str) -> None:
    executor = _module("supercore.superexec.executor.subprocess_executor")
    processes: list[subprocess.Popen[bytes]] = []

    def launch_task(_: object, spec: Any) -> Any:
        processes.append(launch(app, spec))
        return executor.LaunchResult.accepted()

    executor.SubprocessExecutor.launch = launch_task
    executor.SubprocessExecutor.reconcile = lambda _: wait_for_capacity(processes)  # before it asks for a task
    _module("supercore.superexec.plugin").AutoExecPlugin.supported_task_types = frozenset({task})
    _module("supercore.cli.flower_superexec").flower_superexec()


def install(content: bytes, skip_prompt: bool = True) -> Path:
    """Unpack a bundle that is allowed; an installation of it that is damaged or not complete is replaced."""
    if ALLOWED_VARIABLE in os.environ:
        check_allowed(content, _file_of(ALLOWED_VARIABLE))
    path = install_from_fab(content, skip_prompt=skip_prompt)
    if not _is_intact(path, content):
        shutil.rmtree(path)
        path = install_from_fab(content, skip_prompt=skip_prompt)
    return path


def _is_intact(path: Path, content: bytes) -> bool:
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        names = [name for name in bundle.namelist() if not name.startswith(".info/") and not name.endswith("/")]
        return all((path / name).is_file() and (path / name).read_bytes() == bundle.read(name) for name in names)


def _serverapp() -> None:
    _module("superlink.runtime.run_serverapp").install_from_fab = install
    _run_app("superlink.cli.flwr_serverapp", "flwr_serverapp")


def guard_clientapp(runtime: Any) -> None:
    """Let Flower's ClientApp process, the module `runtime`, load the app that it has unpacked.

    Flower would load it from a folder that follows from the name and version that the server tells.
    """
    load_function, installed = runtime.get_load_client_app_fn, []

    def install_and_note(content: bytes, skip_prompt: bool = True) -> Path:
        installed.append(install(content, skip_prompt))
        return installed[-1]

    def load_installed(**_: object) -> Callable[[str, str, str], object]:
        load: Callable[[str, str, str], object] = load_function("", app_path=str(installed[-1]), multi_app=True)
        return load

    runtime.install_from_fab, runtime.get_load_client_app_fn = install_and_note, load_installed


def _clientapp() -> None:
    _file_of(ALLOWED_VARIABLE)
    guard_clientapp(_module("supernode.runtime.run_clientapp"))
    _run_app("supernode.cli.flwr_clientapp", "flwr_clientapp")


def _run_app(module: str, function: str) -> None:
    """Run an app process of Flower with its token from the environment, which no process of the app inherits."""
    sys.argv += ["--token", os.environ.pop(_TASK_TOKEN)]
    getattr(_module(module), function)()


def _file_of(variable: str) -> Path:
    if not (path := os.environ.get(variable)):
        raise InputError(f"{variable} is not set; start Flower's programs with fedtilt deploy up or its systemd units")
    return Path(path)


PROGRAMS: dict[str, Callable[[], None]] = {
    "superlink": _superlink,
    "supernode": _supernode,
    "server-executor": partial(_superexec, TaskType.SERVER_APP, "serverapp"),
    "site-executor": partial(_superexec, TaskType.CLIENT_APP, "clientapp"),
    "serverapp": _serverapp,
    "clientapp": _clientapp,
}

if __name__ == "__main__":
    del sys.argv[0]
    try:
        PROGRAMS[sys.argv[0]]()
    except InputError as error:
        sys.exit(f"error: {error}")
