"""What only a real network shows: who may connect, what a killed process leaves behind, and what is sent."""

import os
import signal
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedtilt.cli.deploy_run import last_error
from fedtilt.files import read_json
from fedtilt.flower.deploy import processes
from fedtilt.flower.deploy.credentials import make_authority, make_site_key
from fedtilt.flower.deploy.local_cluster import LocalCluster, free_port
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.network import wait_until, write_app
from tests.helpers.toy_federation import SPEC

pytestmark = pytest.mark.slow


def personal_models(cluster: LocalCluster, site: int) -> dict[str, Path]:
    return {path.name: path for path in (cluster.home / f"site-{site}/state").rglob("round-*.safetensors")}


def rounds(run: Path) -> dict:
    file = run / "seed-0/participation.json"
    return read_json(file)["rounds"] if file.exists() else {}


def kill(cluster: LocalCluster, folder: str) -> None:
    """Kill the SuperLink or a SuperNode with all its helper processes, like a power cut."""
    home = f"FLWR_HOME={cluster.home / folder / 'flwr'}".encode()
    for pid in cluster.running():
        if home in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            os.kill(pid, signal.SIGKILL)


def test_only_a_registered_key_and_the_right_authority_connect(tmp_path: Path) -> None:
    cluster = LocalCluster(home=tmp_path, sites=1)
    cluster.up()
    try:
        unregistered, registered = tmp_path / "keys/unregistered", tmp_path / "keys/registered"
        make_site_key(unregistered)
        make_site_key(registered)
        make_authority(tmp_path / "other")
        options = ["--superlink", f"127.0.0.1:{cluster.port}", "--host", "127.0.0.1", "--max-retries", "2"]
        ca = ["--root-certificates", str(tmp_path / "certificates/ca.crt")]
        wrong_ca = ["--root-certificates", str(tmp_path / "other/ca.crt")]
        cluster.register_key(registered)
        attempts = {
            "unregistered-key": [*ca, "--auth-supernode-private-key", str(unregistered)],
            "no-key": ca,
            "wrong-ca": [*wrong_ca, "--auth-supernode-private-key", str(registered)],
            "no-tls": ["--insecure"],
        }
        attempts_made = []
        for name, credentials in attempts.items():
            env = processes.environment(cluster.id, tmp_path / name)
            command = ["flower-supernode", *credentials, *options, "--port", str(free_port())]
            attempts_made.append(processes.start(command, env, tmp_path / f"{name}.txt", tmp_path / name))
        wait_until(lambda: not any(map(processes.is_alive, attempts_made)), 120)
        assert cluster.connected_sites() == 1
        env = processes.environment(cluster.id, tmp_path / "good")
        good = [*ca, "--auth-supernode-private-key", str(registered), *options, "--port", str(free_port())]
        processes.start(["flower-supernode", *good], env, tmp_path / "good.txt", tmp_path / "good")
        cluster.wait_for_sites(2)  # the same command with a registered key and the right authority connects
    finally:
        cluster.down()
    assert cluster.running() == []


def test_a_run_goes_back_and_a_server_that_fails_at_once_says_why(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", SPEC.replace("rounds = 2", "rounds = 3"))
    cluster, run = LocalCluster(home=tmp_path / "cluster", tls=False), tmp_path / "run"

    def train(**config: object) -> tuple[int, str]:
        number = cluster.submit(app, {"out": str(run), **config})
        return number, cluster.wait_for_run(number, 300)

    cluster.up()
    try:
        assert train()[1] == "finished:completed"
        first, before = RunFolder(run / "seed-0").latest(), read_json(run / "seed-0/history.json")["history"]
        assert train(**{"back-to": 1})[1] == "finished:completed"
        again, history = RunFolder(run / "seed-0").latest(), read_json(run / "seed-0/history.json")
        assert history["earlier"] == [[before, 1]]
        servers = [state.server["fedtilt"].to_tensors() for state in (again, first)]
        torch.testing.assert_close(*servers, rtol=0, atol=0)
        for site in (0, 1):
            folder = cluster.home / f"site-{site}/state/parity/fedtilt/seed-0/site-{site:05d}"
            models = [load_file(folder / id / "round-00003.safetensors") for id in (before, history["history"])]
            torch.testing.assert_close(*models, rtol=0, atol=0)
        (app / "federation/task.py").write_text("import no_such_module")
        number, status = train(out=str(tmp_path / "other"))
        assert status == "finished:failed"
        assert last_error(cluster.run_log(number))[1] == "ModuleNotFoundError: No module named 'no_such_module'"
    finally:
        cluster.down()


def test_a_killed_site_is_left_out_and_its_files_are_intact(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", SPEC.replace("rounds = 2", "rounds = 3"))
    cluster, run = LocalCluster(home=tmp_path / "cluster", tls=False), tmp_path / "run"
    cluster.up(timeout=0)
    try:
        number = cluster.submit(app, {"out": str(run), "quorum": 0.5, "deadline": 100.0})
        wait_until(lambda: "1" in rounds(run))
        kill(cluster, "site-1")
        assert cluster.wait_for_run(number, 400, is_done=(run / "results.json").exists) == "finished:completed"
    finally:
        cluster.down()
    assert cluster.running() == []
    assert rounds(run)["1"]["accepted"] == [0, 1]
    assert rounds(run)["3"]["accepted"] == [0]
    assert "site 1" in read_json(run / "seed-0/participation.json")["rejected"]
    assert "round-00001.safetensors" in personal_models(cluster, 1)
    assert all(load_file(path)["personal"].isfinite().all() for path in personal_models(cluster, 1).values())


def test_a_killed_server_resumes_to_the_simulators_models(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", SPEC.replace("rounds = 2", "rounds = 3"))
    cluster, run = LocalCluster(home=tmp_path / "cluster"), tmp_path / "run"
    cluster.up(timeout=0)
    try:
        cluster.submit(app, {"out": str(run)})
        wait_until(lambda: "1" in rounds(run))
        kill(cluster, "link")
        assert not (run / "results.json").exists()
        cluster.start_superlink()
        cluster.wait_for_sites(2, 120)
        number = cluster.submit(app, {"out": str(run)})
        assert cluster.wait_for_run(number, 400, is_done=(run / "results.json").exists) == "finished:completed"
    finally:
        cluster.down()
    assert cluster.running() == []
    run_spec(load(app / "spec.toml"), tmp_path / "simulated")
    simulated = RunFolder(tmp_path / "simulated/seed-0").latest()
    torch.testing.assert_close(RunFolder(run / "seed-0").latest().shared, simulated.shared)
    for site in (0, 1):
        kept = load_file(personal_models(cluster, site)["round-00003.safetensors"])
        torch.testing.assert_close(kept, simulated.client_states.get(("fedtilt", site)).to_tensors())


CANARY = np.float32(0.73918462)

CANARY_TASK = f"""
from pathlib import Path
import torch
import fedtilt as ft
from fedtilt.flower import Task

def data(node):
    x = torch.full((40, 3), {CANARY!s})
    x[:, 0] = torch.linspace(-1, 1, 40)
    y = (x[:, 0] > 0).long()
    return ft.data.Dataset(name="canary-name", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)

TASK = Task(spec=Path(__file__).parent.parent / "spec.toml", data=data, model=ft.models.logistic, input_shape=(3,),
            class_names=("canary-one", "canary-two"))
"""


class RecordingProxy:
    """A proxy between the sites and the SuperLink that records everything the sites send."""

    def __init__(self, port: int) -> None:
        self.recorded = bytearray()
        self._superlink_port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                site, _ = self._server.accept()
            except OSError:
                return
            try:
                superlink = socket.create_connection(("127.0.0.1", self._superlink_port))
            except OSError:  # the SuperLink is not up yet, or down already
                site.close()
                continue
            threading.Thread(target=self._forward, args=(site, superlink, self.recorded), daemon=True).start()
            threading.Thread(target=self._forward, args=(superlink, site, bytearray()), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket, recorded: bytearray) -> None:
        with source, target:
            try:
                while part := source.recv(65536):
                    recorded += part
                    target.sendall(part)
            except OSError:
                return

    def close(self) -> None:
        self._server.close()


def test_no_data_and_no_personal_model_is_sent(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", SPEC, CANARY_TASK)
    cluster, run = LocalCluster(home=tmp_path / "cluster", tls=False), tmp_path / "run"
    cluster.home.mkdir()
    cluster.id, cluster.port = "canary", free_port()
    cluster.start_superlink()
    proxy, superlink_port = RecordingProxy(cluster.port), cluster.port
    try:
        cluster.port = proxy.port  # for the sites only
        for site in (0, 1):
            cluster.start_supernode(site)
        cluster.port = superlink_port
        number = cluster.submit(app, {"out": str(run), "set": "train.audit=true"})
        assert cluster.wait_for_run(number, 400, is_done=(run / "results.json").exists) == "finished:completed"
    finally:
        cluster.down()
        proxy.close()
    recorded = bytes(proxy.recorded)
    kept = [load_file(path) for site in (0, 1) for path in personal_models(cluster, site).values()]
    assert len(kept) == 4
    private = [state[name].numpy() for state in kept for name in ("personal", "audit.p")]
    assert any((path.parent / "suspects.csv").exists() for path in cluster.home.rglob("report.json"))
    for values in private:
        for pair in values.reshape(-1, 2):  # eight bytes do not occur by chance
            assert pair.tobytes() not in recorded
    for secret in (CANARY.tobytes(), np.float64(CANARY).tobytes(), b"canary", b"0.739184", b"suspects", b"audit_"):
        assert secret not in recorded
    assert b"num-examples" in recorded  # the proxy did record the replies
