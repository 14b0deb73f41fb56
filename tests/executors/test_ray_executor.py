"""Clients trained on a Ray cluster: bit-identical to one process, whatever dies or joins."""

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.cluster.connection import connected
from fedtilt.cluster.remote_tensor import RemoteTensor
from fedtilt.cluster.tasks import Report, run_tasks
from fedtilt.engine.prepare import prepare
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import Diverged
from fedtilt.executors import ray_executor, sharded_models
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.executors.ray_executor import RayExecutor, _split
from fedtilt.math import client_models
from fedtilt.simulation import Round, simulate_prepared
from fedtilt.training import LocalJob, Trained
from tests.helpers.digests import digest
from tests.helpers.ray_cluster import LoopbackCluster, loopback_cluster

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")  # importing it takes long

FED = ft.Federation.build(ft.data.load("digits"), clients=8, partition="dirichlet", alpha=0.5, max_train=60, seed=1)
METHODS = [
    ft.fedtilt(tau=2, lam=1, mu=0.1),
    ft.fedtilt(tau=-1, lam=0, q=0.5, name="tilted server"),
    ft.ditto(name="krum", aggregator={"rule": "krum", "bad_share": 0.2}),
]
Results = dict[int, list[Trained]]
SETTINGS = {"rounds": 2, "participation": 0.8, "epochs": 1, "momentum": 0.9, "seed": 3}


def simulated(**settings: object) -> list[str]:
    return [digest(r) for r in ft.simulate(METHODS, FED, ft.models.mlp, **(SETTINGS | settings))]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LoopbackCluster]:
    """One node with two CPUs."""
    with loopback_cluster(head_cpus=2) as started:
        yield started


@pytest.fixture
def executor(cluster: LoopbackCluster) -> Iterator[RayExecutor]:
    made = make_executor(cluster.address)
    try:
        yield made
    finally:
        made.close()


def training(backend: str = "autograd") -> ClientTraining:
    net = ft.models.build(ft.models.mlp, FED.input_shape, FED.classes, seed=0)
    return ClientTraining(FED, net, backend, BatchSettings(seed=3, epochs=1, batch_size=10, last_batch="even"))


def trained_alone(round: int, jobs: dict[int, list[LocalJob]], backend: str = "autograd", **arguments: int) -> Results:
    """What one process gives."""
    executor = InProcessExecutor(training(backend), torch.device("cpu"), "float32", **arguments)
    return dict(executor.train(round, jobs))


def assert_equal(a: Results, b: Results) -> None:
    assert sorted(a) == sorted(b)
    for client, trained in a.items():
        for x, y in zip(trained, b[client], strict=True):
            assert torch.equal(x.parameters, y.parameters)


def make_executor(address: str, backend: str = "autograd", **arguments: object) -> RayExecutor:
    options = {
        "device": torch.device("cpu"), "precision": "float32", "address": address, "workers": None, "stack_size": None,
        "timeout": 600.0, "notice": print,
    }  # fmt: skip
    return RayExecutor(training(backend), **(options | arguments))


def jobs_of_round() -> dict[int, list[LocalJob]]:
    net = ft.models.build(ft.models.mlp, FED.input_shape, FED.classes, seed=0)
    w = ft.models.parameters_to_vector(net)
    v = {client: w + 0.01 * client for client in range(FED.clients)}
    settings = {"prox": 0.1, "tau": 1.0, "lam": 0.0, "lr": 0.05}
    return {
        client: [LocalJob(start=w, anchor=w, **settings), LocalJob(start=v[client], anchor=w, **settings)]
        for client in range(FED.clients)
    }


def test_what_clients_have_in_common_is_sent_once() -> None:
    jobs = jobs_of_round()
    shared, own = _split(jobs)
    assert len(shared) == 1
    assert shared[0] is jobs[0][0].start
    assert own[3][0].start == own[3][1].anchor  # both stand for the shared tensor
    assert own[3][1].start is jobs[3][1].start


@pytest.mark.slow
def test_an_error_of_a_task_names_the_task(cluster: LoopbackCluster) -> None:
    def diverges(report: Report, notice: Callable[[str], None]) -> None:
        raise Diverged("w is not finite; lower lr", methods=["a"])

    with connected(cluster.address) as ray, pytest.raises(ft.InputError, match="^seed 3: w is not finite; lower lr$"):
        run_tasks(ray, {"seed 3": diverges}, gpu=False, notice=print)


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of a round stay on the nodes, in two blocks; Ray would send less than 100 KiB with the reply."""
    clients, columns = 6, 28_000
    monkeypatch.setattr(sharded_models, "SHARDED_BYTES", 0)
    monkeypatch.setattr(client_models, "_CHUNK_BYTES", 8 * clients * columns)
    monkeypatch.setattr(client_models, "BLOCK_BYTES", 4 * clients * columns)


@pytest.mark.slow
@pytest.mark.usefixtures("sharded")
def test_models_on_the_nodes_give_the_same_bits_with_a_worker_killed(cluster: LoopbackCluster) -> None:
    digests = []
    for r in ft.simulate(METHODS, FED, ft.models.mlp, **SETTINGS, cluster=cluster.address):
        digests.append(digest(r))
        if r.number == 1:
            kept = r.state.client_states.get(("krum", r.selected[0]), fetch=False).personal
            assert isinstance(kept, RemoteTensor)
            assert len(kept.references) == 2
            os.kill(cluster.workers()[0], signal.SIGKILL)
    assert digests == simulated(workers=0)


@pytest.mark.slow
def test_the_cluster_gives_the_same_bits_as_one_process_with_a_worker_killed(cluster: LoopbackCluster) -> None:
    digests = []
    for r in ft.simulate(METHODS, FED, ft.models.mlp, **SETTINGS, cluster=cluster.address):
        digests.append(digest(r))
        if r.number == 1:
            os.kill(cluster.workers()[0], signal.SIGKILL)
    assert digests == simulated(workers=0)


@pytest.mark.slow
def test_models_stay_on_the_nodes_once_moving_them_is_seen_to_cost_more(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "_LARGE_BYTES", 2**18)  # two models have 440 kB
    monkeypatch.setattr(ray_executor, "_IDLE_SHARE", -1.0)
    jobs, made = jobs_of_round(), make_executor(cluster.address, on_nodes=None)
    try:
        rounds = []
        for number in (1, 2, 3):  # the first one starts workers, the second one is measured
            rounds.append((made.on_nodes, dict(made.train(number, jobs))))
        assert [on_nodes for on_nodes, _ in rounds] == [False, False, True]
        assert isinstance(rounds[2][1][0][0].parameters, RemoteTensor)
        assert_equal(rounds[2][1], trained_alone(3, jobs))
    finally:
        made.close()


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_of_a_round_changes_nothing(
    cluster: LoopbackCluster, executor: RayExecutor
) -> None:
    jobs = jobs_of_round()
    results = {}
    for client, trained in executor.train(4, jobs):
        if not results:  # in the middle of the round
            os.kill(cluster.workers()[0], signal.SIGKILL)
        results[client] = trained
    assert_equal(results, trained_alone(4, jobs))


@pytest.mark.slow
def test_an_error_of_the_data_is_raised_as_on_one_machine(cluster: LoopbackCluster, executor: RayExecutor) -> None:
    jobs = {0: jobs_of_round()[0]}
    jobs[0][0] = dataclasses.replace(jobs[0][0], loss=refusing)
    with pytest.raises(ft.InputError, match=r"^no loss for 10 outputs$"):
        list(executor.train(1, jobs))


def refusing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise ft.InputError(f"no loss for {outputs.shape[-1]} outputs")


@pytest.mark.slow
@pytest.mark.parametrize("stack_size", [None, 3])
def test_stacks_of_clients_are_split_among_workers(cluster: LoopbackCluster, stack_size: int | None) -> None:
    """As on GPUs: each worker trains a stack, of the same width on any number of workers."""
    jobs = jobs_of_round()
    made = make_executor(cluster.address, backend="stacked", stack_size=stack_size)
    try:
        assert [len(clients) for clients in made._stacks(list(jobs))] == ([3, 3, 2] if stack_size else [4, 4])
        results = dict(made.train(2, jobs))
    finally:
        made.close()
    assert_equal(results, trained_alone(2, jobs, "stacked", stack_size=stack_size or 4))


@pytest.mark.slow
@pytest.mark.parametrize("on_nodes", [False, True])
def test_three_nodes_one_killed_in_the_middle_of_a_round_one_joins(
    on_nodes: bool, request: pytest.FixtureRequest
) -> None:
    """Two nodes with a CPU each, and a head without: a node dies, its clients are trained again, another joins.

    With the models on the nodes, those of the dead one are lost, and the run goes back.
    """
    if on_nodes:
        request.getfixturevalue("sharded")
    notices: list[str] = []
    with loopback_cluster(1, 1) as cluster:
        settings = SETTINGS | {"rounds": 60, "eval_every": 60, "cluster": cluster.address}
        prepared = prepare(METHODS, FED, ft.models.mlp, TrainSettings(**settings))
        killed_in, ended = None, ""
        for r in simulate_prepared(prepared, notice=notices.append):
            if killed_in is None:
                if (nodes_with_models(r) if on_nodes else len(cluster.workers())) == 2:
                    threading.Timer(0.05, cluster.kill_node, [cluster.other_node()]).start()  # in the next round
                    killed_in = r.number + 1
            elif r.number == killed_in:
                cluster.add_node()
            else:
                ended = digest(r)
                break
    assert killed_in
    assert ended == simulated(workers=0, rounds=killed_in + 1)[-1]
    if on_nodes:
        assert [text for text in notices if "a node died with models" in text]


def nodes_with_models(r: Round) -> int:
    states = r.state.client_states
    kept = [tensor for owner in states.owners() for tensor in states.get(owner, fetch=False).to_tensors().values()]
    return len({tensor.node for tensor in kept if isinstance(tensor, RemoteTensor)})


@pytest.mark.slow
def test_a_run_without_workers_waits_and_then_stops_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtilt.cluster.pool._MESSAGE_SECONDS", 1.0)
    notices: list[str] = []
    with loopback_cluster() as cluster:  # no node has a CPU
        made = make_executor(cluster.address, timeout=3.0, notice=notices.append)
        try:
            with pytest.raises(ft.InputError, match=r"^no worker of the cluster started within 3 s; add a node"):
                list(made.train(1, jobs_of_round()))
        finally:
            made.close()
    assert [text.split(";")[0] for text in notices] == ["no worker of the cluster is ready yet"]


@pytest.mark.slow
def test_a_node_with_another_version_is_refused_before_training(tmp_path: Path) -> None:
    metadata = tmp_path / "fedtilt-0.0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fedtilt\nVersion: 0.0.1\n")
    with loopback_cluster() as cluster:
        cluster.add_node(PYTHONPATH=str(tmp_path))
        with pytest.raises(ft.InputError, match=r"^node .* has fedtilt 0\.0\.1, and this process has .*; install the"):
            simulated(cluster=cluster.address)


@pytest.mark.slow
def test_after_the_driver_is_killed_the_run_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    with loopback_cluster(head_cpus=2) as cluster:
        script = (
            "import os, signal, fedtilt as ft\n"
            "from tests.executors.test_ray_executor import FED, METHODS, SETTINGS\n"
            "class Kill(ft.Callback):\n"
            "    def on_round(self, round, metrics):\n"
            "        if round.number == 3:\n"
            "            os.kill(os.getpid(), signal.SIGKILL)\n"
            f"ft.run(METHODS, FED, ft.models.mlp, **(SETTINGS | {{'rounds': 4}}), cluster={cluster.address!r},\n"
            f"       out={str(tmp_path / 'run')!r}, checkpoint_seconds=0, callbacks=[Kill()])\n"
        )
        root = Path(__file__).parents[2]
        killed = subprocess.run([sys.executable, "-c", script], cwd=root, check=False)
        assert killed.returncode == -signal.SIGKILL
        result = ft.run(
            METHODS, FED, ft.models.mlp, **(SETTINGS | {"rounds": 4}), cluster=cluster.address, out=tmp_path / "run"
        )
    alone = ft.run(METHODS, FED, ft.models.mlp, **(SETTINGS | {"rounds": 4}), workers=0)
    for method in METHODS:
        a, b = (r[method.name].shared.state_dict() for r in (result, alone))
        assert all(torch.equal(a[name], b[name]) for name in a)
