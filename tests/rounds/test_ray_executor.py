"""Clients trained on a Ray cluster: the same bits as in one process, whatever dies or joins."""

import hashlib
import os
import signal
from collections.abc import Iterator

import pytest
import torch

import fedtilt as ft
from fedtilt.rounds.executors import BatchSettings, InProcessExecutor
from fedtilt.rounds.ray_executor import RayExecutor, _split
from fedtilt.simulation import Round
from fedtilt.training import LocalJob
from tests.helpers.ray_cluster import LoopbackCluster, loopback_cluster

ray = pytest.importorskip("ray")

FED = ft.Federation.build(ft.data.load("digits"), clients=8, partition="dirichlet", alpha=0.5, max_train=60, seed=1)
METHODS = [
    ft.fedtilt(tau=2, lam=1, mu=0.1),
    ft.fedtilt(tau=-1, lam=0, q=0.5, name="tilted server"),
    ft.Method(name="krum", aggregator="krum", bad_share=0.2),
]
SETTINGS = {"rounds": 2, "participation": 0.8, "epochs": 1, "momentum": 0.9, "seed": 3}


def digest(r: Round) -> str:
    """Of everything that the server and the clients keep."""
    values = [t for method in sorted(r.state.server) for _, t in sorted(r.state.server[method].items())]
    for owner in r.state.client_states.owners():
        values += [t for _, t in sorted(r.state.client_states.get(owner).items())]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in values)).hexdigest()


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


def make_executor(address: str, **arguments: object) -> RayExecutor:
    net = ft.models.build(ft.models.mlp, FED.input_shape, FED.classes, seed=0)
    options = {
        "device": torch.device("cpu"), "precision": "float32", "address": address, "workers": None, "stack_size": None,
        "timeout": 60.0, "notice": print,
    }  # fmt: skip
    return RayExecutor(FED, net, "autograd", BATCHES, **(options | arguments))


BATCHES = BatchSettings(seed=3, epochs=1, batch_size=10, last_batch="even")


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


def test_the_cluster_gives_the_same_bits_as_one_process(cluster: LoopbackCluster) -> None:
    assert simulated(cluster=cluster.address) == simulated(workers=0)


def test_a_worker_that_is_killed_changes_nothing(cluster: LoopbackCluster, executor: RayExecutor) -> None:
    jobs = jobs_of_round()
    net = ft.models.build(ft.models.mlp, FED.input_shape, FED.classes, seed=0)
    expected = dict(InProcessExecutor(FED, net, "autograd", BATCHES, torch.device("cpu"), "float32").train(4, jobs))
    results = {}
    for client, trained in executor.train(4, jobs):
        if not results:  # in the middle of the round
            os.kill(cluster.workers()[0], signal.SIGKILL)
        results[client] = trained
    assert sorted(results) == sorted(expected)
    for client, trained in results.items():
        for a, b in zip(trained, expected[client], strict=True):
            assert torch.equal(a.parameters, b.parameters)
