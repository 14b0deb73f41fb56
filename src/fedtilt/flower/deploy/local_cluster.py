"""A federation on one machine: a SuperLink and its SuperNodes over TLS, with registered keys.

HOME/trial.json           ports, process ids and the mark they carry
HOME/certificates/        the authority's and the SuperLink's certificate, a key for every site
HOME/link/, HOME/site-N/  what belongs to the SuperLink and to each site: its Flower home, its log, and its state:
                          runs/ of the server, state/ with the personal models of a site
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
from fedtilt.spec.write import toml

NAME = "trial"
_HOST = "127.0.0.1"


@dataclass
class Trial:
    """A trial and where its processes are; `up` starts one, `find` finds one that was started before."""

    home: Path
    tls: bool = True
    sites: int = 2
    port: int = 0
    mark: str = ""
    link: int = 0  # process ids
    nodes: dict[int, int] = field(default_factory=dict)  # site → process

    @classmethod
    def find(cls, home: Path) -> "Trial":
        """The trial that was started in a folder."""
        if not (home / "trial.json").exists():
            raise InputError(f"no trial was started in {home}; start one with fedtilt deploy up")
        values = read_json(home / "trial.json")
        nodes = {int(site): pid for site, pid in values.pop("nodes").items()}
        return cls(home=home.resolve(), nodes=nodes, **values)

    def _write(self) -> None:
        values = {key: value for key, value in asdict(self).items() if key != "home"}
        write_json(self.home / "trial.json", values)

    # -- up and down -------------------------------------------------------------------------------------------------

    def up(self, *, node_config: Mapping[int, Mapping[str, object]] | None = None, patience: float = 60) -> None:
        """Start everything and, with some patience, wait until all sites are connected."""
        if (self.home / "trial.json").exists() and Trial.find(self.home).alive():
            raise InputError(f"a trial is running in {self.home}; stop it with fedtilt deploy down")
        self.home = self.home.resolve()
        self.mark, self.port = secrets.token_hex(8), free_port()
        self._write()
        try:
            if self.tls:
                self._certify()
            self.start_link()
            for site in range(self.sites):
                if self.tls:
                    self.register(self.key(site))
                self.start_node(site, (node_config or {}).get(site, {}))
            if patience:
                self.wait_for(self.sites, patience)
        except BaseException:
            self.down()
            raise

    def down(self) -> list[int]:
        """Stop every process of the trial; those that were there."""
        return processes.stop(self.mark, self._known())

    def alive(self) -> list[int]:
        """The trial's processes."""
        return processes.marked(self.mark, self._known())

    def _known(self) -> list[int]:
        return [pid for pid in (*self.nodes.values(), self.link) if pid]

    def _certify(self) -> None:
        folder = self.home / "certificates"
        if not (folder / "ca.crt").exists():
            make_authority(folder)
        make_server_certificate(folder, [_HOST, "localhost"])
        for site in range(self.sites):
            if not self.key(site).exists():
                make_site_key(self.key(site))

    def key(self, site: int) -> Path:
        """A site's private key."""
        return self.home / "certificates" / f"site-{site}"

    def log(self, site: int) -> Path:
        """What a site's SuperNode and the project on it have to say."""
        return self.home / f"site-{site}" / "log.txt"

    # -- processes ---------------------------------------------------------------------------------------------------

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        folder, place = self.home / "certificates", self.home / "link"
        secure = ["--insecure"]
        if self.tls:
            secure = ["--ssl-ca-certfile", f"{folder / 'ca.crt'}", "--ssl-certfile", f"{folder / 'server.crt'}"]
            secure += ["--ssl-keyfile", f"{folder / 'server.key'}", "--enable-supernode-auth"]
        command = ["flower-superlink", *secure, "--host", _HOST, "--port", str(self.port), "--database", "link.db"]
        self._configure()
        env = processes.environment(self.mark, place / "flwr")
        self.link = processes.start(command, env, place / "log.txt", place)
        self._write()
        self._until(self._healthy, 60, lambda: f"the SuperLink does not answer; see {place / 'log.txt'}")

    def start_node(self, site: int, more: Mapping[str, object] | None = None) -> None:
        """Start one site's SuperNode."""
        place = self.home / f"site-{site}"
        config = {"partition-id": site, "state-dir": str(place / "state"), **(more or {})}
        text = " ".join(f"{key}={_value(value)}" for key, value in config.items())
        command = ["flower-supernode", *self.credentials(self.key(site)), "--superlink", f"{_HOST}:{self.port}"]
        command += ["--host", _HOST, "--port", str(free_port()), "--node-config", text]
        env = processes.environment(self.mark, place / "flwr")
        self.nodes[site] = processes.start(command, env, self.log(site), place)
        self._write()

    def register(self, key: Path) -> None:
        """Let the SuperNode with this key in; the SuperLink remembers it from one `up` to the next."""
        try:
            self.flwr("supernode", "register", f"{key}.pub", NAME)
        except InputError as error:
            if "already in use" not in str(error):
                raise

    def credentials(self, key: Path) -> list[str]:
        """How a SuperNode shows who it is and knows whom it talks to."""
        if not self.tls:
            return ["--insecure"]
        ca = self.home / "certificates" / "ca.crt"
        return ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]

    def _configure(self) -> None:
        """Flower's own configuration of whom `flwr` talks to."""
        secure = (
            f"root-certificates = {toml(str(self.home / 'certificates/ca.crt'))}" if self.tls else "insecure = true"
        )
        text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{_HOST}:{self.port}"\n{secure}\n'
        write_bytes(self.home / "flwr" / "config.toml", text.encode())

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=self.home / "certificates/ca.crt") if self.tls else None
        url = f"{'https' if self.tls else 'http'}://{_HOST}:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    # -- talking to it -----------------------------------------------------------------------------------------------

    def flwr(self, *arguments: str) -> str:
        """Run Flower's own command line; what it printed."""
        program = Path(sys.executable).parent / "flwr"
        env = processes.environment(self.mark, self.home / "flwr")
        done = subprocess.run([str(program), *arguments], env=env, capture_output=True, text=True, timeout=120)
        if done.returncode:
            said = " ".join(re.sub("[╭╮╰╯─│]", " ", done.stderr or done.stdout).split())
            raise InputError(f"flwr {arguments[0]} failed: {said[-400:]}")
        return done.stdout

    def ask(self, *arguments: str) -> Any:
        """Run Flower's own command line for an answer in JSON."""
        said = self.flwr(*arguments, "--format", "json")
        try:
            return json.loads(said[said.index("{") :])
        except ValueError:
            raise InputError(f"flwr {arguments[0]} did not answer in JSON: {said[-200:]!r}") from None

    def runs(self) -> list[dict[str, Any]]:
        """The runs that were submitted, newest first."""
        found: list[dict[str, Any]] = self.ask("list", NAME).get("runs", [])
        return found

    def online(self) -> int:
        """How many sites are connected."""
        nodes = self.ask("supernode", "list", NAME).get("nodes", [])
        return sum(node.get("status") == "online" for node in nodes)

    def wait_for(self, sites: int, patience: float = 60) -> None:
        """Wait until so many sites are connected."""
        self._until(
            lambda: self.online() >= sites, patience, lambda: f"only {self.online()} of {sites} sites are connected"
        )

    def submit(self, app: Path, config: Mapping[str, object]) -> int:
        """Submit a run of a Flower app; its number."""
        file = self.home / "run-config.toml"
        write_bytes(file, "".join(f"{key} = {_value(value)}\n" for key, value in config.items()).encode())
        return int(self.ask("run", str(app), NAME, "--run-config", str(file))["run-id"])

    def status(self, run: int) -> str:
        """Where a run stands, as Flower says: pending, running, finished:completed, finished:failed, …"""
        return str(self.ask("list", NAME, "--run-id", str(run))["runs"][0]["status"])

    def wait_run(self, run: int, patience: float = 86400, sign: Callable[[], bool] = lambda: False) -> str:
        """Wait until a run is finished; how it ended. Flower is asked now and then, and when there is a `sign`."""
        end = time.monotonic() + patience
        while not (status := self.status(run)).startswith("finished"):
            again = min(time.monotonic() + 20, end)  # asking takes a process and a second or two
            while time.monotonic() < again and not sign():
                time.sleep(0.3)
            if time.monotonic() >= end:
                raise InputError(f"run {run} is still {status} after {patience:.0f} s")
        return status

    def _until(self, done: Callable[[], bool], patience: float, sorry: Callable[[], str]) -> None:
        end = time.monotonic() + patience
        while not done():
            if time.monotonic() > end:
                raise InputError(sorry())
            time.sleep(0.3)


def in_words(status: str) -> str:
    """Where a run stands, without Flower's way of saying it."""
    words = {"finished:completed": "finished", "finished:failed": "stopped", "finished:stopped": "ended by flwr stop"}
    return words.get(status, status)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind((_HOST, 0))
        return int(s.getsockname()[1])


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else toml(value)
