"""The batches of several clients are made together, and a round ahead: those of each are the same as alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import seeds
from fedtilt.attacks.attack import AttackedFederation
from fedtilt.devices import as_rows, upload
from fedtilt.executors import in_process
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.models import parameters_to_vector
from fedtilt.training import LocalJob, stacked

CPU = torch.device("cpu")
SETTINGS = BatchSettings(seed=3, epochs=2, batch_size=9, last_batch="even")


def random_federation(outliers: str = "none", **settings: object) -> ft.Federation:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (700, 1, 8, 8), generator=rng, dtype=torch.uint8)
    y = torch.randint(0, 4, (700,), generator=rng)
    data = ft.data.Dataset(
        name="random", x_train=x[:500], y_train=y[:500], x_test=x[500:], y_test=y[500:], classes=4, image=True
    )
    return ft.Federation.build(
        data, clients=9, partition="dirichlet", alpha=1.0, outliers=outliers, seed=1, **settings
    )  # fmt: skip


def make_job(start: Tensor, steps: int | None = None) -> LocalJob:
    return LocalJob(start=start, anchor=start, prox=0.0, tau=0.0, lam=0.0, lr=0.1, steps=steps)


@pytest.mark.parametrize("steps", [None, 2, 5])  # clients have one to ten batches
@pytest.mark.parametrize(
    ("outliers", "settings"),
    [
        ("none", {}),
        ("corruptions", {}),
        ("gaussian", {"outlier_clients": 0.5}),
        ("flips", {}),
        ("flips", {"outlier_flip_to": "any"}),
        ("flips", {"outlier_flip_to": "nearest", "outlier_redraw": "once"}),
    ],
)
@pytest.mark.parametrize("attacked", [False, True])
def test_batches_of_clients_together_are_those_of_each(
    outliers: str, settings: dict[str, object], steps: int | None, attacked: bool
) -> None:
    federation = random_federation(outliers, **settings)
    if attacked:
        federation = AttackedFederation.of(federation, ft.Attack(kind="backdoor", clients=("0", "3")), seed=0)
    jobs = {client: [make_job(torch.zeros(1), steps)] for client in (0, 2, 3, 7, 8)}
    jobs[2] = [replace(jobs[2][0], epochs=1, steps=None)]
    together = SETTINGS.of_clients(federation, 4, jobs, CPU)
    assert together.keys() == jobs.keys()
    for client in jobs:
        alone = SETTINGS.of_clients(federation, 4, {client: jobs[client]}, CPU)[client]
        found = together[client]
        for a, b in ((alone.x, found.x), (alone.y, found.y), (alone.order, found.order), (alone.bounds, found.bounds)):
            assert torch.equal(a, b)
        assert alone.key == found.key


def test_batches_made_ahead_are_used_if_they_are_those_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, model = random_federation(), nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    job, made = make_job(parameters_to_vector(model)), []
    original = BatchSettings.of_clients

    def of_clients(self, federation, round, jobs, device):
        made.append((round, list(jobs)))
        return original(self, federation, round, jobs, device)

    monkeypatch.setattr(BatchSettings, "of_clients", of_clients)
    training = ClientTraining(federation, model, "stacked", SETTINGS)
    rounds = {1: [0, 4], 2: [1, 2], 3: [5, 6], 4: [0, 8]}
    planned = {**rounds, 4: [7, 8], 5: []}  # another round 4 takes place
    jobs_of = {
        round: {client: [job if round != 3 else replace(job, epochs=1)] for client in clients}
        for round, clients in rounds.items()
    }
    results, loaded = [], []
    for selected in (None, planned.__getitem__):
        executor = InProcessExecutor(training, CPU, "float32", selected=selected)
        results.append([])
        for round, jobs in jobs_of.items():
            results[-1].append(dict(executor.train(round, jobs)))
            loaded.append([data().key for stack in stacked._stacks.values() for data in stack._loaded if data()])
        executor.close()
    dropout_keys = [[seeds.key(SETTINGS.seed, "dropout", round=r, client=c) for c in planned[r]] for r in (2, 3, 4)]
    # after each round, the batches that are planned for the next; none follows round 4
    assert loaded == [[], [], [], [], *dropout_keys, []]
    assert made[:4] == list(rounds.items())
    # round 2 was made ahead; round 3 for longer jobs, and round 4 for another client: made again
    assert made[4:] == [(1, [0, 4]), (2, [1, 2]), (3, [5, 6]), (3, [5, 6]), (4, [7, 8]), (4, [0, 8]), (5, [])]
    for without, ahead in zip(*results, strict=True):
        assert without.keys() == ahead.keys()
        for client in without:
            assert torch.equal(without[client][0].parameters, ahead[client][0].parameters)


def test_a_round_goes_on_if_there_is_no_memory_for_the_batches_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, model = random_federation(), nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    job = make_job(parameters_to_vector(model))

    def fail(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError

    def trained() -> list[Tensor]:
        executor = InProcessExecutor(
            ClientTraining(federation, model, "stacked", SETTINGS), CPU, "float32", selected=lambda _: [0, 4]
        )
        rounds = [dict(executor.train(round, {0: [job], 4: [job]})) for round in (1, 2)]
        executor.close()
        return [results[0].parameters for by_client in rounds for results in by_client.values()]

    expected = trained()
    monkeypatch.setattr(stacked, "load_ahead", fail)
    assert all(map(torch.equal, trained(), expected))


def test_rows_of_a_matrix_are_not_copied_and_others_are() -> None:
    matrix = torch.arange(12.0).reshape(4, 3)
    rows = list(matrix.unbind())
    assert as_rows(rows[1:]).data_ptr() == rows[1].data_ptr()
    assert torch.equal(as_rows(rows[1:]), matrix[1:])
    for vectors in ([rows[0], rows[2]], rows[::-1], [rows[0], matrix[1].clone()], [matrix[:, 0], matrix[:, 1]]):
        assert torch.equal(as_rows(vectors), torch.stack(vectors))
        assert as_rows(vectors).data_ptr() != vectors[0].data_ptr()
    assert torch.equal(upload(matrix, "cpu"), matrix)
    memory = bytearray(24)  # neighbours that are two tensors
    halves = [torch.frombuffer(memory, dtype=torch.float32, count=3, offset=offset) for offset in (0, 12)]
    halves[1].fill_(7)
    assert torch.equal(as_rows(halves), torch.stack(halves))


def test_results_do_not_depend_on_the_width_of_a_stack() -> None:
    """Stacks of any width pad to the largest batch of all clients, selected or not: sums have the same order."""
    federation = random_federation()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))
    job = make_job(parameters_to_vector(model))
    sizes = {client: SETTINGS.of_clients(federation, 1, {client: [job]}, CPU)[client] for client in range(9)}
    largest = max(int(data.bounds.diff().max()) for data in sizes.values())
    small = [client for client, data in sizes.items() if int(data.bounds.diff().max()) < largest]
    assert small
    assert {data.size for data in sizes.values()} == {largest}

    def train(clients: list[int], stack_size: int | None) -> dict[int, Tensor]:
        training = ClientTraining(federation, model, "stacked", SETTINGS)
        executor = InProcessExecutor(training, CPU, "float32", stack_size)
        trained = {client: t.parameters for client, (t,) in executor.train(1, {client: [job] for client in clients})}
        executor.close()
        return trained

    expected = train(list(range(9)), None)
    for trained in (train(list(range(9)), 1), train(small, 2)):
        assert all(torch.equal(parameters, expected[client]) for client, parameters in trained.items())


@pytest.mark.parametrize(
    ("round", "change"),
    [(2, {"steps": 3}), (2, {"steps": None}), (2, {"measures_loss": True}), (2, {"epochs": 1, "steps": None}), (1, {})],
)
def test_batches_made_ahead_for_other_jobs_or_another_round_are_made_again(round: int, change: dict) -> None:
    federation, model = random_federation(), nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    job = make_job(parameters_to_vector(model).detach().clone(), steps=1)
    training, results = ClientTraining(federation, model, "stacked", SETTINGS), []
    for selected in (None, lambda _: [0, 4]):
        executor = InProcessExecutor(training, CPU, "float32", selected=selected)
        list(executor.train(1, {0: [job], 4: [job]}))
        changed = replace(job, **change)
        results.append(dict(executor.train(round, {0: [changed], 4: [changed]})))
        executor.close()
    for client in (0, 4):
        (without,), (ahead,) = (result[client] for result in results)
        assert torch.equal(without.parameters, ahead.parameters)
        assert without.loss is ahead.loss or torch.equal(without.loss, ahead.loss)


def test_large_batches_are_not_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, model = random_federation(), nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    job, made, original = make_job(parameters_to_vector(model).detach().clone()), [], BatchSettings.of_clients

    def of_clients(self, federation, round, jobs, device):
        made.append(round)
        return original(self, federation, round, jobs, device)

    monkeypatch.setattr(BatchSettings, "of_clients", of_clients)
    training = ClientTraining(federation, model, "stacked", SETTINGS)
    for limit, expected in ((2**30, [1, 2]), (0, [1])):
        monkeypatch.setattr(in_process, "_MAX_PREFETCHED_BYTES", limit)
        made.clear()
        executor = InProcessExecutor(training, CPU, "float32", selected=lambda _: [0, 4])
        list(executor.train(1, {0: [job], 4: [job]}))
        executor.close()
        assert made == expected


@pytest.mark.parametrize("steps", [None, 1, 2])
def test_samples_keep_their_weights_and_groups(steps: int | None) -> None:
    number, tested = torch.arange(96), torch.arange(4)
    data = ft.data.Dataset(
        name="numbers", x_train=number[:, None].float(), y_train=number % 2, x_test=torch.zeros(4, 1),
        y_test=tested % 2, classes=2, client_train=number % 3, client_test=tested % 3, client_names=("a", "b", "c"),
        weight_train=1.0 + number % 7, weight_test=torch.ones(4),
        group_train={"ward": number % 5}, group_test={"ward": tested}, group_names={"ward": tuple("abcde")},
    )  # fmt: skip
    federation, job = ft.Federation.build(data), make_job(torch.zeros(1), steps)
    for found in SETTINGS.of_clients(federation, 2, {client: [job] for client in range(3)}, CPU).values():
        row = found.x[:, 0].long()
        assert len(row) == (32 if steps is None else int(found.bounds[-1]))
        assert torch.equal(found.weights, 1.0 + (row % 7).float())
        assert torch.equal(found.groups["ward"], row % 5)
