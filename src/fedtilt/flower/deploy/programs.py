"""Flower's programs: their command lines, the same in a local cluster and in the systemd units, and running `flwr`.

All but `flwr` start through `fedtilt.flower.deploy.guarded`, which adds checks. SuperLink and SuperNode do not run a
project's code: a separate SuperExec does. It proves with a secret that it may take tasks; without the secret, everyone
who can reach the port may take the server's task or a site's.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.toml_text import format_toml

HOST = "127.0.0.1"  # every program listens on loopback alone; sites reach the server through a proxy
TOKEN_VARIABLE = "FEDTILT_CONTROL_TOKEN"  # the file of the token that the SuperLink asks for


def guarded(program: str) -> list[str]:
    """The command of a program of `fedtilt.flower.deploy.guarded`; -P: no module comes from the current folder."""
    return [sys.executable, "-P", "-m", "fedtilt.flower.deploy.guarded", program]


def environment(flwr_home: Path) -> dict[str, str]:
    """The environment of Flower's programs: no telemetry, no downloads, this Python's programs first, short waits."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "FLWR_HOME": str(flwr_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds until a message is taken up; Flower's own is 1
    }


def superlink(port: int, database: Path, secret: Path, certificates: Path | None) -> list[str]:
    """The server's SuperLink; `certificates` is the folder of ca.crt, server.crt and server.key, None: no TLS."""
    security = ["--insecure"]
    if certificates is not None:
        security = ["--ssl-ca-certfile", str(certificates / "ca.crt")]
        security += ["--ssl-certfile", str(certificates / "server.crt")]
        security += ["--ssl-keyfile", str(certificates / "server.key"), "--enable-supernode-auth"]
    address = ["--host", HOST, "--port", str(port)]
    return [*guarded("superlink"), *security, *address, "--database", str(database), *_executor(secret)]


def supernode(
    superlink: str, port: int, node_config: Mapping[str, object], secret: Path,
    credentials: tuple[Path, Path, Path] | None,
) -> list[str]:  # fmt: skip
    """A site's SuperNode.

    `credentials` are the files of the authority and of the site's key, and the folder of the certificates of the port
    at which its SuperExec reaches it; None: no TLS.
    """
    security = ["--insecure"]
    if credentials is not None:
        authority, key, own = credentials
        security = ["--root-certificates", str(authority), "--auth-supernode-private-key", str(key)]
        security += ["--ssl-ca-certfile", str(own / "ca.crt"), "--ssl-certfile", str(own / "server.crt")]
        security += ["--ssl-keyfile", str(own / "server.key")]
    config = " ".join(f"{key}={toml_value(value)}" for key, value in node_config.items())
    address = ["--superlink", superlink, "--host", HOST, "--port", str(port)]
    return [*guarded("supernode"), *security, *address, *_executor(secret), "--node-config", config]


def superexec(program: str, port: int, secret: Path, authority: Path | None) -> list[str]:
    """The `server-executor` of a SuperLink or `site-executor` of a SuperNode; `authority` is None without TLS."""
    security = ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    address = ["--runtime-api-address", f"{HOST}:{port}"]
    return [*guarded(program), *security, *address, "--superexec-auth-secret-file", str(secret)]


def _executor(secret: Path) -> list[str]:
    """Leave running the project's code to a SuperExec that knows the secret."""
    return ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]


def toml_value(value: object) -> str:
    """A value of a node's or a run's configuration as TOML."""
    return str(value).lower() if isinstance(value, bool) else format_toml(value)


class NoAnswer(InputError):
    """A `flwr` command that takes too long, as on a busy machine."""


def run_flwr(env: Mapping[str, str], *arguments: str, timeout: float = 120) -> str:
    """Run `flwr`; returns its output."""
    program = Path(sys.executable).parent / "flwr"
    command = [str(program), *arguments]
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"flwr {arguments[0]} has no answer after {timeout:.0f} s; is the SuperLink up?") from None
    if done.returncode:
        message = " ".join(re.sub("[╭╮╰╯─│]", " ", done.stderr or done.stdout).split())
        raise InputError(f"flwr {arguments[0]} failed: {message[-400:]}")
    return done.stdout


def run_flwr_json(env: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """Run `flwr`; returns its JSON output."""
    output = run_flwr(env, *arguments, "--format", "json")
    try:
        return dict(json.loads(output[output.index("{") :]))
    except ValueError:
        raise InputError(f"flwr {arguments[0]} did not print JSON: {output[-200:]!r}") from None


def status_text(status: str) -> str:
    """Flower's status of a run in plain words."""
    words = {
        "finished:completed": "finished",
        "finished:failed": "stopped",
        "finished:stopped": "stopped with flwr stop",
    }
    return words.get(status, status)
