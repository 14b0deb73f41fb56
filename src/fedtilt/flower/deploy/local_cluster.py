"""A local cluster: a SuperLink and its SuperNodes on one machine, over TLS and with registered keys.

HOME/cluster.json         ports, process ids and the cluster id in their environment
HOME/certificates/        the certificates of the authority and the SuperLink, a key per site
HOME/link/, HOME/site-N/  of the SuperLink and of each site: Flower home, log.txt, and runs/ of the server or state/
                          with the personal models of a site
"""

import json
import re
import secrets
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import read_json, write_bytes, write_json
from fedtilt.flower.deploy import processes
from fedtilt.flower.deploy.certificates import make_authority, make_server_certificate, make_site_key
from fedtilt.spec.write import format_toml

CONNECTION = "cluster"  # the name of the SuperLink in Flower's configuration
_HOST = "127.0.0.1"


@dataclass
class LocalCluster:
    """A local cluster and its processes; `up` starts one, `load` loads one that was started before."""

    home: Path
    tls: bool = True
    sites: int = 2
    port: int = 0
    id: str = ""
    superlink: int = 0  # process id
    supernodes: dict[int, int] = field(default_factory=dict)  # site → process id

    @classmethod
    def load(cls, home: Path) -> "LocalCluster":
        """The cluster that was started in a folder."""
        if not (home / "cluster.json").exists():
            raise InputError(f"no local cluster was started in {home}; start one with fedtilt deploy up")
        values = read_json(home / "cluster.json")
        supernodes = {int(site): pid for site, pid in values.pop("supernodes").items()}
        return cls(home=home.resolve(), supernodes=supernodes, **values)

    def _save(self) -> None:
        values = {key: value for key, value in asdict(self).items() if key != "home"}
        write_json(self.home / "cluster.json", values)

    # -- up and down -------------------------------------------------------------------------------------------------

    def up(self, *, node_config: Mapping[int, Mapping[str, object]] | None = None, timeout: float = 60) -> None:
        """Start all processes and wait until all sites are connected.

        Args:
            node_config: more keys for the `--node-config` of some sites
            timeout: seconds to wait; 0: do not wait
        """
        if (self.home / "cluster.json").exists() and LocalCluster.load(self.home).running():
            raise InputError(f"a local cluster is running in {self.home}; stop it with fedtilt deploy down")
        self.home = self.home.resolve()
        self.id, self.port = secrets.token_hex(8), free_port()
        self._save()
        try:
            if self.tls:
                self._make_certificates()
            self.start_superlink()
            for site in range(self.sites):
                if self.tls:
                    self.register_key(self.key_file(site))
                self.start_supernode(site, (node_config or {}).get(site, {}))
            if timeout:
                self.wait_for_sites(self.sites, timeout)
        except BaseException:
            self.down()
            raise

    def down(self) -> list[int]:
        """Stop every process of the cluster; returns the stopped ones."""
        return processes.stop(self.id, self._started())

    def running(self) -> list[int]:
        """The running processes of the cluster."""
        return processes.running(self.id, self._started())

    def _started(self) -> list[int]:
        return [pid for pid in (*self.supernodes.values(), self.superlink) if pid]

    def _make_certificates(self) -> None:
        folder = self.home / "certificates"
        if not (folder / "ca.crt").exists():
            make_authority(folder)
        make_server_certificate(folder, [_HOST, "localhost"])
        for site in range(self.sites):
            if not self.key_file(site).exists():
                make_site_key(self.key_file(site))

    def key_file(self, site: int) -> Path:
        """The private key of a site."""
        return self.home / "certificates" / f"site-{site}"

    def log_file(self, site: int) -> Path:
        """The log of a site's SuperNode, which includes the output of the project."""
        return self.home / f"site-{site}" / "log.txt"

    @property
    def server_log_file(self) -> Path:
        """The log of the SuperLink."""
        return self.home / "link" / "log.txt"

    # -- processes ---------------------------------------------------------------------------------------------------

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it responds."""
        certificates, folder = self.home / "certificates", self.home / "link"
        security = ["--insecure"]
        if self.tls:
            security = ["--ssl-ca-certfile", f"{certificates / 'ca.crt'}"]
            security += ["--ssl-certfile", f"{certificates / 'server.crt'}"]
            security += ["--ssl-keyfile", f"{certificates / 'server.key'}", "--enable-supernode-auth"]
        command = ["flower-superlink", *security, "--host", _HOST, "--port", str(self.port), "--database", "link.db"]
        self._write_flwr_config()
        env = processes.environment(self.id, folder / "flwr")
        self.superlink = processes.start(command, env, self.server_log_file, folder)
        self._save()
        self._wait_until(self._is_healthy, 60, lambda: f"the SuperLink does not respond; see {self.server_log_file}")

    def start_supernode(self, site: int, node_config: Mapping[str, object] | None = None) -> None:
        """Start the SuperNode of a site."""
        folder = self.home / f"site-{site}"
        config = {"partition-id": site, "state-dir": str(folder / "state"), **(node_config or {})}
        text = " ".join(f"{key}={_toml_value(value)}" for key, value in config.items())
        command = ["flower-supernode", *self.credentials(self.key_file(site)), "--superlink", f"{_HOST}:{self.port}"]
        command += ["--host", _HOST, "--port", str(free_port()), "--node-config", text]
        env = processes.environment(self.id, folder / "flwr")
        self.supernodes[site] = processes.start(command, env, self.log_file(site), folder)
        self._save()

    def register_key(self, key: Path) -> None:
        """Register a SuperNode's key; the SuperLink remembers it from one `up` to the next."""
        try:
            self.flwr("supernode", "register", f"{key}.pub", CONNECTION)
        except InputError as error:
            if "already in use" not in str(error):
                raise

    def credentials(self, key: Path) -> list[str]:
        """The options with which a SuperNode authenticates itself and the SuperLink."""
        if not self.tls:
            return ["--insecure"]
        ca = self.home / "certificates" / "ca.crt"
        return ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]

    def _write_flwr_config(self) -> None:
        """Write Flower's configuration with the address of the SuperLink."""
        ca = self.home / "certificates" / "ca.crt"
        security = f"root-certificates = {format_toml(str(ca))}" if self.tls else "insecure = true"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        text += f'[superlink.{CONNECTION}]\naddress = "{_HOST}:{self.port}"\n{security}\n'
        write_bytes(self.home / "flwr" / "config.toml", text.encode())

    def _is_healthy(self) -> bool:
        context = ssl.create_default_context(cafile=self.home / "certificates/ca.crt") if self.tls else None
        url = f"{'https' if self.tls else 'http'}://{_HOST}:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=5, context=context) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    # -- runs --------------------------------------------------------------------------------------------------------

    def flwr(self, *arguments: str) -> str:
        """Run Flower's command line; returns its output."""
        program = Path(sys.executable).parent / "flwr"
        env = processes.environment(self.id, self.home / "flwr")
        done = subprocess.run([str(program), *arguments], env=env, capture_output=True, text=True, timeout=120)
        if done.returncode:
            message = " ".join(re.sub("[╭╮╰╯─│]", " ", done.stderr or done.stdout).split())
            raise InputError(f"flwr {arguments[0]} failed: {message[-400:]}")
        return done.stdout

    def flwr_json(self, *arguments: str) -> Any:
        """Run Flower's command line; returns its JSON output."""
        output = self.flwr(*arguments, "--format", "json")
        try:
            return json.loads(output[output.index("{") :])
        except ValueError:
            raise InputError(f"flwr {arguments[0]} did not print JSON: {output[-200:]!r}") from None

    def runs(self) -> list[dict[str, Any]]:
        """The submitted runs, newest first."""
        runs: list[dict[str, Any]] = self.flwr_json("list", CONNECTION).get("runs", [])
        return runs

    def connected_sites(self) -> int:
        """How many sites are connected."""
        nodes = self.flwr_json("supernode", "list", CONNECTION).get("nodes", [])
        return sum(node.get("status") == "online" for node in nodes)

    def wait_for_sites(self, sites: int, timeout: float = 60) -> None:
        """Wait until this many sites are connected."""
        self._wait_until(
            lambda: self.connected_sites() >= sites,
            timeout,
            lambda: f"only {self.connected_sites()} of {sites} sites are connected",
        )

    def submit(self, app: Path, config: Mapping[str, object]) -> int:
        """Submit a run of a Flower app; returns the run's number."""
        file = self.home / "run-config.toml"
        write_bytes(file, "".join(f"{key} = {_toml_value(value)}\n" for key, value in config.items()).encode())
        return int(self.flwr_json("run", str(app), CONNECTION, "--run-config", str(file))["run-id"])

    def status(self, run: int) -> str:
        """Flower's status of a run: pending, running, finished:completed, finished:failed, …"""
        return str(self.flwr_json("list", CONNECTION, "--run-id", str(run))["runs"][0]["status"])

    def wait_for_run(self, run: int, timeout: float = 86400, is_done: Callable[[], bool] = lambda: False) -> str:
        """Wait until a run is finished; returns its status.

        Args:
            run: the run's number
            timeout: seconds
            is_done: a cheap check; Flower's status is read when it returns True, and every 20 seconds
        """
        end = time.monotonic() + timeout
        while not (status := self.status(run)).startswith("finished"):
            next_check = min(time.monotonic() + 20, end)  # reading the status takes a process and a second or two
            while time.monotonic() < next_check and not is_done():
                time.sleep(0.3)
            if time.monotonic() >= end:
                raise InputError(f"run {run} is still {status} after {timeout:.0f} s")
        return status

    def _wait_until(self, condition: Callable[[], bool], timeout: float, error_message: Callable[[], str]) -> None:
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise InputError(error_message())
            time.sleep(0.3)


def status_text(status: str) -> str:
    """Flower's status of a run in plain words."""
    words = {
        "finished:completed": "finished",
        "finished:failed": "stopped",
        "finished:stopped": "stopped with flwr stop",
    }
    return words.get(status, status)


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as s:
        s.bind((_HOST, 0))
        return int(s.getsockname()[1])


def _toml_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else format_toml(value)
