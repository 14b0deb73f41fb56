"""The systemd units of real machines, and keys that are registered for one site each."""

import getpass
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedtilt as ft
from fedtilt.files import read_json
from fedtilt.flower.deploy import machines
from fedtilt.flower.deploy.allowed_apps import allow, app_digest
from fedtilt.flower.deploy.credentials import make_site_key, read_site_keys
from fedtilt.flower.deploy.local_cluster import LocalCluster, free_port
from tests.helpers.network import wait_until, write_app
from tests.helpers.nginx import needs_nginx, nginx
from tests.helpers.toy_federation import SPEC

ODD_PATH = '/srv/a "b" $HOME 50%.csv'


@pytest.fixture
def units(tmp_path: Path) -> dict[str, Path]:
    server = machines.write_server(tmp_path / "server", ["fl.example.org"], port=9092, superlink_port=9093, days=30)
    authority = tmp_path / "server/certificates/ca.crt"
    site = machines.write_site(tmp_path / "site", 1, "fl.example.org:9092", authority, node_config={"data": ODD_PATH})
    return {path.name: path for path in [*server, *site]}


SERVICES = ["fedtilt-link", "fedtilt-executor", "fedtilt-site", "fedtilt-site-executor"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_bounded_and_private(units: dict[str, Path], name: str) -> None:
    lines = units[f"{name}.service"].read_text().splitlines()
    assert "UMask=0077" in lines
    assert "NoNewPrivileges=yes" in lines
    assert sum(line.startswith("MemoryMax=") for line in lines) == 1
    (command,) = (line for line in lines if line.startswith("ExecStart="))
    assert "executor.secret" in command
    assert ("--isolation process" in command) == ("-executor " not in command)
    assert "0.0.0.0" not in command  # loopback only
    assert f"{sys.executable} -P -m fedtilt.flower.deploy.guarded " in command


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_write_its_own_folder_only(units: dict[str, Path], name: str) -> None:
    lines = units[f"{name}.service"].read_text().splitlines()
    home = units[f"{name}.service"].parent.parent
    assert {"ProtectSystem=strict", f"ReadWritePaths={home}", "CapabilityBoundingSet="} <= set(lines)
    assert f"User={getpass.getuser()}" in lines
    runs_projects = name.endswith("executor")
    assert ({"IPAddressDeny=any", "IPAddressAllow=localhost"} <= set(lines)) == runs_projects
    assert ("PrivateDevices=yes" in lines) != runs_projects  # training needs the GPU


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_little_that_a_service_could_harm(units: dict[str, Path]) -> None:
    """The exposure that systemd computes is from 0 to 10; a unit without settings has 9.6."""
    for name in SERVICES:
        command = ["systemd-analyze", "security", "--offline=yes", "--threshold=40", "--no-pager"]
        done = subprocess.run([*command, str(units[f"{name}.service"])], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_only_the_proxy_listens_to_the_network(units: dict[str, Path]) -> None:
    assert "--host 127.0.0.1 --port 9093" in units["fedtilt-link.service"].read_text()
    assert "listen 9092 ssl;" in units["fedtilt-proxy.conf"].read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(units: dict[str, Path], tmp_path: Path) -> None:
    command = ["systemd-analyze", "verify", *(str(units[f"{name}.service"]) for name in SERVICES)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if str(tmp_path) in line]) == (0, [])


def test_a_value_with_quotes_reaches_the_site_unchanged(units: dict[str, Path]) -> None:
    text = units["fedtilt-site.service"].read_text()
    expected = r"""data=\"/srv/a \\\"b\\\" $$HOME 50%%.csv\""""  # TOML in systemd's quotes
    assert expected in text


def test_a_key_is_registered_and_bound_to_one_site(superlink: LocalCluster, tmp_path: Path) -> None:
    home = superlink.home  # has what `write_server` writes
    for name in ("a", "b"):
        make_site_key(tmp_path / name)
    machines.register_site(home, 4, tmp_path / "a.pub")
    with pytest.raises(ft.InputError, match="site 4 has the key"):
        machines.register_site(home, 4, tmp_path / "b.pub")
    with pytest.raises(ft.InputError, match="is also the key of site 4; give every site its own"):
        machines.register_site(home, 5, tmp_path / "a.pub")
    assert sorted(read_site_keys(home / "keys").values()) == [4]
    with pytest.raises(ft.InputError, match="already in use"):  # the SuperLink knows it
        superlink.flwr("supernode", "register", str(tmp_path / "a.pub"), machines.CONNECTION)
    files = {path.name: path.stat().st_mode & 0o077 for path in (home / "link").iterdir()}
    assert files.keys() >= {"link.db", "log.txt", "executor.secret"}
    assert set(files.values()) == {0}  # only the owner can read the database and the log


def start_unit(path: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the program of a unit as systemd does."""
    settings = [line.partition("=") for line in path.read_text().splitlines()]
    environment = [shlex.split(value)[0].replace("%%", "%") for key, _, value in settings if key == "Environment"]
    values = {key: value for key, _, value in settings}
    command = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(values["ExecStart"])]
    env = dict(entry.split("=", 1) for entry in environment) | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=env,
            cwd=values["WorkingDirectory"],
            stdout=output,
            stderr=output,
            umask=int(values["UMask"], 8),
        )


@needs_nginx
@pytest.mark.slow
def test_the_units_and_the_proxy_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, superlink_port = free_port(), free_port()
    monkeypatch.setattr(machines, "_SUPERNODE_PORT", free_port())
    app = write_app(tmp_path / "app", SPEC.replace("count = 2", "count = 1"))
    server, home = tmp_path / "server", tmp_path / "site"
    *units, proxy = machines.write_server(server, ["localhost"], port=port, superlink_port=superlink_port, days=1)
    cluster = LocalCluster(home=server, port=superlink_port)  # for its questions to the SuperLink
    log, started = tmp_path / "log.txt", []
    try:
        started += [start_unit(unit, log) for unit in units]
        wait_until(cluster._is_healthy)
        units = machines.write_site(home, 0, f"localhost:{port}", server / "certificates/ca.crt", node_config={})
        machines.register_site(server, 0, home / "site.key.pub")
        with nginx(tmp_path / "nginx", proxy.read_text()):
            started += [start_unit(unit, log) for unit in units]
            allow(home, app_digest(app))
            cluster.flwr("run", str(app), machines.CONNECTION)
            results = server / "runs/parity-fedtilt/results.json"
            wait_until(lambda: results.exists() or any(process.poll() is not None for process in started))
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)
    assert results.exists(), log.read_text()[-3000:]
    rounds = read_json(results.parent / "seed-0/participation.json")["rounds"]
    assert [entry["accepted"] for entry in rounds.values()] == [[0], [0]]
    (model,) = home.rglob("round-00002.safetensors")
    assert model.stat().st_mode & 0o077 == 0
