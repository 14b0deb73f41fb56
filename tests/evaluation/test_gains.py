"""Who gains: intervals of paired differences cover the truth, and clients that lose are counted and named."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import fedtilt as ft
from fedtilt.data.groups import CLASS
from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Grouping
from fedtilt.evaluation.gains import client_gains, paired_interval
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.evaluation.verdicts import worse_clients


def predictions(correct: torch.Tensor, clients: torch.Tensor) -> Predictions:
    """Two classes, labels 0; where `correct` is false, class 1 is predicted."""
    outputs = torch.where(correct[:, None], torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9]))
    names = tuple(f"c{n}" for n in range(int(clients.max()) + 1))
    by = {CLIENT: Grouping(CLIENT, names, clients), CLASS: Grouping(CLASS, ("a", "b"), torch.zeros_like(clients))}
    return Predictions(outputs=outputs, groupings=by)


def test_clients_that_are_worse_are_named_after_holm_and_over_seeds() -> None:
    first = {"c0": np.array([-100.0] * 12 + [0.0] * 8), "c1": np.array([100.0] * 15), "c2": np.array([-100.0] * 3)}
    assert worse_clients([first]) == ["c0"]  # c1 is better; c2 is worse by three rows, which is chance
    assert worse_clients([first], 1e-4) == []
    assert worse_clients([first, first, {"c1": first["c1"]}]) == ["c0"]  # not in the third seed
    assert worse_clients([first, {"c0": -first["c0"]}]) == []
    six = {"c0": np.array([-100.0] * 6)}  # p = 0.031
    assert worse_clients([six]) == ["c0"]
    assert worse_clients([six, six]) == []
    assert worse_clients([{"a": six["c0"], "b": six["c0"]}]) == []
    assert worse_clients([{"a": np.repeat([100.0, -100.0], [149_000, 151_000])}]) == ["a"]


def test_numbers_compare_by_their_absolute_error() -> None:
    owner, target = torch.arange(6).repeat_interleave(5), torch.linspace(0, 1, 30)
    by = {CLIENT: Grouping(CLIENT, tuple("abcdef"), owner), "range": Grouping("range", ("x",), torch.zeros_like(owner))}
    near, far = (Predictions(outputs=target.double() + error, groupings=by, numbers=target) for error in (0.1, -0.4))
    assert [c.difference for c in client_gains(near, far, "far").clients] == pytest.approx([0.3] * 6, rel=1e-5)
    assert client_gains(far, near, "near", 0.5).stay_out == tuple("abcdef")  # 2 of 32 signs, times 6


def coverage(samples: int, only_ours: float, only_theirs: float) -> float:
    """The exact probability that the interval contains the true difference: a sum over all outcomes."""
    truth = 100 * (only_ours - only_theirs)
    found = 0.0
    for wins in range(samples + 1):
        for losses in range(samples + 1 - wins):
            low, high = paired_interval(wins, losses, samples)
            if low <= truth <= high:
                shares = [only_ours, only_theirs, 1 - only_ours - only_theirs]
                found += stats.multinomial.pmf([wins, losses, samples - wins - losses], samples, shares)
    return found


@pytest.mark.parametrize("samples", [3, 8, 25])
def test_the_interval_of_a_client_covers_the_true_difference(samples: int) -> None:
    found = [coverage(samples, p, r) for p, r in [(0.0, 0.0), (0.1, 0.1), (0.2, 0.05), (0.4, 0.1), (0.3, 0.3)]]
    assert min(found) >= 0.93


def test_in_simulated_clients_the_intervals_cover_and_nobody_is_named_without_a_difference() -> None:
    rng = np.random.default_rng(0)
    clients, samples = 300, 15
    owner = torch.arange(clients).repeat_interleave(samples)
    true = rng.uniform(-0.3, 0.3, clients)  # of ours minus theirs
    first = rng.random((clients, samples)) < 0.6
    change = rng.random((clients, samples)) < np.abs(true)[:, None] / np.where(true > 0, 0.4, 0.6)[:, None]
    second = np.where(change, (true > 0)[:, None], first)
    ours, theirs = (predictions(torch.from_numpy(part.reshape(-1)), owner) for part in (second, first))
    found = client_gains(ours, theirs, "theirs")
    inside = [client.low <= 100 * truth <= client.high for client, truth in zip(found.clients, true, strict=True)]
    assert np.mean(inside) >= 0.93
    assert found.count("gains") + found.count("ties") + found.count("loses") == clients
    assert found.share("loses") == found.count("loses") / clients
    none = client_gains(theirs, theirs, "itself")
    assert (none.share("ties"), none.stay_out) == (1.0, ())


def test_a_client_that_loses_is_counted_and_named_in_words() -> None:
    owner = torch.arange(3).repeat_interleave(20)
    ours = torch.tensor([True] * 20 + [False] * 20 + [True] * 20)
    theirs = torch.tensor([False] * 15 + [True] * 5 + [True] * 20 + [True] * 20)
    found = client_gains(predictions(ours, owner), predictions(theirs, owner), "local")
    assert [client.outcome for client in found.clients] == ["gains", "loses", "ties"]
    assert [client.difference for client in found.clients] == [75.0, -100.0, 0.0]
    p, r = 16 / 22, 1 / 22  # by hand
    margin = stats.t.ppf(0.975, 20) * math.sqrt((p + r - (p - r) ** 2) / 22) + 1 / 22
    assert found.clients[0].low == pytest.approx(100 * (p - r - margin))
    assert found.stay_out == ("c1",)
    assert found.in_words("every client alone") == (
        "against every client alone, 1 gains, 1 ties and 1 loses of 3 clients (95 % intervals of their own rows); "
        "beyond chance, better off with it: c1"
    )


def test_a_result_has_the_gains_of_its_clients() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 3, generator=generator)
    y = (x[:, 0] + 0.3 * torch.randn(90, generator=generator) > 0).long()
    fed = ft.Federation.from_clients([(x[i::3], y[i::3]) for i in range(3)], test_share=0.3)
    result = ft.run([ft.fedavg(), ft.ditto(0.1)], fed, ft.models.logistic, rounds=2, participation=1.0, device="cpu")
    gains = result.gains("local")
    assert set(gains) == {"fedavg", "ditto"}
    frame = result.to_pandas(by="client").set_index(["method", "client_name"])
    scores = frame["accuracy"]
    for client in gains["ditto"].clients:
        row = frame.loc["ditto", client.client]
        assert row["over_local"] == pytest.approx(scores["ditto", client.client] - scores["local", client.client])
        assert tuple(row[["over_local_low", "over_local_high"]]) == pytest.approx((client.low, client.high))
    assert frame.loc["local"]["over_local"].isna().all()
    assert list(gains["ditto"].to_pandas()["outcome"]) == [client.outcome for client in gains["ditto"].clients]
    with pytest.raises(InputError, match="against = 'mine' is not in this result; choose one of fedavg, ditto, "):
        result.gains("mine")
