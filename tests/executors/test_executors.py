"""Executors carry any job: workers and this process are bit-identical, whatever the plan and the recipe."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.attacks.attack import AttackedFederation
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.forked import ForkedExecutor, ResultRows, SharedBlock
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.executors.sharded_models import stack_models
from fedtilt.executors.spawned import SpawnedExecutor, _interrupts_ignored, default_workers
from fedtilt.models import parameters_to_vector
from fedtilt.optimizers import SGD, Adam
from fedtilt.training import LocalJob, Trained, make_batches
from tests.helpers import plain_loop

FED = plain_loop.federation(clients=5, samples=30)
BATCHES = BatchSettings(seed=3, epochs=2, batch_size=10, last_batch="even")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 10))


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.softmax(1) - nn.functional.one_hot(labels, 10)).square().sum(1)


def test_workers_train_everything_as_this_process_does() -> None:
    model = net()
    model[1].requires_grad_(False)
    methods = [ft.fedavg(), ft.ditto(0.1), ft.fedtilt(5, -2, mu=0.5, personal_start="initial"), ft.methods.local()]
    recipe = {
        "rounds": 3, "local_steps": 4, "lr": 0.05,
        "optimizer": SGD(momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=1.0),
        "schedule": {"name": "cosine", "warmup_rounds": 1}, "loss": squared, "local": ["4.bias"],
        "buffers": "local", "server_optimizer": {"rule": "yogi", "lr": 0.1}, "participation": 0.6,
    }  # fmt: skip
    in_process, forked = (plain_loop.last_round(methods, FED, model, workers=n, **recipe).state for n in (0, 2))
    for method in methods:
        assert in_process.server[method.name].to_tensors().keys() == {
            "parameters", "optimizer.momentum", "optimizer.second_moment",
        }  # fmt: skip
        for name, tensor in in_process.server[method.name].to_tensors().items():
            assert torch.equal(tensor, forked.server[method.name].to_tensors()[name])
    assert in_process.client_states.owners() == forked.client_states.owners()
    for owner in in_process.client_states.owners():
        kept = in_process.client_states.get(owner).to_tensors()
        assert kept.keys() >= {"local", "buffers"}
        for name, tensor in kept.items():
            assert torch.equal(tensor, forked.client_states.get(owner).to_tensors()[name])


def test_models_of_workers_are_rows_of_one_tensor_which_is_not_copied() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    start = parameters_to_vector(model)
    job = LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1)
    executor = ForkedExecutor(ClientTraining(FED, model, "autograd", BATCHES), 2, [job])
    try:
        trained = dict(executor.train(1, {client: [job] for client in (3, 0, 4, 1)}))
    finally:
        executor.close()
    models = [trained[client][0].parameters for client in sorted(trained)]
    assert stack_models(models).data_ptr() == models[0].data_ptr()


def test_workers_end_by_themselves_while_those_of_a_later_run_live() -> None:
    model = net()
    start = parameters_to_vector(model)
    job = LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1)
    first, later = (ForkedExecutor(ClientTraining(FED, model, "autograd", BATCHES), 2, [job]) for _ in range(2))
    try:
        first.close()
        assert [process.exitcode for process in first._processes] == [0, 0]  # not killed
    finally:
        later.close()


@pytest.mark.parametrize("outliers", ["none", "corruptions"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])  # an epoch has three
def test_a_few_steps_have_the_first_batches_of_all(outliers: str, steps: int) -> None:
    digits = ft.data.load("digits")
    fed = ft.Federation.build(digits, clients=4, partition="iid", max_train=30, outliers=outliers)
    attacked = AttackedFederation.of(fed, ft.Attack(kind="backdoor", clients=("1",)), seed=0)
    start = torch.zeros(1)
    job = LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1, steps=steps)
    for client in (0, 1):
        x, y = attacked.train(client, seed=3, round=2)
        whole = make_batches(x, y, seed=3, round=2, client=client, epochs=-(-steps // 3), batch_size=10)
        batches = BATCHES.of_clients(attacked, 2, {client: [job]}, torch.device("cpu"))[client]
        assert len(batches.y) == min(10 * steps, 30)
        expected, found = list(whole.of(job)), list(batches.of(job))
        assert len(found) == steps
        assert batches.key == whole.key  # of dropout
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)


def jobs_of(client: int, model: nn.Module, count: int) -> list[LocalJob]:
    """Jobs of a client, each with a start, an anchor and buffers of its own."""
    rng = torch.Generator().manual_seed(client)
    theta = parameters_to_vector(model)
    draw = partial(torch.randn, len(theta), generator=rng)
    statistics = torch.cat([torch.zeros(8), torch.ones(8), torch.zeros(1)])
    return [
        LocalJob(
            start=theta + 0.1 * draw(), anchor=theta + 0.1 * draw(), prox=0.5 + i, tau=1.0, lam=float("-inf"), lr=0.05,
            epochs=1 + i % 2, buffer_names=("2.running_mean", "2.running_var", "2.num_batches_tracked"),
            buffers=statistics + 0.01 * torch.rand(17, generator=rng), optimizer=SGD(momentum=0.5), loss=squared,
        )
        for i in range(count)
    ]  # fmt: skip


def test_every_job_may_have_its_own_anchor() -> None:
    """Five clients with four jobs, twenty anchors: more than two per method and client."""
    model = net()
    jobs = {client: jobs_of(client, model, count=4) for client in range(5)}
    forked = ForkedExecutor(ClientTraining(FED, model, "autograd", BATCHES), workers=2, jobs=jobs[0])
    try:
        by_worker = dict(forked.train(7, jobs))
    finally:
        forked.close()
    in_process = InProcessExecutor(ClientTraining(FED, model, "autograd", BATCHES), torch.device("cpu"), "float32")
    for client, results in in_process.train(7, jobs):
        for a, b in zip(results, by_worker[client], strict=True):
            assert torch.equal(a.parameters, b.parameters)
            assert torch.equal(a.buffers, b.buffers)
        assert len({result.parameters.sum().item() for result in results}) == 4


def test_a_block_carries_every_field_of_a_job() -> None:
    jobs = jobs_of(0, net(), count=2)
    constants = [jobs[0].optimizer, jobs[0].loss, jobs[0].buffer_names, jobs[0].outer]
    block = SharedBlock(memoryview(bytearray(4 * 3 * 2 * len(jobs[0].start))), constants)
    for before, after in zip(jobs, block.read_jobs(block.write_jobs(jobs)), strict=True):
        for field in dataclasses.fields(LocalJob):
            a, b = getattr(before, field.name), getattr(after, field.name)
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
    results = [Trained(torch.ones(5), None), Trained(torch.zeros(5), torch.full((2,), 3.0))]
    read = block.read_results(block.write_results(results), partial(ResultRows([0]).copy, 0))
    for before, after in zip(results, read, strict=True):
        for a, b in zip(before, after, strict=True):
            assert b is None if a is None else torch.equal(a, b)


def test_a_job_that_a_block_cannot_carry_is_refused() -> None:
    job = jobs_of(0, net(), count=1)[0]
    constants = [job.optimizer, job.loss, job.buffer_names, job.outer]
    block = SharedBlock(memoryview(bytearray(4 * 3 * len(job.start))), constants)
    other = dataclasses.replace(job, optimizer=Adam())
    with pytest.raises(RuntimeError, match=r"optimizer of a job is Adam\(.*the workers were not"):
        block.write_jobs([other])
    with pytest.raises(RuntimeError, match="no room for torch.float32"):
        block.write_jobs(jobs_of(1, net(), count=2))


class FailsInAProcess(nn.Sequential):
    """Trains where it was made; in another process it ends as it is told to."""

    how = ""

    def forward(self, x: Tensor) -> Tensor:
        if multiprocessing.parent_process() is not None:
            if self.how == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "user":
                raise ft.InputError("the model does not take this")
            if self.how == "error":
                raise RuntimeError("a library fails")
        return super().forward(x)


def spawned(model: nn.Module, notices: list[str], *, rounds: int = 1, at_once: bool = True) -> SpawnedExecutor:
    training = ClientTraining(FED, model, "autograd", BATCHES)
    return SpawnedExecutor(
        training, torch.device("cpu"), "float32", workers=2, rounds=rounds, at_once=at_once, notice=notices.append
    )


@pytest.mark.parametrize(
    "how", ["", *(pytest.param(how, marks=pytest.mark.slow) for how in ("lock", "memory", "killed"))]
)
def test_processes_started_anew_train_as_this_process_does(how: str) -> None:
    """Also with a loss that has no name to be found by, and where they cannot go on."""
    model = FailsInAProcess(*net(), nn.Dropout(0.5))
    model.how = how
    state = threading.Lock() if how == "lock" else 1.0  # a lock cannot be sent
    jobs = {
        client: [
            dataclasses.replace(job, loss=lambda *batch: squared(*batch) * bool(state))
            for job in jobs_of(client, model, 2)
        ]
        for client in (3, 0, 4)
    }
    notices: list[str] = []
    executor = spawned(model, notices)
    here = InProcessExecutor(ClientTraining(FED, model, "autograd", BATCHES), torch.device("cpu"), "float32")
    try:
        for round in (1, 2):
            expected, found = (dict(e.train(round, jobs)) for e in (here, executor))
            for client in jobs:
                for a, b in zip(expected[client], found[client], strict=True):
                    assert torch.equal(a.parameters, b.parameters)
                    assert torch.equal(a.buffers, b.buffers)
    finally:
        executor.close()
    reasons = {
        "": [],
        "lock": ["Could not pickle"],
        "memory": ["the GPU has too little memory"],
        "killed": ["one was killed"],
        "error": ["RuntimeError: a library fails"],
    }
    assert len(notices) == len(reasons[how])
    for text, reason in zip(notices, reasons[how], strict=True):
        assert reason in text
        assert text.endswith("): clients train one after the other from round 1 on")


def test_ctrl_c_does_not_reach_processes_that_start() -> None:
    here = signal.getsignal(signal.SIGINT)
    with _interrupts_ignored():
        started = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT).name)"]
        assert subprocess.run(started, capture_output=True, text=True).stdout == "SIG_IGN\n"
    assert signal.getsignal(signal.SIGINT) is here


@pytest.mark.slow
def test_what_a_process_cannot_train_is_said_here() -> None:
    model = FailsInAProcess(*net())
    model.how = "user"
    executor = spawned(model, [])
    try:
        with pytest.raises(ft.InputError, match="the model does not take this"):
            dict(executor.train(1, {0: jobs_of(0, model, 1)}))
    finally:
        executor.close()


def test_processes_start_once_a_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    model, in_pool = net(), []

    def train_in_pool(self: SpawnedExecutor, round: int, jobs: dict[int, list[LocalJob]]) -> object:
        in_pool.append(round)
        self._pool = self._pool or object()
        return self._in_process.train(round, jobs)

    monkeypatch.setattr(SpawnedExecutor, "_train_in_pool", train_in_pool)
    monkeypatch.setattr("fedtilt.executors.spawned.time.perf_counter", iter(range(1000)).__next__)  # a client: a second
    jobs = {client: jobs_of(client, model, 1) for client in (0, 1)}
    for rounds, expected in ((30, []), (40, [3, 4, 5])):
        executor = spawned(model, [], rounds=rounds, at_once=False)
        for round in range(1, 6):
            assert dict(executor.train(round, jobs)).keys() == jobs.keys()
        assert in_pool == expected
        in_pool.clear()


def test_as_many_processes_as_help_and_have_room_for_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_workers(16, 100, 2**20, None) == default_workers(16, 100, 2**20, 2**30) == 4
    assert (default_workers(3, 100, 0, None), default_workers(16, 2, 0, None)) == (3, 2)
    assert default_workers(16, 100, 100, 600) == 3
    assert default_workers(1, 100, 0, None) == default_workers(16, 100, 100, 300) == 0
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert default_workers(16, 100, 0, None) == 0
