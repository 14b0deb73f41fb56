"""The audit of clients: bad clients are named, clients that are merely different are not."""

import dataclasses
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.auditing.clients import standing_out, unexplained_share
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.updates import add_distances, distances_by_round
from fedtilt.state import ServerState


def log_probabilities(true: torch.Tensor, seed: int = 0, classes: int = 4) -> torch.Tensor:
    """Outputs in a cluster for every true class."""
    noise = torch.randn(len(true), classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (5 * torch.nn.functional.one_hot(true, classes) + noise / 2).log_softmax(1)


def test_labels_that_the_shared_model_or_the_other_samples_predict_are_explained():
    true = torch.arange(200) % 4
    log_p = log_probabilities(true)
    assert unexplained_share(log_p, true) == 0
    # the shared model is wrong about every sample, but in the same way
    assert unexplained_share(log_p, (true + 1) % 4) < 0.05
    flipped = torch.rand(200, generator=torch.Generator().manual_seed(1)) < 0.6
    step = 1 + torch.arange(200) // 4 % 3
    assert float(unexplained_share(log_p, torch.where(flipped, (true + step) % 4, true))) == pytest.approx(0.6, abs=0.1)


def test_a_sample_does_not_vouch_for_its_own_label():
    """Leave-one-out equals a regression without the sample."""
    true = torch.arange(20) % 4
    log_p, y = log_probabilities(true), (true + (torch.arange(20) % 7 == 0).long()) % 4
    p = log_p.exp()
    residual = torch.nn.functional.one_hot(y, 4) - p
    sq_dist = torch.cdist(log_p, log_p).square()
    kernel = torch.exp(-sq_dist / sq_dist[sq_dist > 0].median())
    wrong = 0
    for i in range(20):
        rest = torch.arange(20) != i
        weights = torch.linalg.solve(kernel[rest][:, rest] + torch.eye(19, dtype=kernel.dtype), residual[rest])
        wrong += int((p[i] + kernel[i, rest] @ weights).argmax() != y[i])
    assert float(unexplained_share(log_p, y)) == wrong / 20


def test_shares_stand_out_from_the_median_and_its_deviation():
    samples = torch.full((8,), 60.0)
    shares = torch.tensor([0.05, 0.06, 0.04, 0.05, 0.06, 0.05, 0.45, 0.5])
    assert standing_out(shares, samples)[0].tolist() == [False] * 6 + [True] * 2
    assert not standing_out(shares / 3, samples)[0].any()  # less than 20 points
    assert not standing_out(torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]), samples)[0].any()
    few = torch.tensor([60.0] * 7 + [2.0])
    assert standing_out(shares, few)[0].tolist() == [False] * 6 + [True, False]  # half of two samples says little


def test_distances_of_updates_are_relative_to_the_median_of_the_round():
    def updates(**models: list[float]) -> dict[int, ClientUpdate]:
        return {int(name[1:]): ClientUpdate(torch.tensor(model), 1) for name, model in models.items()}

    slot = add_distances({}, updates(c0=[1.0, 0.0], c2=[-1.0, 0.0], c3=[0.0, 3.0]))
    slot = add_distances(slot, updates(c0=[1.0, 0.0], c1=[0.0, 0.0]))
    distances = distances_by_round(ServerState(torch.zeros(1), slots={"audit": slot}), 4)
    assert distances.shape == (2, 4)
    assert distances[0, [0, 2, 3]].tolist() == pytest.approx([1.0, 1.0, 2**0.5])  # mean (0, 1): √2, √2 and 2
    assert distances[1, :2].tolist() == pytest.approx([1.0, 1.0])
    assert distances[:, 1:].isnan().tolist() == [[True, False, False], [False, True, True]]
    assert distances_by_round(ServerState(torch.zeros(1)), 4).shape == (0, 4)


def federation(bad: list[int], seed: int = 0) -> ft.Federation:
    """Twelve clients of digits 0 to 7, two clients that alone have 8 and 9, and static flips at some."""
    data = ft.data.load("digits")
    order = torch.randperm(len(data.y_train), generator=torch.Generator().manual_seed(seed))
    common, rare = order[data.y_train[order] < 8], order[data.y_train[order] >= 8]
    rows = [common[60 * n : 60 * (n + 1)] for n in range(12)] + [rare[60 * n : 60 * (n + 1)] for n in range(2)]
    clients = [(data.x_train[r], data.y_train[r]) for r in rows]
    flips = ft.data.Outliers(kind="flips", rate=0.6, redraw="once", flip_to="any")
    built = ft.Federation.from_clients(clients, outliers=flips, test_share=0.1)
    return dataclasses.replace(built, has_outliers=torch.isin(torch.arange(14), torch.tensor(bad)))


def run(federation: ft.Federation, **settings: object) -> ft.Result:
    return ft.run(
        [ft.fedtilt(tau=0, lam=-2)], federation, ft.models.mlp, rounds=12, participation=0.5, epochs=3, lr=0.05,
        audit=True, eval_every=12, **settings,
    )  # fmt: skip


def test_bad_clients_are_named_and_clients_with_rare_classes_are_only_different(tmp_path: Path):
    bad = [1, 5, 9]
    result = run(federation(bad), out=tmp_path / "run")
    audit = result.audit_clients()
    assert set(audit.bad) == set(map(str, bad))
    assert set(audit.different) <= {"12", "13"}
    assert [row.client for row in audit.clients[:3]] == list(audit.bad)  # worst first
    assert audit["12"].unknown > 0.3
    assert audit["12"].unexplained < 0.2
    assert audit[5].suspects > audit[0].suspects
    assert audit[5].loss > audit[0].loss
    sentences = audit.sentences()
    assert len(sentences) == len(audit.bad) + len(audit.different)
    assert sentences[0].startswith(f"client {audit.bad[0]} looks bad: ")
    heat = audit.heat_map()
    took_part = ~audit.distances.isnan()
    assert heat.shape == (12, 14)
    assert torch.equal(took_part.sum(1), torch.full((12,), 7))
    assert torch.equal(~heat.isnan(), took_part)
    assert list(audit.to_pandas()["client"]) == [row.client for row in audit.clients]
    again = run(federation(bad), out=tmp_path / "run").audit_clients()  # from the checkpoint
    assert again.clients == audit.clients
    assert torch.equal(again.distances.nan_to_num(), audit.distances.nan_to_num())


def test_nobody_is_named_in_a_federation_of_good_clients():
    audit = run(federation([])).audit_clients()
    assert audit.bad == ()
    assert repr(audit).startswith("ClientAudit('fedtilt': 0 bad and ")
