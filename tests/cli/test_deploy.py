"""`fedtilt deploy`: from a new project to two trained sites, and one line for every error."""

import importlib
import json
import secrets
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

import fedtilt as ft
from fedtilt.cli.deploy import _check_user, app
from fedtilt.errors import InputError
from fedtilt.files import private_folder
from fedtilt.flower.deploy import processes
from fedtilt.flower.deploy.credentials import make_site_key
from fedtilt.flower.deploy.local_cluster import LocalCluster, free_port
from fedtilt.flower.deploy.processes import Process
from fedtilt.flower.deploy.project import site_tables
from fedtilt.flower.site_data import site_summary
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load


def deploy(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=True)
    if isinstance(done.exception, ft.InputError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_a_new_project_is_complete_reads_a_sites_own_table_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy("new", tmp_path / "Mine 2", "--sites", 3)
    (tmp_path / "table.csv").write_text("dose,diagnosis\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(40)))
    monkeypatch.chdir(tmp_path / "Mine 2")
    monkeypatch.syspath_prepend(str(tmp_path / "Mine 2"))
    modules = [importlib.import_module(f"federation.{name}") for name in ("task", "client", "server")]
    for name in ("federation", *(module.__name__ for module in modules)):
        del sys.modules[name]  # another project has modules of the same name
    given = modules[0].TASK
    task = given.resolve({})
    assert (task.method.name, task.spec.clients.count, task.spec.name) == ("fedtilt", 3, "mine-2")
    tables = {
        "data/site-1.csv": (142, ("benign", "malignant"), "mean_radius"),
        "../table.csv": (30, ("a", "b"), "dose"),
    }
    for table, (rows, classes, first) in tables.items():
        site = site_summary(given, task.spec, {"partition-id": 1, "data": table})
        assert (site.rows, tuple(site.classes), site.columns[0].name) == (rows, classes, first)
    with pytest.raises(ft.InputError, match="the table function returned None; give the SuperNode its table"):
        site_summary(given, task.spec, {"partition-id": 1})
    result = run_spec(load(tmp_path / "Mine 2/spec.toml", overrides=["train.rounds=2"]), tmp_path / "run")[0]
    assert result["fedtilt"].accuracy > 85


def test_a_new_project_has_a_majority_or_says_that_it_has_none(tmp_path: Path) -> None:
    assert "majority" not in deploy("new", tmp_path / "three")
    assert "count = 3 " in (tmp_path / "three/spec.toml").read_text()
    assert "note   two sites have no majority" in deploy("new", tmp_path / "two", "--sites", 2)


def test_example_tables_are_the_sites_of_a_local_cluster(tmp_path: Path) -> None:
    """In the order of their names, which is that of the simulator's clients; every site has enough rows."""
    deploy("new", tmp_path / "mine", "--sites", 12)
    tables = site_tables(tmp_path / "mine")
    assert [table.name for table in tables] == [f"site-{n:02d}.csv" for n in range(12)]
    assert {len(table.read_text().splitlines()) for table in tables} == {1 + 569 // 12}
    assert ft.data.table(tmp_path / "mine/data", target="diagnosis").client_names == tuple(t.stem for t in tables)
    assert site_tables(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "full"], "full is not empty"),
        (["new", "1st"], "'1st' is not a valid project name"),
        (["new", "mine", "--sites", "0"], "needs at least one site, got 0"),
        (["up", "full"], "full is not a Flower project"),
        (["run", "project"], "no local cluster was started"),
        (["down", "project"], "no local cluster was started"),
        (["status", "project"], "no local cluster was started"),
        (["up", "project", "--node-config", "data=1"], "is not SITE:KEY=VALUE"),
        (["up", "project", "--node-config", "3:data=1"], "is for site 3, and the sites are 0 to 2"),
        (["site", "s", "--site", "0", "--server", "a:1", "--ca", "none"], "none does not exist; copy ca.crt"),
        (
            ["site", "s", "--site", "0", "--server", "a:1", "--ca", "full/file", "--node-config", "x"],
            "is not KEY=VALUE",
        ),
        (["register", "full", "--site", "0", "--key", "k"], "full is not the folder of a server"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    deploy("new", "project")
    with pytest.raises(ft.InputError) as error:
        deploy(*arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "mine"],
        ["server", "home", "--host", "fl.example.org"],
        ["site", "home", "--site", "0", "--server", "a:1", "--ca", "mine/pyproject.toml"],
    ],
)
def test_nothing_starts_or_is_set_up_as_root_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDTILT_ALLOW_ROOT")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    deploy("new", "mine")
    with pytest.raises(ft.InputError, match=r"as root would run the project's code as root; .* or add --allow-root$"):
        deploy(*arguments)
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "mine/.fedtilt").exists()


def test_a_site_allows_the_project_whose_digest_the_server_prints(tmp_path: Path) -> None:
    deploy("new", tmp_path / "mine")
    digest = deploy("digest", tmp_path / "mine").strip()
    assert deploy("allow", tmp_path / "site", tmp_path / "mine").endswith(f"this site runs {digest}\n")
    assert deploy("allow", tmp_path / "site", digest).endswith(f"this site runs {digest}\n")
    assert (tmp_path / "site/allowed_apps").read_text() == f"{digest}\n"
    with pytest.raises(ft.InputError, match="is not a Flower project"):
        deploy("allow", tmp_path / "site", tmp_path)


def test_the_files_of_a_server_and_a_site_are_usable_and_private(tmp_path: Path) -> None:
    server, site = tmp_path / "server", tmp_path / "site"
    deploy("server", server, "--host", "fl.example.org", "--host", "10.0.0.1")
    authority, secret = (server / "certificates/ca.crt").read_bytes(), (server / "link/executor.secret").read_bytes()
    deploy("server", server, "--host", "fl.example.org")
    assert (server / "certificates/ca.crt").read_bytes() == authority  # renewed, by the same authority
    assert (server / "link/executor.secret").read_bytes() == secret
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=server / "certificates/ca.crt")
    context.load_cert_chain(server / "certificates/server.crt", server / "certificates/server.key")
    arguments = ["--site", 3, "--server", "fl.example.org:9092", "--ca", server / "certificates/ca.crt"]
    deploy("site", site, *arguments, "--node-config", "data='/srv/a \"b\" 50%.csv'")
    key = (site / "site.key.pub").read_text()
    assert key.startswith("ecdsa-sha2-nistp384 ")
    deploy("site", site, *arguments)
    assert (site / "site.key.pub").read_text() == key  # a new one would lock the site out
    for folder in (server, site):
        assert folder.stat().st_mode & 0o077 == 0
    for name in ("server/certificates/ca.key", "server/certificates/server.key", "server/link/executor.secret",
                 "server/link/control.token", "server/flwr/credentials.yaml", "site/site.key", "site/executor.secret",
                 "site/port/server.key"):  # fmt: skip
        assert (tmp_path / name).stat().st_mode & 0o077 == 0, name


def test_a_key_of_a_server_that_does_not_run_is_not_bound(tmp_path: Path) -> None:
    deploy("server", tmp_path, "--host", "fl.example.org", "--superlink-port", free_port())
    make_site_key(tmp_path / "site.key")
    with pytest.raises(ft.InputError, match="flwr supernode failed"):
        deploy("register", tmp_path, "--site", 0, "--key", tmp_path / "site.key.pub")
    assert list((tmp_path / "keys").iterdir()) == []


def test_a_cluster_whose_superlink_was_killed_is_broken_not_up(tmp_path: Path) -> None:
    deploy("new", tmp_path / "mine")
    home = private_folder(tmp_path / "mine/.fedtilt")
    cluster = LocalCluster(home=home, id=secrets.token_hex(8), link=[Process(2**22 + 1, "1")])
    env, python = processes.environment(cluster.id, home), Path(sys.executable).name
    node = processes.start([python, "-c", "import time; time.sleep(99)"], env, home / "log.txt", home)
    cluster.nodes[0] = [node]
    cluster._save()
    problem = f"the SuperLink of the local cluster in {home} has stopped; see {home}/link/log.txt, "
    problem += "then run fedtilt deploy down and fedtilt deploy up"
    assert deploy("status", tmp_path / "mine") == f"broken: {problem}\nprocesses: {node.pid}\n"
    with pytest.raises(ft.InputError) as error:
        deploy("run", tmp_path / "mine")
    assert str(error.value) == problem
    assert deploy("down", tmp_path / "mine") == "down: stopped 1 process\n"
    assert deploy("status", tmp_path / "mine") == "down: no process is running\n"


def test_a_server_without_a_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert deploy("status", tmp_path) == f"no run of a federation in {tmp_path / 'runs'} yet\n"


def test_without_flower_the_help_lists_the_commands_and_their_error_says_how_to_install_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['flwr'] = None; from fedtilt.cli.deploy import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", code]
    done = subprocess.run([*command, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Write a small Flower project" in done.stdout
    done = subprocess.run([*command, "new", "mine"], cwd=tmp_path, capture_output=True, text=True)
    assert 'which is not installed; pip install "flwr<1.42,>=1.41"' in " ".join(done.stderr.split())
    assert not (tmp_path / "mine").exists()


def check_log(folder: Path, metrics: Path) -> None:
    """Compare the log of a deployment with what the server has recorded."""
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(tracking_uri=str(folder))
    (run,) = client.search_runs([client.get_experiment_by_name("fedtilt").experiment_id])
    assert run.info.status == "FINISHED"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    logged = client.get_metric_history(run.info.run_id, "fedtilt/accuracy")
    assert {m.step: m.value for m in logged} == {line["round"]: line["personal"]["accuracy"] for line in lines}


@pytest.mark.slow
def test_from_a_new_project_to_two_trained_sites_over_tls(tmp_path: Path) -> None:
    project = tmp_path / "mine"
    deploy("new", project, "--sites", 2)
    assert "over TLS, with registered keys" in deploy("up", project)
    try:
        with pytest.raises(ft.InputError, match="a local cluster is running"):
            deploy("up", project)
        assert "2 of 2 sites are connected" in deploy("status", project)
        output = deploy("run", project, "--set", "train.rounds=2", "--log", f"mlflow:{tmp_path / 'mlruns'}")
        assert "accuracy" in output
        check_log(tmp_path / "mlruns", project / ".fedtilt/link/runs/mine-fedtilt/seed-0/metrics.jsonl")
        assert (project / ".fedtilt/link/runs/mine-fedtilt/report.html").stat().st_size > 10_000
    finally:
        deploy("down", project)
    assert LocalCluster.load(project / ".fedtilt").running() == []
    assert "down" in deploy("status", project)
    for site in (0, 1):
        (path,) = (project / f".fedtilt/site-{site}/state").rglob("report.json")
        report = json.loads(path.read_text())
        assert report["kept"] == ["personal"]
        assert Path(report["file"]).exists()
    with pytest.raises(ft.InputError, match="is down; start it"):
        deploy("run", project)
    deploy("up", project)  # with the registered keys
    try:
        finished, second = deploy("run", project, "--set", "train.rounds=2").split("\n", 1)
        assert "was already finished" in finished
        assert output.endswith(second)
    finally:
        deploy("down", project)


@pytest.mark.parametrize("command", ["up", "server", "site"])
def test_windows_has_no_processes_of_a_deployment(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(InputError, match=f"fedtilt deploy {command} does not run on Windows; use Linux, or WSL"):
        _check_user(command, allow_root=True)
