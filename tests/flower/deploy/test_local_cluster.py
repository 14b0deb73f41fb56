"""The life cycle of a local cluster: what two commands at once, a killed process and a restart do."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import fedtilt as ft
from fedtilt.files import read_json, write_json
from fedtilt.flower.deploy import processes, programs
from fedtilt.flower.deploy.allowed_apps import ALLOWED_VARIABLE
from fedtilt.flower.deploy.local_cluster import LocalCluster, cluster_home
from fedtilt.flower.deploy.processes import Process
from tests.helpers.locked_elsewhere import locked_elsewhere
from tests.helpers.network import write_app
from tests.helpers.toy_federation import SPEC


def sleeping_process(cluster: LocalCluster, folder: str) -> Process:
    env = processes.environment(cluster.id, cluster.home)
    command = [Path(sys.executable).name, "-c", "import time; time.sleep(99)"]
    return processes.start(command, env, cluster.home / folder / "log.txt", cluster.home)


def test_sites_share_the_cores_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty sites with a thread per core each spend their time waiting for each other; the user's own value stays."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for sites, threads in ((2, "8"), (50, "1")):
        assert LocalCluster(home=tmp_path, sites=sites)._environment(tmp_path)["OMP_NUM_THREADS"] == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv(ALLOWED_VARIABLE, "/another/file")
    env = LocalCluster(home=tmp_path)._environment(tmp_path)
    assert env["OMP_NUM_THREADS"] == "3"
    assert env[ALLOWED_VARIABLE] == str(tmp_path / "allowed_apps")


@pytest.mark.parametrize("command", [LocalCluster.up, LocalCluster.down])
def test_two_commands_cannot_start_or_stop_a_cluster_at_once(
    tmp_path: Path, command: Callable[[LocalCluster], object]
) -> None:
    cluster = LocalCluster(home=tmp_path)
    with locked_elsewhere(tmp_path), pytest.raises(ft.InputError) as error:
        command(cluster)
    assert str(error.value) == f"another command starts or stops the local cluster in {tmp_path}; wait for it"
    assert not (tmp_path / "cluster.json").exists()  # it has not replaced what the other command writes


def test_a_run_is_waited_for_on_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flwr list` takes minutes where dozens of sites start; the SuperLink is alive all the while."""
    cluster, answers = (
        LocalCluster(home=tmp_path),
        [programs.NoAnswer("busy"), {"runs": [{"status": "finished:failed"}]}],
    )

    def flwr(env: object, *arguments: str) -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(programs, "run_flwr_json", flwr)
    monkeypatch.setattr(LocalCluster, "problem", lambda cluster: None)
    assert cluster.wait_for_run(7, is_done=lambda: True) == "finished:failed"
    with pytest.raises(programs.NoAnswer, match="flwr list has no answer after 0 s; is the SuperLink up"):
        programs.run_flwr(dict(os.environ), "list", timeout=0.0001)


def test_two_runs_at_once_have_their_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, both_submitted, rounds = LocalCluster(home=tmp_path), threading.Barrier(2), {}

    def flwr(env: object, *arguments: str) -> dict[str, int]:
        both_submitted.wait(30)  # a submission takes a second or two, in which another one may come
        rounds[arguments[1]] = tomllib.loads(Path(arguments[-1]).read_text())["set"]
        return {"run-id": 1}

    monkeypatch.setattr(programs, "run_flwr_json", flwr)
    apps = [str(write_app(tmp_path / name)) for name in "ab"]
    settings = dict(zip(apps, ("train.rounds=1", "train.rounds=2"), strict=True))
    threads = [threading.Thread(target=cluster.submit, args=(Path(a), {"set": s})) for a, s in settings.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rounds == settings
    assert list((tmp_path / "submissions").glob("*.toml")) == []


def test_a_second_run_is_refused_while_one_trains(tmp_path: Path) -> None:
    cluster = LocalCluster(home=tmp_path)
    with locked_elsewhere(tmp_path / "submissions"), pytest.raises(ft.InputError) as error, cluster.training():
        pass
    assert str(error.value) == f"another fedtilt deploy run trains on the local cluster in {tmp_path}; wait for it"


def test_a_cluster_without_its_superlink_is_not_up(tmp_path: Path) -> None:
    cluster = LocalCluster(home=tmp_path, id=secrets.token_hex(8), tls=False)
    assert cluster.problem() == f"the local cluster in {tmp_path} is down; start it with fedtilt deploy up"
    cluster.nodes = {0: [sleeping_process(cluster, "site-0")], 1: [Process(os.getpid(), "of an earlier process")]}
    cluster.link = [Process(os.getpid(), "of an earlier process")]
    try:
        assert cluster.problem() == (
            f"the SuperLink of the local cluster in {tmp_path} has stopped; see {tmp_path}/link/log.txt, "
            "then run fedtilt deploy down and fedtilt deploy up"
        )
        assert cluster.stopped_sites() == [1]
        with pytest.raises(ft.InputError, match="has stopped"):
            cluster.wait_for_run(7)
        with pytest.raises(ft.InputError, match=f"SuperNode of site 1 has stopped; see {tmp_path}/site-1/log.txt"):
            cluster.wait_for_sites(2)
    finally:
        assert len(cluster.down()) == 1


@pytest.mark.parametrize(
    "damage", [{}, {"link": 3}, {"link": [], "nodes": [], "id": "x"}, {"link": [], "nodes": {"a": []}}]
)
def test_a_damaged_cluster_file_is_one_line(tmp_path: Path, damage: dict) -> None:
    write_json(tmp_path / "cluster.json", damage)
    with pytest.raises(ft.InputError, match=r"cluster.json is damaged or of another version .*; delete it"):
        LocalCluster.load(tmp_path)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    cluster = LocalCluster(home=tmp_path.resolve(), id="x", link=[Process(1, "2")], nodes={0: [Process(3, "4")]})
    cluster._save()
    assert LocalCluster.load(tmp_path) == cluster


@pytest.mark.slow
def test_a_restarted_cluster_has_live_sites_and_a_killed_superlink_is_named(tmp_path: Path) -> None:
    app, cluster = (
        write_app(tmp_path / "app", SPEC.replace("rounds = 2", "rounds = 1")),
        LocalCluster(home=tmp_path / "c"),
    )
    cluster.up()
    try:
        for _ in range(3):
            cluster.down()
            assert cluster.running() == []
            cluster = LocalCluster(home=tmp_path / "c")
            cluster.up()
            assert cluster.stopped_sites() == []
            assert cluster.connected_sites() == 2
        out = tmp_path / "run"
        number = cluster.submit(app, {"out": str(out)})
        assert cluster.wait_for_run(number, 300, is_done=(out / "results.json").exists) == "finished:completed"
        assert read_json(out / "seed-0/participation.json")["rounds"]["1"]["accepted"] == [0, 1]
        for process in cluster.link:
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ft.InputError, match="the SuperLink of the local cluster in .* has stopped"):
            cluster.wait_for_run(number)
        cluster.down()  # the SuperLink was never told that its sites are gone
        notices: list[str] = []
        cluster = LocalCluster(home=tmp_path / "c")
        cluster.up(notice=notices.append)
        assert (len(notices), cluster.stopped_sites(), cluster.connected_sites()) == (1, [], 2)
    finally:
        cluster.down()
    assert cluster.running() == []


@pytest.mark.slow
def test_the_template_trains_where_nothing_of_the_project_has_run_before(tmp_path: Path) -> None:
    """Empty HOME, temporary folder and caches; every command is a process of its own, as a user types them."""
    folders = {
        name: tmp_path / name for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    }
    for folder in folders.values():
        folder.mkdir()
    prefixes = ("FLWR", "FEDTILT", "TORCH", "TRITON", "RAY", "HF", "XDG")
    env = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    env |= {name: str(folder) for name, folder in folders.items()}
    project, out = tmp_path / "project", tmp_path / "run"

    def fedtilt(*arguments: str) -> str:
        command = [sys.executable, "-m", "fedtilt", "deploy", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    fedtilt("new", str(project))
    try:
        assert "3 sites are connected" in fedtilt("up", str(project), "--allow-root")
        fedtilt("run", str(project), "--set", "train.rounds=1", "--out", str(out))
    finally:
        fedtilt("down", str(project))
    assert read_json(out / "seed-0/participation.json")["rounds"]["1"]["accepted"] == [0, 1, 2]
    assert (out / "results.json").exists()
    assert LocalCluster.load(cluster_home(project)).running() == []
    assert list(folders["TMPDIR"].iterdir()) == []
