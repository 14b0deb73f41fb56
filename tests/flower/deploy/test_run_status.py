"""How far a run is, from the files that the server writes; and one site that is restarted."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from flwr.app import Message
from typer.testing import CliRunner

from fedtilt.cli.deploy import app
from fedtilt.cli.deploy_status import StatusServer
from fedtilt.files import write_json
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.run_status import run_statuses
from tests.helpers.loopback import Deployment


@pytest.fixture
def run(deployment: Deployment, tmp_path: Path) -> Path:
    """Two rounds; site 1 is silent in the second."""

    def silent(reply: Message, site: int, round: int) -> list[Message]:
        return [] if (site, round, reply.metadata.message_type) == (1, 2, "train") else [reply]

    deployment.run(silent, set="train.eval_every=1", quorum=0.5)
    return tmp_path / "run"


def test_a_finished_run(run: Path) -> None:
    ((folder, status),) = run_statuses(run.parent)
    last = [json.loads(line) for line in (run / "seed-0/metrics.jsonl").read_text().splitlines()][-1]
    first, metrics, *sites = status.lines
    assert (folder.name, first, status.has_ended) == ("run", "run: round 2 of 2, finished", True)
    assert metrics.startswith(f"after round 2: accuracy {last['personal']['accuracy']:.2f}  client fairness ")
    assert sites == ["site 0: round 2", "site 1: round 1; in round 2: did not reply in time"]


def test_the_time_that_is_left_follows_from_the_rounds_that_are_kept(run: Path) -> None:
    (run / "results.json").unlink()
    spec = (run / "spec.toml").read_text()
    (run / "spec.toml").write_text(spec[: spec.rindex("# sha256")].replace("rounds = 2", "rounds = 12"))
    for round in (0, 1, 2):
        os.utime(run / f"seed-0/checkpoints/round-{round:05d}/manifest.json", (1000 + 30 * round,) * 2)
    ((_, status),) = run_statuses(run.parent, now=1065.0)
    assert status.lines[0] == "run: round 2 of 12, about 5 min left, last recorded 5 s ago"
    assert not status.has_ended
    write_json(run / "stopped.json", {"reason": "too few sites"})
    ((_, status),) = run_statuses(run.parent)
    assert (status.lines[0], status.has_ended) == ("run: round 2 of 12, stopped: too few sites", True)


def test_the_spread_over_one_site_is_not_shown(run: Path) -> None:
    metrics = run / "seed-0/metrics.jsonl"
    last = json.loads(metrics.read_text().splitlines()[-1])
    last["personal"]["clients"] = 1
    metrics.write_text(json.dumps(last))
    ((_, status),) = run_statuses(run.parent)
    accuracy, worst = (f"{key} {last['personal'][key]:.2f}" for key in ("accuracy", "worst"))
    assert status.lines[1] == f"after round 2: {accuracy}  {worst}  (one site evaluated)"


def test_files_that_are_not_written_yet_are_no_error(run: Path, tmp_path: Path) -> None:
    assert list(run_statuses(tmp_path / "nothing")) == []
    metrics = run / "seed-0/metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-40])  # the last line is written just now
    ((_, status),) = run_statuses(run.parent)
    assert status.lines[1].startswith("after round 1: ")
    (run / "seed-0/participation.json").unlink()
    assert list(run_statuses(run.parent)) == []


def test_the_status_of_a_real_server(run: Path, tmp_path: Path) -> None:
    home = tmp_path / "server"
    (home / "runs").mkdir(parents=True)
    run.rename(home / "runs/mine-fedtilt")
    for options in ([], ["--watch"]):  # which ends, because nothing trains
        done = CliRunner().invoke(app, ["status", str(home), *options])
        assert done.exit_code == 0, done.output
        lines = done.output.splitlines()
        assert lines[0] == "mine-fedtilt: round 2 of 2, finished"
        assert lines[1].startswith("  after round 2: accuracy ")
        assert lines[2:4] == ["  site 0: round 2", "  site 1: round 1; in round 2: did not reply in time"]
        assert lines[4].startswith("  --back-to can be 0, 1, 2")


def test_a_cluster_is_watched_from_before_its_first_run_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [[], ["pending"], ["running"], ["finished:failed"], ["unexpected"]]
    (tmp_path / ".fedtilt").mkdir()
    (tmp_path / ".fedtilt/cluster.json").write_text("{}")
    cluster = LocalCluster(home=tmp_path / ".fedtilt", sites=2)
    for name, answer in {"running": [1], "problem": None, "connected_sites": 2, "stopped_sites": []}.items():
        monkeypatch.setattr(cluster, name, lambda answer=answer: answer)
    monkeypatch.setattr(cluster, "runs", lambda: [{"run-id": 7, "status": status} for status in answers.pop(0)])
    monkeypatch.setattr(LocalCluster, "load", lambda home: cluster)
    monkeypatch.setattr("fedtilt.cli.deploy.time.sleep", lambda seconds: None)
    done = CliRunner().invoke(app, ["status", str(tmp_path), "--watch"])
    assert [line for line in done.output.splitlines() if "run 7" in line] == [
        "run 7: pending", "run 7: running", "run 7: stopped"
    ]  # fmt: skip
    assert answers == [["unexpected"]]


@pytest.mark.slow
def test_one_site_is_restarted_with_its_own_settings(tmp_path: Path) -> None:
    cluster = LocalCluster(home=tmp_path, sites=2, node_config={1: {"data": "/a b.csv"}})
    cluster.up()
    try:
        before = {site: [process.pid for process in node] for site, node in cluster.nodes.items()}
        again = LocalCluster.load(tmp_path)
        os.kill(before[1][0], signal.SIGTERM)
        end = time.monotonic() + 60
        while not again.stopped_sites() and time.monotonic() < end:
            time.sleep(0.2)
        assert again.stopped_sites() == [1]
        again.restart_site(1)
        assert again.connected_sites() == 2
        assert again.stopped_sites() == []
        after = {site: [process.pid for process in node] for site, node in LocalCluster.load(tmp_path).nodes.items()}
        assert after[0] == before[0]
        assert not set(after[1]) & set(before[1])
        assert b'data="/a b.csv"' in Path(f"/proc/{after[1][0]}/cmdline").read_bytes()
    finally:
        LocalCluster.load(tmp_path).down()
    assert cluster.running() == []


def test_the_page_shows_the_status_of_the_runs(run: Path) -> None:
    with StatusServer("mine & yours", run.parent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(server.url) as reply:
            page = reply.read().decode()
        own = f"127.0.0.1:{server.server_port}"
        without_secret, below = f"http://{own}/", f"{server.url}/spec.toml"  # other users of the machine reach the port
        for url, host in ((without_secret, own), (below, own), (server.url, "elsewhere.example")):
            request = urllib.request.Request(url, headers={"Host": host})
            with pytest.raises(urllib.error.HTTPError, match="404") as error:
                urllib.request.urlopen(request)
            error.value.close()
        server.shutdown()
    assert "<h1>mine &amp; yours</h1><h2>run: round 2 of 2, finished</h2>" in page
    assert "after round 2: accuracy " in page
    assert "<li>site 1: round 1; in round 2: did not reply in time</li>" in page
    assert server.server_address[0] == "127.0.0.1"


def test_the_status_needs_no_pytorch() -> None:
    code = "import sys, fedtilt.cli.deploy_status; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
