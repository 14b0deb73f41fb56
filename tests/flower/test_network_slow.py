"""What only a real network shows: who is refused, what is left when a process is killed, and what is sent."""

import os
import signal
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedtilt.files import read_json
from fedtilt.flower.deploy import processes
from fedtilt.flower.deploy.certificates import make_authority, make_site_key
from fedtilt.flower.deploy.local_cluster import Trial, free_port
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.network import wait_until, write_app
from tests.helpers.toy_federation import SPEC

pytestmark = pytest.mark.slow


def personal(trial: Trial, site: int) -> dict[str, Path]:
    return {path.name: path for path in (trial.home / f"site-{site}/state").rglob("round-*.safetensors")}


def rounds(run: Path) -> dict:
    file = run / "seed-0/faults.json"
    return read_json(file)["rounds"] if file.exists() else {}


def kill(trial: Trial, place: str) -> None:
    """End one machine of the trial as a power cut would: the process that was started and all its helpers."""
    home = f"FLWR_HOME={trial.home / place / 'flwr'}".encode()
    for pid in trial.alive():
        if home in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            os.kill(pid, signal.SIGKILL)


def test_only_a_registered_key_and_the_right_authority_connect(tmp_path: Path) -> None:
    trial = Trial(home=tmp_path, sites=1)
    trial.up()
    try:
        unknown, known = tmp_path / "keys/unknown", tmp_path / "keys/known"
        make_site_key(unknown)
        make_site_key(known)
        make_authority(tmp_path / "other")
        link = ["--superlink", f"127.0.0.1:{trial.port}", "--host", "127.0.0.1", "--max-retries", "2"]
        ca = ["--root-certificates", str(tmp_path / "certificates/ca.crt")]
        wrong = ["--root-certificates", str(tmp_path / "other/ca.crt")]
        trial.register(known)
        attempts = {
            "unknown": [*ca, "--auth-supernode-private-key", str(unknown)],
            "none": ca,
            "wrong": [*wrong, "--auth-supernode-private-key", str(known)],
            "plain": ["--insecure"],
        }
        pids = []
        for name, credentials in attempts.items():
            env = processes.environment(trial.mark, tmp_path / name)
            command = ["flower-supernode", *credentials, *link, "--port", str(free_port())]
            pids.append(processes.start(command, env, tmp_path / f"{name}.txt", tmp_path / name))
        wait_until(lambda: not any(processes.is_alive(pid) for pid in pids), 120)
        assert trial.online() == 1
        env = processes.environment(trial.mark, tmp_path / "good")
        good = [*ca, "--auth-supernode-private-key", str(known), *link, "--port", str(free_port())]
        processes.start(["flower-supernode", *good], env, tmp_path / "good.txt", tmp_path / "good")
        trial.wait_for(2)  # the same command with a registered key and the right authority is let in
    finally:
        trial.down()
    assert trial.alive() == []


def test_a_killed_site_is_left_out_and_its_files_are_whole(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", SPEC.replace("rounds = 2", "rounds = 3"))
    trial, run = Trial(home=tmp_path / "trial", tls=False), tmp_path / "run"
    trial.up(patience=0)
    try:
        number = trial.submit(app, {"out": str(run), "quorum": 0.5, "deadline": 100.0})
        wait_until(lambda: "1" in rounds(run))
        kill(trial, "site-1")
        assert trial.wait_run(number, 400, sign=(run / "results.json").exists) == "finished:completed"
    finally:
        trial.down()
    assert trial.alive() == []
    assert rounds(run)["1"]["entered"] == [0, 1]
    assert rounds(run)["3"]["entered"] == [0]
    assert "site 1" in read_json(run / "seed-0/faults.json")["refused"]
    assert "round-00001.safetensors" in personal(trial, 1)
    assert all(load_file(path)["model"].isfinite().all() for path in personal(trial, 1).values())


def test_a_killed_server_resumes_to_the_simulators_models(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", SPEC.replace("rounds = 2", "rounds = 3"))
    trial, run = Trial(home=tmp_path / "trial"), tmp_path / "run"
    trial.up(patience=0)
    try:
        trial.submit(app, {"out": str(run)})
        wait_until(lambda: "1" in rounds(run))
        kill(trial, "link")
        assert not (run / "results.json").exists()
        trial.start_link()
        trial.wait_for(2, 120)
        number = trial.submit(app, {"out": str(run)})
        assert trial.wait_run(number, 400, sign=(run / "results.json").exists) == "finished:completed"
    finally:
        trial.down()
    assert trial.alive() == []
    run_spec(load(app / "spec.toml"), tmp_path / "simulated")
    theirs = RunFolder(tmp_path / "simulated/seed-0").latest()
    torch.testing.assert_close(RunFolder(run / "seed-0").latest().shared, theirs.shared)
    for site in (0, 1):
        own = load_file(personal(trial, site)["round-00003.safetensors"])["model"]
        torch.testing.assert_close(own, theirs.client_states.get(("fedtilt", site)))


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


class Listener:
    """Stands between the sites and the SuperLink and keeps all that the sites send."""

    def __init__(self, port: int) -> None:
        self.heard = bytearray()
        self._port = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._welcome, daemon=True).start()

    def _welcome(self) -> None:
        while True:
            try:
                site, _ = self._door.accept()
            except OSError:
                return
            try:
                link = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # the link is not up yet, or down already: as a site would see it
                site.close()
                continue
            threading.Thread(target=self._pass, args=(site, link, self.heard), daemon=True).start()
            threading.Thread(target=self._pass, args=(link, site, bytearray()), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, heard: bytearray) -> None:
        with source, target:
            try:
                while part := source.recv(65536):
                    heard += part
                    target.sendall(part)
            except OSError:
                return

    def close(self) -> None:
        self._door.close()


def test_data_and_personal_models_are_not_in_anything_that_is_sent(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", SPEC, CANARY_TASK)
    trial, run = Trial(home=tmp_path / "trial", tls=False), tmp_path / "run"
    trial.home.mkdir()
    trial.mark, trial.port = "canary", free_port()
    trial.start_link()
    listener, real = Listener(trial.port), trial.port
    try:
        trial.port = listener.port  # for the sites alone
        for site in (0, 1):
            trial.start_node(site)
        trial.port = real
        number = trial.submit(app, {"out": str(run)})
        assert trial.wait_run(number, 400, sign=(run / "results.json").exists) == "finished:completed"
    finally:
        trial.down()
        listener.close()
    heard = bytes(listener.heard)
    own = [load_file(path)["model"].numpy() for site in (0, 1) for path in personal(trial, site).values()]
    assert len(own) == 4
    for model in own:
        for pair in model.reshape(-1, 2):  # eight bytes do not occur by chance
            assert pair.tobytes() not in heard
    for secret in (CANARY.tobytes(), np.float64(CANARY).tobytes(), b"canary", b"0.739184"):
        assert secret not in heard
    assert b"num-examples" in heard  # the listener did hear what the sites said
