"""The certificate against scipy's exact intervals, and its coverage on resampled federations."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.evaluation.certificate import Certificate, describe, lower_bound

RESAMPLES = 1000


def test_a_result_certifies_each_method() -> None:
    federation = ft.Federation.build(ft.data.load("toy-2"), clients=2)
    result = ft.run([ft.fedavg(), ft.ditto(0.1)], federation, ft.models.logistic, rounds=1, lr=0.1)
    certificates = result.certificate(0.9)
    assert repr(certificates["ditto"]) == f"Certificate({result['ditto'].certificate(0.9)})"
    assert "with 90 % confidence" in str(certificates["fedavg"])


@pytest.mark.parametrize(("x", "n"), [(0, 1), (1, 1), (7, 12), (12, 12), (990, 1000)])
def test_the_bound_is_that_of_clopper_and_pearson(x: int, n: int) -> None:
    bound = lower_bound(torch.tensor([x]), torch.tensor([n]), 0.05).item()
    expected = binomtest(x, n, alternative="greater").proportion_ci(0.95, method="exact").low
    assert bound == pytest.approx(expected, abs=1e-12)
    if x:  # at the bound, x or more correct predictions have exactly this probability
        assert binom.sf(x - 1, n, bound) == pytest.approx(0.05)


def test_one_bad_client_decides_at_the_full_level() -> None:
    """Both statements together take half of alpha each, and the number of clients takes nothing."""
    total = torch.full((50, 2), 40)
    correct = torch.full((50, 2), 40)
    correct[7] = torch.tensor([30, 36])
    certificate = Certificate(correct, total)
    assert certificate.clients.bound == pytest.approx(
        100 * lower_bound(torch.tensor([66]), torch.tensor([80]), 0.025).item()
    )
    assert certificate.groups.bound == pytest.approx(
        100 * lower_bound(torch.tensor([30]), torch.tensor([40]), 0.025).item()
    )
    assert (certificate.clients.observed, certificate.groups.observed) == (82.5, 75.0)
    sidak = 1 - 0.95 ** (1 / 50)
    assert certificate.client_bounds[7].item() == pytest.approx(
        100 * lower_bound(torch.tensor([66]), torch.tensor([80]), sidak).item()
    )
    assert certificate.client_bounds.min() < certificate.clients.bound
    assert certificate.group_bounds.shape == (50, 2)


ACCURACIES = {
    "one bad client": np.r_[0.6, np.full(19, 0.97)],
    "all alike": np.full(20, 0.9),
    "spread": np.linspace(0.5, 0.99, 20),
}


@pytest.mark.parametrize(
    "name", ["one bad client", *(pytest.param(n, marks=pytest.mark.slow) for n in ("all alike", "spread"))]
)
def test_coverage_of_clients_and_groups_together(name: str) -> None:
    rng = np.random.default_rng(0)
    groups = np.clip(ACCURACIES[name][:, None] + np.array([-0.1, 0.0, 0.02]), 0, 1)  # the true accuracies, (N, K)
    total = rng.integers(2, 60, groups.shape)
    clients = (groups * total).sum(1) / total.sum(1)
    held, simultaneous = 0, 0
    for _ in range(RESAMPLES):
        certificate = Certificate(torch.tensor(rng.binomial(total, groups)), torch.tensor(total))
        held += certificate.clients.bound <= 100 * clients.min() and certificate.groups.bound <= 100 * groups.min()
        simultaneous += (certificate.client_bounds.numpy() <= 100 * clients).all()
    assert held >= 0.95 * RESAMPLES
    assert simultaneous >= 0.95 * RESAMPLES


@pytest.mark.parametrize("clients", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_coverage_of_a_client_not_yet_seen(clients: int) -> None:
    rng = np.random.default_rng(clients)
    held = 0
    for _ in range(RESAMPLES):
        accuracy = rng.beta(12, 2, clients + 1)
        total = rng.integers(5, 300, (clients, 1))
        certificate = Certificate(torch.tensor(rng.binomial(total, accuracy[:-1, None])), torch.tensor(total))
        held += certificate.unseen_client <= 100 * accuracy[-1]
    assert held >= 0.95 * RESAMPLES


def test_too_few_clients_for_a_statement_about_others() -> None:
    perfect = torch.full((19, 1), 100)
    certificate = Certificate(perfect, perfect)
    assert math.isnan(certificate.unseen_client)
    assert certificate.clients_needed == 20
    enough = torch.full((20, 1), 100)
    assert Certificate(enough, enough).unseen_client > 90
    assert Certificate(perfect, perfect, confidence=0.9).unseen_client > 90


def test_several_methods_are_one_sentence() -> None:
    total = torch.full((20, 2), 100)
    certificates = {"a": Certificate(total - 30, total), "b": Certificate(total - 10, total)}
    bounds = [[int(v) for v in (c.clients.bound, c.groups.bound, c.unseen_client)] for c in certificates.values()]
    (a, a_class, a_unseen), (b, b_class, b_unseen) = bounds
    below = f"{a} % ({a_class} %) with a, {b} % ({b_class} %) with b"
    text = f"with 95 % confidence, no client (class of one) is below {below}"
    assert describe(certificates, unseen=False) == text
    unseen = f"; a client not yet seen, if it is like these: not below {a_unseen} %, {b_unseen} %"
    assert describe(certificates, unseen=True) == text + unseen


def test_few_samples_and_clients_without_data_are_named() -> None:
    total = torch.tensor([[6, 6], [50, 0], [0, 0]])
    certificate = Certificate(total.clone(), total)
    assert str(certificate) == (
        "with 95 % confidence, no client's accuracy is below 73 %, and none of its classes below 54 % (12 samples of a "
        "client: no statement above 73 %; 6 samples of a class: no statement above 54 %; 1 without test data: no "
        "statement)"
    )
    assert "without test data" not in str(Certificate(total.clone(), total, absent=1))
    assert certificate.client_bounds.isnan().tolist() == [False, False, True]
    assert certificate.group_bounds.isnan().tolist() == [[False, False], [False, True], [True, True]]


@pytest.mark.parametrize(
    ("confidence", "message"),
    [(95, "confidence = 95 is not between 0 and 1"), ("high", "confidence must be a number, got 'high'")],
)
def test_bad_confidence_is_refused(confidence: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Certificate(torch.ones(1, 1).int(), torch.ones(1, 1), confidence)  # type: ignore[arg-type]


def test_no_test_data_is_refused() -> None:
    with pytest.raises(InputError, match="no client has any test data to certify"):
        Certificate(torch.zeros(2, 2).int(), torch.zeros(2, 2))


def test_counts_without_groups_allow_no_statement_about_groups() -> None:
    certificate = Certificate(torch.tensor([[45], [49]]), torch.tensor([[50], [50]]))
    assert str(certificate) == "with 95 % confidence, no client's accuracy is below 78 %"
    both = describe({"a": certificate, "b": certificate}, unseen=False)
    assert both == "with 95 % confidence, no client is below 78 % with a, 78 % with b"
