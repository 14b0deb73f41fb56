"""A local cluster: a SuperLink and its SuperNodes on one machine, over TLS and with registered keys.

HOME/cluster.json         ports, processes and the cluster id in their environment
HOME/certificates/        the certificates of the authority and the SuperLink, a key per site
HOME/link/, HOME/site-N/  of the SuperLink and of each site: Flower home, log.txt, the secret of its SuperExec, the
                          digests of the apps that it runs, and runs/ of the server or state/ with the personal
                          models of a site

Only the owner can read HOME. One command at a time starts or stops the cluster, one run at a time trains on it.
"""

import os
import secrets
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import private_folder, read_json, write_bytes, write_json
from fedtilt.flower.deploy import processes, programs
from fedtilt.flower.deploy.allowed_apps import ACCEPT_ALL, ALLOWED_VARIABLE, FILE_NAME, allow, app_digest
from fedtilt.flower.deploy.credentials import KEYS_VARIABLE, make_site_key
from fedtilt.flower.deploy.machines import CONNECTION, server_commands, site_commands
from fedtilt.flower.deploy.processes import Process
from fedtilt.locks import locked

_HEARTBEAT = 75  # seconds after which Flower no longer counts a killed SuperNode as connected, and some to spare


def cluster_home(project: Path) -> Path:
    """The folder of a project's local cluster."""
    return project / ".fedtilt"


@dataclass
class LocalCluster:
    """A local cluster and its processes; `up` starts one, `load` loads one that was started before."""

    home: Path
    tls: bool = True
    sites: int = 2
    port: int = 0
    site_port: int = 0  # of a proxy in front of the SuperLink; 0: none
    id: str = ""
    link: list[Process] = field(default_factory=list)  # the SuperLink and its SuperExec
    nodes: dict[int, list[Process]] = field(default_factory=dict)  # of each site: the SuperNode and its SuperExec
    node_config: dict[int, dict[str, object]] = field(default_factory=dict)  # of each site: more for --node-config

    @classmethod
    def load(cls, home: Path) -> "LocalCluster":
        """The cluster that was started in a folder."""
        path = home / "cluster.json"
        if not path.exists():
            raise InputError(f"no local cluster was started in {home}; start one with fedtilt deploy up")
        values = read_json(path)
        try:
            values["link"] = [Process(*process) for process in values["link"]]
            values["nodes"] = {int(n): [Process(*p) for p in processes] for n, processes in values["nodes"].items()}
            values["node_config"] = {int(n): config for n, config in values["node_config"].items()}
            return cls(home=home.resolve(), **values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is damaged or of another version ({error!r}); delete it") from None

    def _save(self) -> None:
        values = {key: value for key, value in asdict(self).items() if key != "home"}
        write_json(self.home / "cluster.json", values)

    # -- up and down -------------------------------------------------------------------------------------------------

    def up(self, *, timeout: float = 60, notice: Callable[[str], None] = lambda text: None) -> None:
        """Start all processes and wait until all sites are connected; with a timeout of 0, do not wait.

        Every site adds two seconds to the timeout: they share the cores of this machine.
        `notice` is called with one sentence if the start takes longer than usual.
        """
        self.home = private_folder(self.home).resolve()
        with self._locked():
            if (self.home / "cluster.json").exists() and LocalCluster.load(self.home).running():
                raise InputError(f"a local cluster is running in {self.home}; stop it with fedtilt deploy down")
            self.id, self.port = secrets.token_hex(8), free_port()
            self._save()
            try:
                is_new = not (self.home / "link" / "link.db").exists()
                self.start_superlink()
                if not is_new:
                    self._wait_for_killed_sites(notice)
                if self.tls:
                    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a process each
                        list(pool.map(self.register_key, map(self.key_file, range(self.sites))))
                for site in range(self.sites):
                    self.start_supernode(site)
                if timeout:
                    self.wait_for_sites(self.sites, timeout + 2 * self.sites)
            except BaseException:
                self._stop()
                raise

    def restart_site(self, site: int, notice: Callable[[str], None] = lambda text: None) -> None:
        """Stop the processes of one site of a running cluster, start them again, and wait until it is connected."""
        if site not in range(self.sites):
            raise InputError(f"there is no site {site}; the sites are 0 to {self.sites - 1}")
        with self._locked():
            if problem := self.problem():
                raise InputError(problem)
            processes.end(self.nodes.get(site, []))
            others = self.sites - len(self.stopped_sites())
            self._wait_for_killed_sites(notice, others)
            self.start_supernode(site)
            _wait_until(
                lambda: self.connected_sites() > others, 60,
                lambda: f"site {site} does not connect; see {self.log_file(site)}",
            )  # fmt: skip

    def down(self) -> list[int]:
        """Stop every process of the cluster; returns the stopped ones."""
        with self._locked():
            return self._stop()

    def _stop(self) -> list[int]:
        """Stop the sites before the SuperLink, so that it learns that they are gone."""
        return processes.stop(self.id, self._site_processes(), self.link)

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.home, busy=f"another command starts or stops the local cluster in {self.home}; wait for it")

    def _site_processes(self) -> list[Process]:
        return [process for node in self.nodes.values() for process in node]

    def running(self) -> list[int]:
        """The running processes of the cluster."""
        return processes.running(self.id, [*self.link, *self._site_processes()])

    def problem(self) -> str | None:
        """Why a cluster that was started cannot train; None if it can."""
        if not self.running():
            return f"the local cluster in {self.home} is down; start it with fedtilt deploy up"
        if not self.link or not all(processes.is_alive(process) for process in self.link) or not self._is_healthy():
            remedy = f"see {self.server_log_file}, then run fedtilt deploy down and fedtilt deploy up"
            return f"the SuperLink of the local cluster in {self.home} has stopped; {remedy}"
        return None

    def stopped_sites(self) -> list[int]:
        """The sites whose SuperNode or SuperExec has ended."""
        return [n for n, node in sorted(self.nodes.items()) if not all(processes.is_alive(p) for p in node)]

    def _wait_for_killed_sites(self, notice: Callable[[str], None], others: int = 0) -> None:
        """Wait until the SuperLink no longer counts sites that were killed: it rejects a key that it counts."""
        if self.connected_sites() <= others:
            return
        notice(f"the SuperLink does not know yet that its sites were stopped: waiting up to {_HEARTBEAT} s")
        message = f"the SuperLink still counts sites that were stopped; see {self.server_log_file}"
        _wait_until(lambda: self.connected_sites() <= others, _HEARTBEAT, lambda: message, interval=3)

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

    @property
    def runs_folder(self) -> Path:
        """The run folders of the server."""
        return self.home / "link" / "runs"

    # -- processes ---------------------------------------------------------------------------------------------------

    def start_superlink(self) -> None:
        """Start the SuperLink and its SuperExec, and wait until it responds."""
        folder = self.home / "link"
        commands = server_commands(self.home, [programs.HOST, "localhost"], self.port, tls=self.tls)
        env = self._environment(folder) | commands.env
        if self.tls:
            env[KEYS_VARIABLE] = str(self.home / "certificates")
            for site in range(self.sites):
                if not self.key_file(site).exists():
                    make_site_key(self.key_file(site))
        self.link = [processes.start(commands.main, env, self.server_log_file, folder)]
        self._save()
        _wait_until(self._responds, 180, lambda: f"the SuperLink does not respond; see {self.server_log_file}")
        self.link.append(processes.start(commands.executor, env, self.server_log_file, folder))
        self._save()

    def start_supernode(self, site: int) -> None:
        """Start the SuperNode of a site and its SuperExec."""
        folder, address = self.home / f"site-{site}", f"{programs.HOST}:{self.site_port or self.port}"
        config = {"partition-id": site, ACCEPT_ALL: True, **self.node_config.get(site, {})}
        credentials = None if self._authority is None else (self._authority, self.key_file(site))
        commands = site_commands(folder, address, free_port(), config, credentials)
        self.nodes[site] = []
        for command in (commands.main, commands.executor):
            self.nodes[site].append(processes.start(command, self._environment(folder), self.log_file(site), folder))
            self._save()

    def _environment(self, folder: Path) -> dict[str, str]:
        """The environment of the processes of the SuperLink or of a site, which have this folder."""
        threads = max(1, (os.cpu_count() or 1) // self.sites)  # the sites share the cores of this machine
        allowed = {ALLOWED_VARIABLE: str(folder / FILE_NAME)}
        return {"OMP_NUM_THREADS": str(threads)} | processes.environment(self.id, folder / "flwr") | allowed

    def register_key(self, key: Path) -> None:
        """Register a SuperNode's key; the SuperLink remembers it from one `up` to the next."""
        try:
            self.flwr("supernode", "register", f"{key}.pub", CONNECTION)
        except InputError as error:
            if "already in use" not in str(error):
                raise

    @property
    def _authority(self) -> Path | None:
        return self.home / "certificates" / "ca.crt" if self.tls else None

    def _responds(self) -> bool:
        if not processes.is_alive(self.link[0]):
            raise InputError(f"the SuperLink has stopped; see {self.server_log_file}")
        return self._is_healthy()

    def _is_healthy(self) -> bool:
        context = None if self._authority is None else ssl.create_default_context(cafile=self._authority)
        url = f"{'https' if self.tls else 'http'}://{programs.HOST}:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=5, context=context) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    # -- runs --------------------------------------------------------------------------------------------------------

    def flwr(self, *arguments: str) -> str:
        """Run Flower's command line; returns its output."""
        return programs.run_flwr(processes.environment(self.id, self.home / "flwr"), *arguments)

    def _flwr_json(self, *arguments: str) -> dict[str, Any]:
        return programs.run_flwr_json(processes.environment(self.id, self.home / "flwr"), *arguments)

    def runs(self) -> list[dict[str, Any]]:
        """The submitted runs, newest first."""
        return list(self._flwr_json("list", CONNECTION).get("runs", []))

    def run_log(self, run: int) -> str:
        """What the server logged in a run; empty if the SuperLink does not tell."""
        try:
            return self.flwr("log", str(run), CONNECTION, "--show")
        except InputError:
            return ""

    def connected_sites(self) -> int:
        """How many sites are connected."""
        nodes = self._flwr_json("supernode", "list", CONNECTION).get("nodes", [])
        return sum(node.get("status") == "online" for node in nodes)

    def wait_for_sites(self, sites: int, timeout: float = 60) -> None:
        """Wait until `sites` sites are connected; a site whose process has ended is an error."""

        def are_connected() -> bool:
            if stopped := self.stopped_sites():
                raise InputError(f"the SuperNode of site {stopped[0]} has stopped; see {self.log_file(stopped[0])}")
            return self.connected_sites() >= sites

        _wait_until(are_connected, timeout, lambda: f"only {self.connected_sites()} of {sites} sites are connected")

    def training(self) -> AbstractContextManager[None]:
        """Raise InputError for a second run while this one trains: the sites train one run at a time."""
        busy = f"another fedtilt deploy run trains on the local cluster in {self.home}; wait for it"
        return locked(self.home / "submissions", busy=busy)

    def submit(self, app: Path, config: Mapping[str, object]) -> int:
        """Allow a Flower app on the server and on all sites, and submit a run of it; returns the run's number."""
        digest = app_digest(app)
        for folder in [self.home / "link", *(self.home / f"site-{site}" for site in range(self.sites))]:
            allow(folder, digest)
        file = self.home / "submissions" / f"{secrets.token_hex(8)}.toml"  # its own: another run must not change it
        write_bytes(file, "".join(f"{key} = {programs.toml_value(value)}\n" for key, value in config.items()).encode())
        try:
            return int(self._flwr_json("run", str(app), CONNECTION, "--run-config", str(file))["run-id"])
        finally:
            file.unlink(missing_ok=True)

    def wait_for_run(self, run: int, timeout: float = 86400, is_done: Callable[[], bool] = lambda: False) -> str:
        """Wait until a run is finished; returns its status, which is read when `is_done`, and every 20 seconds."""
        end = time.monotonic() + timeout
        while not (status := self._status(run)).startswith("finished"):
            next_check = min(time.monotonic() + 20, end)  # reading the status takes a process and a second or two
            while time.monotonic() < next_check and not is_done():
                time.sleep(0.3)
            if time.monotonic() >= end:
                raise InputError(f"run {run} is still {status} after {timeout:.0f} s")
        return status

    def _status(self, run: int) -> str:
        """Flower's status of a run: pending, running, finished:completed, finished:failed, …"""
        if problem := self.problem():
            raise InputError(problem)
        try:
            return str(self._flwr_json("list", CONNECTION, "--run-id", str(run))["runs"][0]["status"])
        except programs.NoAnswer:  # the SuperLink is alive, and the machine busy
            return "without an answer"


def _wait_until(
    condition: Callable[[], bool], timeout: float, error_message: Callable[[], str], interval: float = 0.3
) -> None:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise InputError(error_message())
        time.sleep(interval)


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as s:
        s.bind((programs.HOST, 0))
        return int(s.getsockname()[1])
